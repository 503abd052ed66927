# SPDX-License-Identifier: Apache-2.0
"""posenc extend."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from posenc.cli.command import record
from posenc.cli.common import WithModel, WithOutput
from posenc.errors import InputError, needs
from posenc.pretrained.methods import check
from posenc.spec import literal
from posenc_cli.answers import DONE, FAILED
from posenc_cli.arguments import How

if TYPE_CHECKING:
    from posenc.pretrained.finetune import Finetuning
    from posenc.pretrained.verify import Verification

LINE_SECONDS = 20.0
"""Between two lines about a training, where there is no terminal."""


@dataclass
class TrainingOptions:
    """What `posenc.pretrained.finetune.finetune` takes."""

    steps: Annotated[int | None, "steps (default: 1000)"] = None
    learning_rate: Annotated[float | None, "of AdamW (default: 2e-5)"] = None
    length: Annotated[int | None, "tokens of a window (default: the new length)"] = None
    batch_size: Annotated[int | None, "windows a step (default: 1)"] = None
    lora: Annotated[int | None, "train adapters of this rank (peft) and merge them (default: all weights)"] = None
    pose: Annotated[bool, "skip positions, so that short windows see the complete new length (PoSE)"] = False
    seed: Annotated[int | None, "of the windows (default: 0)"] = None
    checkpoint: Annotated[
        str | None, "store the training in this folder, so that the same command continues from there", How("DIR")
    ] = None


@dataclass
class AutoOptions:
    """What `posenc.choose` takes."""

    samples: Annotated[int | None, "documents of each task (default: 8)"] = None
    candidates: Annotated[
        tuple[str, ...], "methods to try (default: those of posenc eval --preset longer)", How("METHOD", names="method")
    ] = ()


@dataclass(kw_only=True)
class Extend(WithModel, WithOutput):
    """Extend the context window of a pretrained model (RoPE scaling), verify it and save it."""

    examples: ClassVar = (
        "posenc extend demo --method yarn --factor 2",
        "posenc extend my-llm --method yarn --factor 4 --out longer",
        "posenc extend my-llm --method auto --factor 2 --out best",
        "posenc extend config.json --method yarn --factor 4 --print",
    )

    method: Annotated[str, "extension method, see below", How("METHOD", names="method")]
    factor: Annotated[float | None, "the new length over the context length", How("F", unless=("target_length",))] = (
        None
    )
    target_length: Annotated[int | None, "the new length in tokens", How(unless=("factor",))] = None
    option: Annotated[
        tuple[str, ...],
        "an option of the method, a list as 1,1.5,2; may be given again",
        How("K=V", append=True),
    ] = ()
    text: Annotated[
        str | None,
        "text for the loss before and after (default: the language reference inside Python)",
        How("FILE"),
    ] = None
    verify_tokens: Annotated[int | None, "tokens of the text (default: what about a minute allows)"] = None
    verify: Annotated[bool, "measure the loss, and ask for a passkey and three short answers, before and after"] = True
    finetune: Annotated[
        tuple[str, ...],
        "a text to train on, other than the one that verifies; may be given again",
        How("FILE", append=True),
    ] = ()
    print: Annotated[
        bool,
        "print what each program needs (config.json, --hf-overrides, GGUF keys); of a configuration, nothing is loaded",
    ] = False
    out: Annotated[str | None, "save the model into this folder, and the JSON with it", How("DIR")] = None
    gguf: Annotated[
        str | None,
        "of a GGUF file: write this new one for llama.cpp, with other keys of the rotation and the same weights; nothing is loaded",
        How("FILE"),
    ] = None

    @classmethod
    def groups(cls) -> dict[str, type]:
        return {
            "--method auto, which measures others on --text and takes the best; with --out, the same command goes on": AutoOptions,
            "fine-tuning with --finetune at the new length, before the model is verified and saved": TrainingOptions,
        }

    @classmethod
    def epilog(cls) -> str:
        return (
            "posenc list --kind methods shows the methods; auto measures them on passkey, facts and your text, and takes the best, "
            "or none.\n"
            "Methods take options after colons (yarn:beta_fast=16) or by --option, lists of numbers with commas (--method explicit "
            "--option stretch=1,1.5,2,4, a number for each pair of channels), and are joined by + (ntk+log_n). The loss on a text is measured before and after, beside that "
            "of the unmodified model on a text cut to its context length, and so are the answers to a passkey past it and to three short questions. "
            "With --print, or of a config.json, nothing is loaded, and what each program needs is printed. With --out the model is saved so that plain "
            "transformers loads it, wherever that can be expressed. auto saves the model into DIR/model, beside its measurements."
        )

    def run(self) -> int:
        from posenc.pretrained.extend import extend
        from posenc.pretrained.learned_table import METHODS as OF_TABLES
        from posenc.pretrained.verify import TUNED
        from posenc.report.terminal import Display

        if self.method == CHOSEN:
            return self._auto()
        for option in (name for name in self.given if name in AUTO_OPTIONS):
            raise InputError("is for --method auto, leave it out", argument=option)
        if self.verify_tokens is not None and self.verify_tokens < 2:
            raise InputError("must be at least 2", verify_tokens=self.verify_tokens)
        for item in self.option:
            if "=" not in item:
                raise InputError("write key=value", option=item)
        options = {key: literal(value) for key, _, value in (item.partition("=") for item in self.option)}
        training = self._check_training()
        text = None if self.text is None else _read(self.text, "--text")  # before anything is loaded
        if not self.method.startswith(tuple(OF_TABLES)):
            check(self.method, options, self.factor, self.target_length)
        if self.gguf is not None:
            return self._rewrite(self.gguf, options)
        if self.print or self.model.endswith(".json"):
            return self._print(options)
        model, tokenizer = self.load()
        if tokenizer is None and (self.verify or training is not None):
            raise InputError(f"{self.model}: it has no tokenizer for the text; give --no-verify, no --finetune")

        def extended() -> Any:
            return extend(model, self.method, factor=self.factor, target_length=self.target_length, **options)

        report = extended()  # a mistake shows before anything is measured
        if training is not None:
            from posenc.pretrained.finetune import prepared

            prepared(model, training, tokenizer, **self.given)
        results: dict[str, Any] = {"command": self.typed, "model": self.model, "extension": report.to_dict()}
        results["precision"] = str(model.dtype).removeprefix("torch.")
        printed: list[object] = [report, f"computed in {results['precision']}"]
        tuned: Finetuning | None = None
        with Display() as shown:
            reader = self._before_and_after(text, model, tokenizer, report, extended, shown) if self.verify else None
            if training is not None:
                tuned = self._finetuned(model, tokenizer, training, shown)
                if not tuned.complete:
                    resumable = "checkpoint" in self.given
                    then = "run the same command again to continue" if resumable else "the model has these steps"
                    steps = f"{len(tuned.losses)} of {tuned.settings['steps']} steps"
                    print(f"posenc extend: interrupted after {steps}; {then}", file=sys.stderr)
                    if resumable:
                        return FAILED
                if reader is not None:
                    reader.read(TUNED, model, shown.counter(TUNED))
                    self._answers.ask(TUNED, model, tokenizer)
                results["finetuning"] = tuned.to_dict()
                printed.append(tuned)
        if reader is not None:
            results["verification"] = reader.to_dict()
            self.verify_tokens = len(reader.ids)  # for config.yaml: a minute's tokens are others another time
            printed.append(reader)
            if self._answers.short:
                results["answers"] = self._answers.to_dict()
                printed.append(self._answers)
        self._save(model, tokenizer, self.out, results, printed)
        self.emit(results, "\n\n".join(map(str, printed)))
        return DONE if tuned is None or tuned.complete else FAILED

    def _auto(self) -> int:
        from posenc.lab.evals.choose import choose
        from posenc.lab.study import Interrupted
        from posenc.report.evaluate import files
        from posenc.report.terminal import Display

        then = "let auto choose, then give it with --method CHOICE"
        self._refuse(("option", "verify_tokens", "finetune", "gguf", "print"), "is for one method", then)
        for name in (each for each in self.given if each not in AUTO_OPTIONS):
            raise InputError("is for fine-tuning", then, argument=name)
        if (self.factor is None) == (self.target_length is None):
            raise InputError("auto depends on the new length", "give --factor or --target-length")
        check("none", {}, self.factor, self.target_length)
        if self.model.endswith(".json"):
            raise InputError("auto measures the model", "give its folder", model=self.model)
        saved_in = None if self.out is None else Path(self.out) / "model"
        if saved_in is not None and saved_in.exists():
            raise InputError("has a model already", "name a new folder", out=self.out)
        if self.text is not None:
            _read(self.text, "--text")  # before anything is loaded
        model, tokenizer = self.load()
        with Display() as shown:
            try:
                found = choose(
                    model, tokenizer, factor=self.factor, target_length=self.target_length, text=self.text, name=self.model,
                    directory=self.out, pages=files, progress=shown, command=self.typed,
                    begin=lambda: self.out and record(self.out, self), **self.given,
                )  # fmt: skip
            except Interrupted:
                then = "run the same command again to continue" if self.out else "give --out DIR to be able to continue"
                print(f"posenc extend: interrupted; {then}", file=sys.stderr)
                return FAILED
        results: dict[str, Any] = {"command": self.typed, "model": self.model, "selection": found.to_dict()}
        printed: list[object] = [found]
        if found.extension is None and self.out:
            printed.append("no model is written: the one that was loaded, with truncated inputs, is the choice")
        if found.extension is not None:
            self._save(model, tokenizer, saved_in, results, printed)
        return self.emit(results, "\n\n".join(map(str, printed)))

    def _save(
        self, model: Any, tokenizer: Any, folder: str | Path | None, results: dict[str, Any], printed: list[object]
    ) -> None:
        """Write the model into a folder, and report it."""
        from posenc.pretrained.export import to_hf

        if folder is not None:
            saved = to_hf(model, folder, tokenizer)
            results["saved"] = saved.to_dict()
            printed.append(saved)

    def _refuse(self, names: Sequence[str], why: str, remedy: str) -> None:
        for name in filter(partial(getattr, self), names):
            raise InputError(why, remedy, argument=name)

    def _print(self, options: dict[str, Any]) -> int:
        from posenc.pretrained.recipe import recipe

        needs("transformers", "lab")
        self._refuse(("text", "verify_tokens", "finetune"), "needs the model", "give its folder, without --print")
        made = recipe(self.model, self.method, factor=self.factor, target_length=self.target_length, **options)
        return self.emit({"command": self.typed, "model": self.model, **made.to_dict()}, str(made))

    def _rewrite(self, file: str, options: dict[str, Any]) -> int:
        from posenc.pretrained.gguf_file import rewrite

        if Path(self.model).suffix != ".gguf":
            remedy = "make one of the model with llama.cpp's convert_hf_to_gguf.py, and extend that"
            raise InputError("is of a GGUF file", remedy, argument="gguf")
        self._refuse(("text", "verify_tokens", "finetune", "out"), "loads the model", "leave it out beside --gguf")
        made = rewrite(self.model, file, self.method, factor=self.factor, target_length=self.target_length, **options)
        return self.emit({"command": self.typed, "model": self.model, "gguf": made.to_dict()}, str(made))

    def check_out(self) -> None:
        """A model is saved into an empty folder, or with auto beside the cells."""
        from posenc.lab.files import Folder

        if self.print or self.model.endswith(".json"):
            super().check_out()
        elif self.out is not None and not (self.method == CHOSEN and (Path(self.out) / "cells").exists()):
            if not self.out.isprintable():  # tokenizers writes to no path that is not Unicode
                raise InputError("has characters that cannot be shown", "name another folder", out=self.out)
            if any(Folder(self.out).directory.iterdir()):
                raise InputError("is not empty", "name a new folder", out=self.out)

    def _check_training(self) -> list[str] | None:
        """The documents to train on; None: no fine-tuning."""
        if not self.finetune:
            for name in self.given:
                raise InputError("is for fine-tuning, give --finetune FILE with it", argument=name)
            return None
        trained_on = [Path(file).resolve() for file in self.finetune]
        if self.verify and self.text is not None and Path(self.text).resolve() in trained_on:
            raise InputError("the model is trained on it", "give another, which it has not seen", text=self.text)
        return [_read(file, "--finetune") for file in self.finetune]

    def _before_and_after(
        self, text: str | None, model: Any, tokenizer: Any, report: Any, extended: Callable[[], object], shown: Any
    ) -> "Verification":
        """Read the text with the model as it was loaded, and again extended."""
        from posenc.pretrained.answers import Answers
        from posenc.pretrained.extend import restore
        from posenc.pretrained.learned_table import has_learned_table
        from posenc.pretrained.verify import A_MINUTE, AS_LOADED, EXTENDED, verification
        from posenc.tasks.running_text import pydoc

        restore(model)
        self._answers = Answers()
        wanted = report.new_length or 2 * report.trained_length
        name = self.text or "the language reference in Python's standard library"
        lengths = report.trained_length, wanted, self.verify_tokens
        reader = verification(model, tokenizer, name, pydoc() if text is None else text, *lengths)
        if reader.stopped == A_MINUTE:
            reader.stopped += f"; --verify-tokens {wanted} reads all"
        states = [reader.truncated, EXTENDED] if reader.past_training else [EXTENDED]
        if not (reader.past_training and has_learned_table(model)):  # a table has no rows past the context length
            states.insert(0, AS_LOADED)
        for index, state in enumerate(states, 1):
            if state == EXTENDED:
                extended()
            reader.read(state, model, shown.counter(state))
            shown.line(index, len(states), f"{state}, {len(reader.ids)} tokens")
            if state != reader.truncated and not has_learned_table(model):
                if not self._answers.about:
                    speed = len(reader.ids) / max(reader.seconds[state], 1e-3)
                    self._answers.hide(tokenizer, reader.trained_length, wanted, speed)
                self._answers.ask(state, model, tokenizer)
        return reader

    def _finetuned(self, model: Any, tokenizer: Any, texts: list[str], shown: Any) -> "Finetuning":
        from posenc.pretrained.finetune import finetune

        count = shown.counter("fine-tuning")
        steps = int(self.given.get("steps", signature(finetune).parameters["steps"].default))
        last = time.perf_counter()

        def progress(step: int, loss: float) -> None:
            nonlocal last
            count(step, steps, f"fine-tuning, loss {loss:.3f}")
            now = time.perf_counter()
            if step == steps or now - last >= LINE_SECONDS:
                last = now
                shown.line(step, steps, f"fine-tuning, loss {loss:.3f}")

        return finetune(model, texts, tokenizer, **self.given, progress=progress)


AUTO_OPTIONS = {each.name for each in fields(AutoOptions)}
CHOSEN = "auto"
"""The method that measures others and takes one."""


def _read(path: str, argument: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", "not text in UTF-8")
        raise InputError(f"{argument} {path}: {problem}; give a readable text file") from None
