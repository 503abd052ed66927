# SPDX-License-Identifier: Apache-2.0
"""posenc doctor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from posenc.cli.common import WithModel, WithOutput, check_limits
from posenc.errors import InputError, needs
from posenc_cli.answers import DONE, FAILED
from posenc_cli.arguments import room


@dataclass(kw_only=True)
class Doctor(WithModel, WithOutput):
    """Report how a pretrained model encodes positions, and what is wrong with it."""

    examples: ClassVar = (
        "posenc doctor my-llm",
        "posenc doctor config.json --length 32768",
        "posenc doctor OWNER/NAME --config-only",
    )

    config_only: Annotated[
        bool, "compare what transformers 4 and 5, vLLM, SGLang and llama.cpp compute from the configuration"
    ] = False
    length: Annotated[int | None, "with a configuration alone: tokens of the text (default: the model's length)"] = None

    @classmethod
    def epilog(cls) -> str:
        return (
            "MODEL may also be a config.json, or a folder with one and no weights, as with --config-only; a GGUF file's header is read "
            "by --config-only. Exit code 0: nothing is wrong (there may be hazards and notes), 1: something is, or programs compute "
            "different positions. The report has the remedy of each finding; posenc list --kind findings shows all."
        )

    def run(self) -> int:
        check_limits(self, length=(1, 2**40))
        path = Path(self.model)
        files = [*path.glob("*.safetensors"), *path.glob("*.gguf")] if path.is_dir() else []
        weights = path.suffix == ".gguf" or bool(files)
        bare = path.suffix == ".json" or (path.is_dir() and (path / "config.json").exists() and not weights)
        if self.config_only or bare or (path.is_dir() and _unloadable(path)):
            from posenc.pretrained.readers import compare, read_config

            needs("transformers", "lab")
            comparison = compare(read_config(self.model), self.length)
            self.emit({"command": self.typed, **comparison.to_dict()}, comparison.text(room()))
            return FAILED if comparison.wrong else DONE
        if self.length is not None:
            raise InputError("is for a configuration alone", "add config_only, or leave it out", length=self.length)

        from posenc.pretrained.doctor import doctor

        diagnosis = doctor(self.load()[0])
        self.emit({"command": self.typed, "name": self.model, **diagnosis.to_dict()}, str(diagnosis))
        return FAILED if diagnosis.wrong else DONE


def _unloadable(folder: Path) -> bool:
    """Whether `load` refuses a folder for numbers in its config.json, which are findings."""
    from posenc.pretrained.parameters import impossible_in
    from posenc.pretrained.readers import read_config

    needs("transformers", "lab")
    try:
        config = read_config(folder)
        return any(config.faults()) or any(impossible_in(config.hf))
    except InputError:
        return False
