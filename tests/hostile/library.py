"""Every public name of the library with good arguments, and what becomes of a call when one of them is bad.

`PYTHONPATH=tests python -m hostile.library [NAMES..]` prints the table of docs/reliability.md, and each call that goes wrong.
"""

import dataclasses
import math
import re
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager
from importlib import import_module
from inspect import Parameter, isclass, signature
from numbers import Real
from typing import Any, get_type_hints
from unittest import mock

import torch
from torch import Tensor

import posenc
from hostile.values import REFUSED, SAME, Bad, bad_values
from posenc import Encoding, InputError, Positions
from posenc.blocks import Cache
from posenc.encoding import PerLayer, Sum
from posenc.frequencies import Frequencies
from posenc.measuring.statistics import estimate, t_quantile, wilson
from posenc.transformer import Transformer, TransformerConfig
from posenc.vision import VisionConfig, VisionTransformer

INTERNAL = ("check_even", "table_device", "Difference", "PositionMap")
"""Helpers of other modules, and results, which nobody makes."""

ABSTRACT = ("Absolute", "Encoding")
"""Classes to inherit from, which nobody makes."""

SECONDS = 10
"""After which a call counts as one that hangs."""

ALIASES = (
    "table",
    "height",
    "num_buckets",
    "max_distance",
    "names",
    "threshold",
    "max_positions",
    "coordinates",
    "window",
    "dim",
    "base",
    "term",
)
"""What a message may call that which follows from several arguments."""

HEADS, HEAD_DIM, DIM, SEQ = 4, 8, 32, 6

GOOD: dict[str, Any] = {
    # shapes
    "dim": DIM, "num_heads": HEADS, "head_dim": HEAD_DIM, "rotary_dim": HEAD_DIM, "max_positions": 16, "rows": 16,
    "train_length": 16, "n": SEQ, "height": 2, "width": 3, "bits": 4, "num_keys": 3, "vocab_size": 11,
    # schedules
    "factor": 2.0, "base": 10000.0, "new_base": 20000.0, "original_max_positions": 16, "length": 32, "fraction": 0.5,
    "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "mscale_all_dim": 1.0, "limit": 1 << 12,
    # position maps
    "window": 4, "group": 2, "sinks": 1, "recent": 3, "shift": 4, "used": 12, "chunk": 8, "local": 2,
    # layouts
    "layout": "half", "source": "half", "target": "interleaved",
    # helpers
    "device": torch.device("cpu"), "name": "head_dim", "value": HEAD_DIM, "attention_factor": 1.0,
    # statistics
    "hits": 3.0, "count": 8.0, "freedom": 4.0,
}  # fmt: skip


@dataclasses.dataclass
class Row:
    """A callable, what makes good arguments for it, and what is done with the result before it is judged."""

    call: Callable[..., Any]
    good: Callable[[], dict[str, Any]]
    then: Callable[[Any], Any] = lambda found: found
    only: tuple[str, ...] = ()
    """The arguments that are replaced; none: all."""

    def hints(self) -> dict[str, Any]:
        """The declared type of each argument that is given by name."""
        function = self.call.__init__ if isclass(self.call) else self.call
        try:
            hints = get_type_hints(function)
        except NameError:  # types for the type checker alone
            hints = {"rank": int, "world_size": int, "layout": str}
        takes = {
            name: p
            for name, p in signature(self.call).parameters.items()
            if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        }
        return {name: hints.get(name, Any) for name in takes if not self.only or name in self.only}


def tensors() -> dict[str, Tensor]:
    """Good q, k, v."""
    made = torch.Generator().manual_seed(0)
    return {name: torch.randn(2, HEADS, SEQ, HEAD_DIM, generator=made) for name in "qkv"}


def used(encoding: Encoding) -> list[Tensor]:
    """What an encoding does to a model's input and to attention."""
    positions = Positions.arange(SEQ, causal=True)
    if encoding.__class__.__name__ in (
        "AxialRotary",
        "GridALiBi",
        "MixedRotary",
        "GridSinusoidal",
        "GridTable",
        "LogWindow",
        "WindowTable",
    ):
        positions = Positions.grid(2, 3)
    if encoding.__class__.__name__ == "ClassWindowTable":
        positions = Positions.grid(2, 3, prefix=1)
    n = positions.num_queries
    dim, heads, width = (
        getattr(encoding, name, good) or good
        for name, good in (("dim", DIM), ("num_heads", HEADS), ("head_dim", HEAD_DIM))
    )
    made = torch.Generator().manual_seed(0)
    x = torch.randn(1, n, dim, generator=made)
    kv_heads = getattr(encoding, "num_kv_heads", None) or heads
    q, k, v = (torch.randn(1, h, n, width, generator=made) for h in (heads, kv_heads, kv_heads))
    linear = torch.nn.Linear(dim, heads * width, bias=False), torch.nn.Linear(dim, kv_heads * width, bias=False)
    encoding.share([linear])
    return [encoding.embed(x, positions), posenc.attention(q, k, v, encoding, positions)]


def rows() -> dict[str, Row]:
    """Every public callable by name."""
    found: dict[str, Row] = {}
    for module in ("posenc.functional", "posenc.frequencies", "posenc.position_maps"):
        for name, function in public(module).items():
            if name in INTERNAL:
                continue
            found[f"{module.removeprefix('posenc.')}.{name}"] = Row(function, defaults(function))
    for name in posenc.encodings.__all__:
        cls = getattr(posenc, name)
        if isclass(cls) and name not in ABSTRACT:
            found[name] = Row(cls, defaults(cls), str if name == "EnhancedMaskDecoder" else used)
    found |= special()
    return found


def special() -> dict[str, Row]:
    """Rows whose arguments are more than their names say."""
    F, rope = posenc.functional, lambda: posenc.Rotary(HEAD_DIM)
    where = lambda: Positions.arange(SEQ, causal=True)  # noqa: E731
    angles = torch.linspace(0, 1, SEQ * HEAD_DIM // 2).view(SEQ, HEAD_DIM // 2)
    ids = torch.arange(SEQ)
    frequencies = lambda: posenc.frequencies.default(HEAD_DIM)  # noqa: E731
    config = TransformerConfig(11, DIM, 1, HEADS)
    model = lambda: Transformer(config, posenc.Rotary(DIM // HEADS)).eval()  # noqa: E731
    pictured = VisionConfig(5, 2, channels=1, dim=DIM, num_layers=1, num_heads=HEADS, class_token=True)
    seeing = lambda: VisionTransformer(pictured, posenc.AxialRotary(DIM // HEADS)).eval()  # noqa: E731
    packed = Positions.packed([2, 4])
    vector = torch.arange(5.0)
    return {
        "attention": Row(posenc.attention, lambda: {**tensors(), "encoding": rope(), "positions": where(), "causal": True, "scale": 1.0, "sink": 0.0, "dropout_p": 0.0}),
        "explain": Row(posenc.explain, lambda: {**tensors(), "encoding": rope(), "positions": where(), "causal": True, "scale": 1.0, "sink": 0.0, "dropout_p": 0.0}),
        "linear_attention": Row(posenc.linear_attention, lambda: {**tensors(), "encoding": rope(), "positions": where()}),
        "re_rotate": Row(posenc.re_rotate, lambda: {"keys": tensors()["k"], "encoding": rope(), "positions": ids, "to": ids + 4, "into": rope()}),
        "convert_layout": Row(posenc.convert_layout, lambda: {"weights": torch.randn(DIM, 3), "head_dim": HEAD_DIM, "source": "half", "target": "interleaved"}),
        "cite": Row(posenc.cite, lambda: {"encoding": "rope"}),
        "create": Row(posenc.create, lambda: {"name": "rope", "head_dim": HEAD_DIM, "dim": DIM, "num_heads": HEADS, "grid": (2, 3)}, used),
        "from_spec": Row(posenc.from_spec, lambda: {"spec": {"name": "rope", "head_dim": HEAD_DIM}}, used),
        "Mapped": Row(posenc.Mapped, lambda: {"encoding": rope(), "map": posenc.position_maps.rerope(2)}, used),
        "Sum": Row(lambda first, second: Sum(first, second), lambda: {"first": rope(), "second": posenc.NoPE()}, used),
        "PerLayer": Row(lambda first, second: PerLayer(first, second), lambda: {"first": rope(), "second": posenc.NoPE()}, used),
        "functional.compile_rotary": Row(F.compile_rotary, lambda: {"enable": False}, only=()),
        "functional.rotary": Row(F.rotary, lambda: {"x": tensors()["q"], "cos": angles.cos(), "sin": angles.sin()}),
        "functional.sinusoidal": Row(F.sinusoidal, lambda: {"positions": ids, "dim": DIM}),
        "functional.sinusoidal_from": Row(F.sinusoidal_from, lambda: {"positions": ids, "frequencies": F.frequency_curve(DIM), "layout": "concat"}),
        "functional.shift_matrix": Row(F.shift_matrix, lambda: {"shift": 3.0, "dim": DIM}),
        "functional.binary_digits": Row(F.binary_digits, lambda: {"positions": ids, "bits": 4}),
        "functional.turning": Row(F.turning, lambda: {"angles": vector, "first": ids[:5] * 2, "second": ids[:5] * 2 + 1, "dim": DIM}),
        "functional.t5_bucket": Row(F.t5_bucket, lambda: {"relative_position": ids - 3}),
        "functional.deberta_bucket": Row(F.deberta_bucket, lambda: {"distance": ids - 3}),
        "frequencies.create": Row(posenc.frequencies.create, lambda: {"schedule": {"name": "ntk", "factor": 2.0}, "head_dim": HEAD_DIM, "base": 1e4}),
        "frequencies.parse": Row(posenc.frequencies.parse, lambda: {"text": "yarn:factor=2"}),
        "frequencies.as_text": Row(posenc.frequencies.as_text, lambda: {"schedule": {"name": "ntk", "factor": 2.0}}),
        "frequencies.complete": Row(posenc.frequencies.complete, lambda: {"schedule": {"name": "ntk"}}),
        "frequencies.diff": Row(posenc.frequencies.diff, lambda: {"first": "ntk", "second": "yarn"}),
        "frequencies.options_of": Row(posenc.frequencies.options_of, lambda: {"name": "yarn"}),
        "frequencies.explicit": Row(posenc.frequencies.explicit, lambda: {"head_dim": HEAD_DIM, "stretch": [1.0, 1.0, 2.0, 2.0]}),
        "frequencies.fastest": Row(posenc.frequencies.fastest, lambda: {"frequencies": frequencies(), "fraction": 0.5}),
        "frequencies.stretch": Row(posenc.frequencies.stretch, lambda: {"frequencies": frequencies(), "head_dim": HEAD_DIM}),
        "frequencies.wavelengths": Row(posenc.frequencies.wavelengths, lambda: {"frequencies": frequencies()}),
        "frequencies.tapered": Row(posenc.frequencies.tapered, lambda: {"head_dim": HEAD_DIM, "pairs": 2}),
        "frequencies.Frequencies": Row(Frequencies, lambda: {"inv_freq": torch.ones(4, dtype=torch.float64), "attention_factor": 1.0}),
        "position_maps.create": Row(posenc.position_maps.create, lambda: {"spec": {"name": "rerope", "window": 4}}),
        "Positions.arange": Row(Positions.arange, lambda: {"n": SEQ, "offset": 2}),
        "Positions.from_ids": Row(Positions.from_ids, lambda: {"position_ids": ids, "key_ids": ids}),
        "Positions.from_mask": Row(Positions.from_mask, lambda: {"attention_mask": torch.ones(2, SEQ, dtype=torch.long), "num_queries": 2}),
        "Positions.packed": Row(Positions.packed, lambda: {"lengths": [2, 4]}),
        "Positions.packed of cu_seqlens": Row(lambda cu_seqlens: Positions.packed(cu_seqlens=cu_seqlens), lambda: {"cu_seqlens": torch.tensor([0, 2, 6])}),
        "Positions.packed of document_ids": Row(lambda document_ids: Positions.packed(document_ids=document_ids), lambda: {"document_ids": torch.tensor([0, 0, 1, 1])}),
        "Positions.grid": Row(Positions.grid, lambda: {"height": 2, "width": 3, "frames": 2, "prefix": 1}),
        "Positions.grids": Row(Positions.grids, lambda: {"sizes": [(2, 3), (1, 2)], "prefix": 1, "padded": True}),
        "Positions.mixed": Row(Positions.mixed, lambda: {"parts": [2, (2, 3), 1], "num_queries": 2}),
        "Positions.take": Row(packed.take, lambda: {"index": torch.tensor([3, 0])}),
        "Positions.cross": Row(Positions.cross, lambda: {"queries": where(), "keys": where()}),
        "Positions.with_causal": Row(packed.with_causal, lambda: {"causal": True}),
        "Positions.mask": Row(packed.mask, lambda: {"first": 1, "end": 3}),
        "Positions.keys": Row(packed.keys, lambda: {"first": 1, "end": 3}),
        "Positions.coordinates": Row(packed.coordinates, lambda: {"axes": 2, "user": "a test"}, only=("axes",)),
        "Positions.shard": Row(Positions.arange(8).shard, lambda: {"rank": 1, "world_size": 2, "layout": "zigzag"}, only=("rank", "world_size", "layout")),
        "distributed.shard": Row(posenc.distributed.shard, lambda: {"x": torch.randn(2, 8, 3), "positions": Positions.arange(8).shard(0, 2), "dim": 1}),
        "distributed.gather": Row(posenc.distributed.gather, lambda: {"x": torch.randn(2, 8, 3), "positions": Positions.arange(8).shard(0, 1), "dim": 1}),
        "frequencies.longrope": Row(posenc.frequencies.longrope, lambda: {"head_dim": HEAD_DIM, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_positions": 16, "length": 32, "factor": 2.0}),
        "Positions.to": Row(packed.to, lambda: {"device": "cpu"}),
        "statistics.estimate": Row(estimate, lambda: {"values": torch.randn(2, 5)}),
        "statistics.wilson": Row(wilson, defaults(wilson)),
        "statistics.t_quantile": Row(t_quantile, defaults(t_quantile)),
        "TransformerConfig": Row(TransformerConfig, lambda: {"vocab_size": 11, "dim": DIM, "num_layers": 1, "num_heads": HEADS}, lambda c: Transformer(c, posenc.NoPE())(torch.zeros(1, 2, dtype=torch.long))),
        "Transformer": Row(Transformer, lambda: {"config": config, "encoding": posenc.Rotary(DIM // HEADS)}),
        "Transformer.forward": Row(lambda tokens, positions, cache: model()(tokens, positions, cache), lambda: {"tokens": ids[None], "positions": where(), "cache": Cache()}),
        "Transformer.generate": Row(model().generate, lambda: {"tokens": ids[None], "new_tokens": 2, "attention_mask": torch.ones(1, SEQ, dtype=torch.long)}),
        "VisionConfig": Row(VisionConfig, lambda: {"num_classes": 5, "patch_size": 2, "channels": 1, "dim": DIM, "num_layers": 1, "num_heads": HEADS, "registers": 1, "class_token": True}, lambda c: VisionTransformer(c, posenc.NoPE())(torch.zeros(1, c.channels, 2 * c.patch_size, c.patch_size) if c.tubelet_size is None else torch.zeros(1, c.channels, c.tubelet_size, c.patch_size, c.patch_size))),
        "VisionTransformer": Row(VisionTransformer, lambda: {"config": pictured, "encoding": posenc.AxialRotary(DIM // HEADS)}),
        "VisionTransformer.forward": Row(lambda images, positions, keep: seeing()(images, positions, keep), lambda: {"images": torch.randn(2, 1, 4, 6), "positions": Positions.grid(2, 3, prefix=1), "keep": torch.tensor([4, 1])}),
        "Cache": Row(Cache, lambda: {"rotated": True}),
    }  # fmt: skip


def defaults(function: Callable[..., Any]) -> Callable[[], dict[str, Any]]:
    """The arguments without a default, by what their names mean everywhere."""
    needed = [p.name for p in signature(function).parameters.values() if p.default is p.empty]
    return lambda: {name: GOOD[name] for name in needed if name not in ("args", "kwargs")}


def public(module: str) -> dict[str, Callable[..., Any]]:
    """The functions and classes that a module offers."""
    names = getattr(import_module(module), "__all__", None) or [n for n in vars(import_module(module)) if n[0] != "_"]
    found = {name: getattr(import_module(module), name) for name in names}
    return {
        name: value
        for name, value in found.items()
        if callable(value)
        and (getattr(value, "__module__", None) or "").startswith(module.rpartition(".")[0] or module)
        and (hasattr(import_module(module), "__all__") or value.__module__ in (module, "posenc.rotation"))
    }


class Hangs(BaseException):
    """A call that took too long."""


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(row: Row, arguments: dict[str, Any], bad: Mapping[str, Bad], seen: Any = None) -> tuple[str, str]:
    """What a call with these bad arguments comes to: ("result" | "refused" | "wrong", why)."""
    given = arguments | {name: b.value for name, b in bad.items()}
    try:
        with bounded(SECONDS):
            result = outcome_of(row, given)
    except InputError as error:
        if not named(str(error), bad, arguments):
            return "wrong", f"unnamed: {error}"
        if any(b.expected == SAME for b in bad.values()) and len(bad) == 1:
            return "wrong", f"refused: {error}"
        return "refused", str(error)
    except Hangs:
        return "wrong", "hangs"
    except (MemoryError, RuntimeError) as error:  # of Python and torch, passed through as they are
        full = isinstance(error, MemoryError) or re.search("allocate|memory|size calculation overflowed", str(error))
        return ("refused" if full else "wrong"), f"{type(error).__name__}: {error}"
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"
    for b in bad.values():
        if b.expected == REFUSED:
            return "wrong", "not refused"
    if len(bad) == 1 and next(iter(bad.values())).expected == SAME:
        same = all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
            for a, b in zip(leaves(seen), leaves(result), strict=True)
        )
        return ("result", "") if same else ("wrong", "another result")
    if all(finite(b.value) for b in bad.values()) and not all(finite(x) for x in leaves(result)):
        return "wrong", "not finite"
    return "result", ""


def named(message: str, bad: Mapping[str, Bad], arguments: Mapping[str, Any]) -> bool:
    """Whether a refusal names an argument that is bad, quotes its value, or names one that it does not go with."""
    told = message.replace("-", "_")
    if any(re.search(rf"(?<![a-z0-9]){name}", told) or repr(b.value)[:20] in message for name, b in bad.items()):
        return True
    if any(isinstance(b.value, str) and b.value.partition(":")[0] in message for b in bad.values()):
        return True
    parts = [v for b in bad.values() if isinstance(b.value, Mapping) for v in (b.value.get("name"),)]
    related = any(isinstance(b.value, (Tensor, Positions, Real, Mapping)) for b in bad.values())
    others = [*arguments, *ALIASES] if related else []
    return any(re.search(rf"\b{name}", told) for name in others) or any(repr(part) in message for part in parts)


def leaves(found: Any) -> list[Tensor]:
    """The tensors of a result."""
    if isinstance(found, Tensor):
        return [found.detach()]
    if isinstance(found, Mapping):
        return [x for value in found.values() for x in leaves(value)]
    if isinstance(found, (list, tuple)):
        return [x for value in found for x in leaves(value)]
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        return [x for f in dataclasses.fields(found) if f.name != "every_key" for x in leaves(getattr(found, f.name))]
    if isinstance(found, float):
        return [torch.tensor(found, dtype=torch.float64)]
    return []


def finite(value: Any) -> bool:
    """Whether there is no NaN in a value, and no infinity that a number of it is."""
    if isinstance(value, Tensor):
        return value.device.type == "meta" or value.is_sparse or bool(value.isfinite().all())
    if isinstance(value, (list, tuple)):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def cases(row: Row) -> Iterator[tuple[str, Bad]]:
    """Every argument with each of its bad values."""
    arguments = good_arguments(row)
    for name, hint in row.hints().items():
        for bad in bad_values(hint, arguments.get(name)):
            yield name, bad


def tried(row: Row, chosen: Iterable[tuple[str, Bad]]) -> Iterator[tuple[str, Bad, str, str]]:
    """One argument at a time replaced by a bad value: (argument, value, outcome, why)."""
    seen = outcome_of(row, good_arguments(row))
    for name, bad in chosen:
        yield name, bad, *outcome(row, good_arguments(row), {name: bad}, seen)


def good_arguments(row: Row) -> dict[str, Any]:
    """The same ones each time."""
    torch.manual_seed(0)
    return row.good()


def outcome_of(row: Row, arguments: dict[str, Any]) -> Any:
    """What is judged. No hub is asked, and what a call warns of is no part of it."""
    torch.manual_seed(0)
    with mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return row.then(row.call(**arguments))


def faults(row: Row, chosen: Iterable[tuple[str, Bad]]) -> dict[str, str]:
    """What goes wrong, by argument and value."""
    return {f"{name}={bad.what}": why for name, bad, found, why in tried(row, chosen) if found == "wrong"}


def every() -> dict[str, Row]:
    """All rows."""
    from hostile import library_models

    return rows() | library_models.rows()


def table(rows: Mapping[str, Row]) -> tuple[list[str], int]:
    """A line for each group of callables, and how often something was wrong."""
    counts: dict[str, Counter[str]] = {}
    members: Counter[str] = Counter()
    for name, row in rows.items():
        group = name.rpartition(".")[0] or ("encodings" if name in posenc.encodings.__all__ else "other functions")
        members[group] += 1
        for argument, bad, found, why in tried(row, cases(row)):
            counts.setdefault(group, Counter())[found] += 1
            if found == "wrong":
                print(f"{name}({argument}={bad.what}): {why[:160]!r}", file=sys.stderr)
    lines = [
        f"| {group} | {members[group]} | {c.total()} | {c['result']} | {c['refused']} | {c['wrong']} |"
        for group, c in sorted(counts.items())
    ]
    both = sum(counts.values(), Counter())
    lines.append(
        f"| all | {members.total()} | {both.total()} | {both['result']} | {both['refused']} | {both['wrong']} |"
    )
    head = ["| callables | how many | calls | right results | refused | wrong |", "|---|---|---|---|---|---|"]
    return head + lines, both["wrong"]


if __name__ == "__main__":
    picked = {name: row for name, row in every().items() if name.startswith(tuple(sys.argv[1:]) or ("",))}
    with tempfile.TemporaryDirectory() as elsewhere, chdir(elsewhere):  # some calls are right, and write
        lines, wrong = table(picked)
    print("\n".join(lines))
    sys.exit(int(bool(wrong)))
