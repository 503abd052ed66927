"""posenc extend."""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from posenc.cli.common import TableFormatter, add_model, add_output, emit, read_model
from posenc.errors import InputError
from posenc.texts import literal

if TYPE_CHECKING:
    from posenc.pretrained.verify import Verification


def add_extend(parser: argparse.ArgumentParser) -> None:
    from posenc.pretrained.methods import METHODS

    width = max(map(len, METHODS))
    parser.formatter_class = TableFormatter
    parser.epilog = (
        "methods:\n" + "\n".join(f"  {name:{width}}  {method.summary}" for name, method in METHODS.items()) + "\n\n"
        "Methods take options after colons (yarn:beta_fast=16) and are joined by + (ntk+log_n). The loss on a text is\n"
        "measured before and after, beside that of the model as it was on a text cut to its trained length. With --out\n"
        "the model is saved so that plain transformers loads it, wherever that can be expressed."
    )
    add_model(parser)
    add = parser.add_argument
    add("--method", required=True, metavar="M", help="how (below)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--factor", type=float, metavar="F", help="the new length over the trained one")
    length.add_argument("--target-length", type=int, metavar="N", help="the new length in tokens")
    add("--option", action="append", default=[], metavar="K=V", help="an option of the method; may be given again")
    add("--text", metavar="FILE", help="what is read to verify (default: the language reference inside Python)")
    add("--verify-tokens", type=int, metavar="N", help="tokens of it (default: what about a minute allows)")
    add("--verify", action=argparse.BooleanOptionalAction, default=True, help="measure the loss before and after")
    add_output(parser, "save the model into this folder, and the JSON with it")
    parser.set_defaults(run=run_extend)


def run_extend(options: argparse.Namespace, command: str) -> int:
    from posenc.files import Folder
    from posenc.pretrained.export import to_hf
    from posenc.pretrained.extend import extend, restore

    given = _options(options.option)
    if options.verify_tokens is not None and options.verify_tokens < 2:
        raise InputError(f"--verify-tokens {options.verify_tokens}: must be at least 2")
    if options.out is not None and any(Folder(options.out).directory.iterdir()):
        raise InputError(f"--out {options.out}: has something in it; name a new folder")
    model, tokenizer = read_model(options)
    if tokenizer is None and options.verify:
        raise InputError(f"{options.model}: it has no tokenizer to read a text with: --no-verify goes without")

    def extended() -> Any:
        lengths = {"factor": options.factor, "target_length": options.target_length}
        return extend(model, options.method, **lengths, **given)

    report = extended()  # a mistake shows before anything is measured
    results: dict[str, Any] = {"command": command, "model": options.model, "extension": report.to_dict()}
    told = [str(report)]
    if options.verify:
        restore(model)
        found = _verify(options, model, tokenizer, report, extended)
        results["verification"] = found.to_dict()
        told.append(str(found))
    if options.out is not None:
        saved = to_hf(model, options.out, tokenizer)
        results["saved"] = saved.to_dict()
        told.append(str(saved))
    return emit(options, results, "\n\n".join(told))


def _options(written: Sequence[str]) -> dict[str, Any]:
    for item in written:
        if not item.partition("=")[1]:
            raise InputError(f"--option {item}: write key=value")
    return {key: literal(value) for key, _, value in (item.partition("=") for item in written)}


def _verify(
    options: argparse.Namespace, model: Any, tokenizer: Any, report: Any, extended: Callable[[], object]
) -> "Verification":
    from posenc.pretrained.verify import AS_LOADED, EXTENDED, verifier
    from posenc.report.terminal import ShowsProgress

    wanted = report.new_length or 2 * report.trained_length
    reader = verifier(model, tokenizer, options.text, wanted, options.verify_tokens)
    arms = [AS_LOADED, *([reader.cut] if reader.past_training else []), EXTENDED]
    with ShowsProgress(options.out or ".") as shown:
        for index, arm in enumerate(arms):
            if arm == EXTENDED:
                extended()
            reader.read(arm, model, shown.counter(arm))
            shown.line(index + 1, len(arms), f"{arm}, {len(reader.ids)} tokens")
    return reader.result()
