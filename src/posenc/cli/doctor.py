# SPDX-License-Identifier: Apache-2.0
"""posenc doctor."""

from dataclasses import dataclass

from posenc.cli.common import DONE, FAILED, WithModel, WithOutput


@dataclass(kw_only=True)
class Doctor(WithModel, WithOutput):
    """Report how a pretrained model encodes positions, and what is wrong with it."""

    @classmethod
    def epilog(cls) -> str:
        return "docs/doctor.md explains each finding. Exit code 0: nothing is wrong (there may be hazards and notes), 1: something is."

    def run(self) -> int:
        from posenc.pretrained.doctor import doctor

        model, tokenizer = self.load()
        diagnosis = doctor(model, tokenizer)
        self.emit({"command": self.typed, "name": self.model, **diagnosis.to_dict()}, str(diagnosis))
        return FAILED if diagnosis.wrong else DONE
