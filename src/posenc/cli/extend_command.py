# SPDX-License-Identifier: Apache-2.0
"""posenc extend."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from posenc.cli.common import WithModel, WithOutput
from posenc.errors import InputError
from posenc.pretrained.scratch import replacing
from posenc.spec import literal, parse_sum
from posenc_cli.answers import DONE, FAILED
from posenc_cli.arguments import How, room

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
    seed: Annotated[int | None, "of the windows, or of the documents of auto (default: 0)"] = None
    checkpoint: Annotated[
        str | None, "store the training in this folder, so that the same command continues from there", How("DIR")
    ] = None


@dataclass
class AutoOptions:
    """What `posenc.lab.evals.auto.select` takes beside a seed."""

    program: Annotated[
        Literal["python", "transformers", "vllm", "llama.cpp"] | None,
        "the program that is to run the model: methods that it cannot express are not tried (default: python, which is posenc)",
        How(flag="for"),
    ] = None
    minutes: Annotated[float | None, "for which the rounds are planned (default: 10)", How(unless=("plan",))] = None
    candidates: Annotated[
        tuple[str, ...], "methods to try (default: those of posenc eval --preset longer)", How("METHOD", names="method")
    ] = ()
    plan: Annotated[str | None, "a plan.json of another run, to repeat it", How("FILE")] = None


@dataclass(kw_only=True)
class Extend(WithModel, WithOutput):
    """Extend the context window of a pretrained model (RoPE scaling), or its image size; verify it and save it."""

    examples: ClassVar = (
        "posenc extend demo --method yarn --factor 2",
        "posenc extend my-llm --method yarn --factor 4 --out longer",
        "posenc extend my-llm --method auto --factor 2 --out best",
        "posenc extend my-vit --image-size 384 --out larger",
    )
    asks: ClassVar = True

    method: Annotated[
        str | None,
        "extension method, see below; of a vision model how tables are interpolated (default: as its source does)",
        How("METHOD", names="method"),
    ] = None
    factor: Annotated[
        float | None, "the new length over the context length", How("F", unless=("target_length", "image_size"))
    ] = None
    target_length: Annotated[int | None, "the new length in tokens", How(unless=("factor", "image_size"))] = None
    image_size: Annotated[
        str | None,
        "of a vision model: pixels of a square image, or height x width",
        How("H[xW]", unless=("factor", "target_length")),
    ] = None
    window_size: Annotated[int | None, "with --image-size: patches of the windows of Swin and Swin v2"] = None
    option: Annotated[
        tuple[str, ...],
        "an option of the method, a list as 1,1.5,2; may be given again",
        How("K=V", append=True),
    ] = ()
    text: Annotated[
        str | None,
        "text for the loss before and after (default: the language reference inside Python), or with --method fit to learn from",
        How("FILE"),
    ] = None
    verify_tokens: Annotated[int | None, "tokens of the text (default: what about a minute allows)"] = None
    verify: Annotated[bool, "measure the loss before and after"] = True
    finetune: Annotated[
        tuple[str, ...],
        "a text to train on, other than the one that verifies; may be given again",
        How("FILE", append=True),
    ] = ()
    out: Annotated[str | None, "save the model into this folder, and the JSON with it", How("DIR")] = None
    gguf: Annotated[str | None, "write the model as this new .gguf file, in float16, for llama.cpp", How("FILE")] = None

    @classmethod
    def groups(cls) -> dict[str, type]:
        return {
            "--method auto, which measures others on --text and takes the best; with --out, the same command goes on": AutoOptions,
            "fine-tuning with --finetune at the new length, before the model is verified and saved": TrainingOptions,
        }

    @classmethod
    def epilog(cls) -> str:
        from posenc.lab.evals.chosen import CHOSEN
        from posenc.pretrained.methods import METHODS

        width = max(map(len, METHODS))
        return (
            "methods:\n" + "\n".join(f"  {name:{width}}  {method.summary}" for name, method in METHODS.items()) + "\n"
            f"  {CHOSEN:{width}}  Measures the others on passkey, key-value and your text, and takes the best, or none.\n\n"
            "Methods take options after colons (yarn:beta_fast=16) or by --option, lists of numbers with commas (--option "
            "long_factor=1,1.5,2), and are joined by + (ntk+log_n). The loss on a text is measured before and after, beside that "
            "of the unmodified model on a text cut to its context length. With --out the model is saved so that plain "
            "transformers loads it, wherever that can be expressed. fit learns from the text, holds out a part of it, and is "
            "verified on the default one; --option checkpoint=DIR lets the same command go on after Ctrl-C. auto saves the model "
            "into DIR/model, beside its plan, its measurements and its choice (selection.json)."
        )

    def run(self) -> int:
        from posenc.backends.precision import HALF
        from posenc.lab.evals.chosen import CHOSEN, extend
        from posenc.pretrained.finetune import Checkpoint, prepared
        from posenc.pretrained.gguf_file import check_file, content
        from posenc.pretrained.load import AUTO, STEPS_LOST, chosen_because, widen
        from posenc.pretrained.verify import TUNED
        from posenc.report.terminal import Display

        if self.image_size is not None:
            return self._resize(self.image_size)
        if self.method is None:
            raise InputError("is required", "name one (posenc extend --help), or give --image-size", argument="method")
        if self.method == CHOSEN:
            return self._auto()
        for option in AUTO_OPTIONS & self.given.keys():
            raise InputError("is for --method auto, leave it out", argument=option)
        if self.window_size is not None:
            raise InputError("is for vision models, give --image-size with it", window_size=self.window_size)
        if self.verify_tokens is not None and self.verify_tokens < 2:
            raise InputError("must be at least 2", verify_tokens=self.verify_tokens)
        for item in self.option:
            if "=" not in item:
                raise InputError("write key=value", option=item)
        method = self.method
        options = {key: literal(value) for key, _, value in (item.partition("=") for item in self.option)}
        fits = any(part.name == "fit" for part in parse_sum(method))
        if fits and self.text is None:
            raise InputError("give --text FILE, on which the stretches are learned", method="fit")
        training = self._check_training()
        text = None if self.text is None else _read(self.text, "--text")  # before anything is loaded
        self._check_out()
        if self.gguf is not None:
            check_file(self.gguf)
        model, tokenizer = self.load()
        if tokenizer is None and (self.verify or fits or training is not None):
            raise InputError(f"{self.model}: it has no tokenizer for the text; give --no-verify, no --finetune")

        if fits:
            with Display(yes=self.yes) as shown:
                options |= {"text": text, "tokenizer": tokenizer, "progress": _fitting(shown)}
                report = extend(model, method, factor=self.factor, target_length=self.target_length, **options)
            method, options, text = report.method, {}, None  # what the fit has read does not verify it

        def extended() -> Any:
            return extend(model, method, factor=self.factor, target_length=self.target_length, **options)

        if not fits:
            report = extended()  # a mistake shows before anything is measured
            if self.gguf is not None:
                content(model, tokenizer)
        checkpoint: Checkpoint | None = None
        if training is not None:
            if "lora" not in self.given and self.dtype == AUTO and model.dtype in HALF:
                widen(model, STEPS_LOST)
            settings, texts = prepared(model, training, tokenizer, **self.given)
            if "checkpoint" in self.given:
                checkpoint = Checkpoint(self.given["checkpoint"], 1, model, texts, settings)
                checkpoint.check()
        results: dict[str, Any] = {"command": self.typed, "model": self.model, "extension": report.to_dict()}
        results["precision"] = chosen_because(model)
        printed: list[object] = [report, f"computed in {results['precision']}"]
        tuned: Finetuning | None = None
        with Display(yes=self.yes) as shown:
            name = None if fits else self.text
            reader = (
                self._before_and_after(name, text, model, tokenizer, report, extended, shown) if self.verify else None
            )
            if training is not None:
                tuned = self._finetuned(model, tokenizer, training, shown)
                if not tuned.complete:
                    then = (
                        "run the same command again to continue" if checkpoint else "the model is used with these steps"
                    )
                    steps = f"{len(tuned.losses)} of {tuned.settings['steps']} steps"
                    print(f"posenc extend: interrupted after {steps}; {then}", file=sys.stderr)
                    if checkpoint is not None:
                        return FAILED
                if reader is not None:
                    reader.read(TUNED, model, shown.counter(TUNED))
                results["finetuning"] = tuned.to_dict()
                printed.append(tuned)
        if reader is not None:
            results["verification"] = reader.to_dict()
            self.verify_tokens = len(reader.ids)  # for config.yaml: a minute's tokens are others another time
            printed.append(reader)
        self._save(model, tokenizer, self.out, results, printed)
        if self.out is not None and checkpoint is not None:
            checkpoint.remove()
        self.emit(results, "\n\n".join(map(str, printed)))
        return DONE if tuned is None or tuned.complete else FAILED

    def _auto(self) -> int:
        from posenc.lab.evals.auto import check_asked
        from posenc.lab.evals.chosen import CHOSEN, extend
        from posenc.lab.evals.plan import PLAN
        from posenc.lab.study import Interrupted
        from posenc.pretrained.gguf_file import check_file
        from posenc.report.terminal import Display

        for name in ("window_size", "option", "verify_tokens", "finetune"):
            if getattr(self, name):
                raise InputError(
                    "is for one method", "let auto choose, then give it with --method CHOICE", argument=name
                )
        for name in self.given.keys() - AUTO_OPTIONS - {"seed"}:
            raise InputError("is for fine-tuning", "let auto choose, then give it with --method CHOICE", argument=name)
        check_asked(factor=self.factor, target_length=self.target_length, **self.given)  # before anything is loaded
        text = None if self.text is None else _read(self.text, "--text")
        saved_in = None if self.out is None else Path(self.out) / "model"
        if self.out is not None and not any((Path(self.out) / name).exists() for name in (PLAN, "cells")):
            self._check_out()
        if saved_in is not None and saved_in.exists():
            raise InputError(
                "has a model already", f"name a new folder, with --plan {Path(str(self.out)) / PLAN}", out=self.out
            )
        if self.gguf is not None:
            check_file(self.gguf)
        model, tokenizer = self.load()
        with Display(yes=self.yes) as shown:
            try:
                found = extend(
                    model, CHOSEN, factor=self.factor, target_length=self.target_length, tokenizer=tokenizer, text=text,
                    directory=self.out, progress=shown, command=self.typed, **self.given,
                )  # fmt: skip
            except Interrupted as error:
                stored = f"{error or 'no cell is stored'}, run the same command again to continue"
                then = stored if self.out else "nothing is stored; give --out DIR to be able to continue"
                print(f"posenc extend: interrupted; {then}", file=sys.stderr)
                return FAILED
        results: dict[str, Any] = {"command": self.typed, "model": self.model, "selection": found.to_dict()}
        printed: list[object] = [found.text(room())]
        if found.extension is None and (self.out or self.gguf):
            printed.append("no model is written: the one that was loaded, with truncated inputs, is the choice")
        if found.extension is not None:
            self._save(model, tokenizer, saved_in, results, printed)
        return self.emit(results, "\n\n".join(map(str, printed)))

    def _save(
        self, model: Any, tokenizer: Any, folder: str | Path | None, results: dict[str, Any], printed: list[object]
    ) -> None:
        """Write the model into a folder, and where --gguf says, and report both."""
        from posenc.pretrained.export import to_hf
        from posenc.pretrained.gguf_file import to_gguf

        made: dict[str, Any] = {} if folder is None else {"saved": to_hf(model, folder, tokenizer)}
        if self.gguf is not None:
            made["gguf"] = to_gguf(model, self.gguf, tokenizer)
        results |= {name: each.to_dict() for name, each in made.items()}
        printed += made.values()

    def _resize(self, image_size: str) -> int:
        from posenc.pretrained.bars import without_bars
        from posenc.pretrained.vision.resize import resize

        for name in ("factor", "target_length", "option", "text", "verify_tokens", "finetune", "gguf"):
            if getattr(self, name):
                raise InputError("is for language models, leave it out beside --image-size", argument=name)
        self._check_training()
        sides = image_size.lower().split("x")
        if not 1 <= len(sides) <= 2 or not all(side.isdecimal() and len(side) < 10 for side in sides):
            raise InputError("write pixels, as 384 or 384x512 (height x width)", image_size=image_size)
        size = tuple(map(int, sides)) if len(sides) == 2 else int(sides[0])
        self._check_out()
        model, _ = self.load()
        report = resize(model, size, window_size=self.window_size, method=self.method, verify=self.verify)
        printed = [str(report)]
        if self.out is not None:
            with without_bars(), replacing(Path(self.out)) as made:
                model.save_pretrained(made)
            printed.append(f"saved to {self.out}: transformers.{type(model).__name__}.from_pretrained loads it")
        results = {"command": self.typed, "model": self.model, "resizing": report.to_dict()}
        return self.emit(results, "\n\n".join(printed))

    def _check_out(self) -> None:
        from posenc.lab.files import Folder

        if self.out is not None and not self.out.isprintable():  # tokenizers writes to no path that is not Unicode
            raise InputError("has characters that cannot be shown", "name another folder", out=self.out)
        if self.out is not None and any(Folder(self.out).directory.iterdir()):
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
        self,
        file: str | None,
        text: str | None,
        model: Any,
        tokenizer: Any,
        report: Any,
        extended: Callable[[], object],
        shown: Any,
    ) -> "Verification":
        """Read the text with the model as it was loaded, and again extended."""
        from posenc.pretrained.extend import restore
        from posenc.pretrained.learned_table import has_learned_table
        from posenc.pretrained.verify import A_MINUTE, AS_LOADED, EXTENDED, verification
        from posenc.tasks.running_text import pydoc

        restore(model)
        wanted = report.new_length or 2 * report.trained_length
        name = file or "the language reference in Python's standard library"
        reader = verification(model, tokenizer, name, pydoc() if text is None else text, wanted, self.verify_tokens)
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
        return reader

    def _finetuned(self, model: Any, tokenizer: Any, texts: list[str], shown: Any) -> "Finetuning":
        from posenc.pretrained.finetune import finetune

        count = shown.counter("fine-tuning")
        steps = int(self.given.get("steps", signature(finetune).parameters["steps"].default))
        started, last, first = time.perf_counter(), 0.0, None

        def progress(step: int, loss: float) -> None:
            nonlocal last, first
            first = step - 1 if first is None else first  # earlier steps are an earlier command's
            count(step, steps, f"fine-tuning, loss {loss:.3f}")
            now = time.perf_counter() - started
            if step == steps or now - last >= LINE_SECONDS:
                last = now
                shown.line(step, steps, f"fine-tuning, loss {loss:.3f}", now * (steps - step) / (step - first))

        return finetune(model, texts, tokenizer, **self.given, progress=progress)


AUTO_OPTIONS = {each.name for each in fields(AutoOptions)}


def _fitting(shown: Any) -> Callable[[int, int, float], None]:
    count = shown.counter("fitting")

    def progress(step: int, steps: int, loss: float) -> None:
        count(step, steps, f"fitting, held-out loss {loss:.4f}")
        shown.line(step, steps, f"fitting, held-out loss {loss:.4f}")

    return progress


def _read(path: str, argument: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{argument} {path}: not text in UTF-8; give a plain text file") from None
    except OSError as error:
        raise InputError(f"{argument} {path}: {error.strerror}; give a readable text file") from None
