# SPDX-License-Identifier: Apache-2.0
"""Codes: a function from positions (or distances) to vectors, read from encodings, functions, tables and models.

Of an encoding: its vectors of positions, else what its rotation makes of a constant vector, else its bias of every distance.
All of it follows from the hooks of `Encoding`; no class of encoding is known here but `Mapped`, which wraps any other.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from posenc.attention import Call, prepare
from posenc.bias import dense_sum
from posenc.conformance.fixtures import seeded
from posenc.encoding import Encoding, Sum, gates_of
from posenc.encodings import Mapped, create
from posenc.encodings.rotary import Rotary
from posenc.encodings.shared import key_angles
from posenc.errors import InputError, check_integers
from posenc.functional import Layout, turning
from posenc.lab.messages import first_line, located
from posenc.lab.transformer import Transformer
from posenc.positions import Positions
from posenc.pretrained.attach import RotaryModule, attached
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.learned_table import TABLES, has_learned_table, rows_of_table
from posenc.pretrained.models import decoder_of, model_structure, unwrap

CHUNK = 8192
"""Positions computed at once."""
SEARCH = 100_000
"""How far a search for two equal codes goes by default."""


class HiddenKeys(InputError):
    """A distance has no code because the encoding hides its keys. distance: the nearest such."""

    def __init__(self, name: str, distance: int) -> None:
        super().__init__(f"{name}: it hides keys at distance {distance}; ask for fewer")
        self.distance = distance


@dataclass(frozen=True, eq=False)
class Waves:
    """Codes whose channels rotate in pairs: from one position to the next (first, second) rotates by `frequencies` radians.

    frequencies: (pairs,) float64. first, second: (pairs,) channels. Channels in no pair are constant.
    """

    frequencies: Tensor
    first: Tensor
    second: Tensor

    def matrix(self, shift: float, dim: int) -> Tensor:
        """The (dim, dim) float64 matrix M with M p(t) = p(t + shift) for every t."""
        return turning(shift * self.frequencies, self.first, self.second, dim)


@dataclass(frozen=True, eq=False)
class Codes:
    """A vector per position, or per distance: call it with (n,) positions for (n, dim) float64 vectors on the CPU.

    Raises, when called:
        InputError: positions past the limit; codes that are not (n, dim), not finite, too large to be squared, or different
            in a second call; a function that fails.
    """

    name: str
    """For people"""
    function: Callable[[Tensor], Any]
    of: Literal["position", "distance"] = "position"
    """What a vector belongs to; an encoding that adds to the scores has none per position, but one number per head for every distance"""
    limit: int | None = None
    """Positions 0 .. limit - 1 are defined; None: all"""
    waves: Waves | None = None
    """Its frequencies; None: unknown"""
    module: nn.Module | None = None
    """What it is read from, to train or not"""
    needs_length: bool = False
    """A code depends on how many positions are asked for together"""
    dim: int | None = None
    """Width, where it is known"""
    search: int = SEARCH
    """How far a search goes by default"""
    ends: str = ""
    """Why only those; "" for a table"""

    def __call__(self, positions: Tensor) -> Tensor:
        with seeded():  # a function's noise must not advance the caller's generator
            codes, again = self.read(positions), self.read(positions)
        if not torch.equal(codes, again):
            raise InputError(
                f"gave two different codes for the same {self.of}s",
                "seed it, or turn off its noise (a module's by .eval())",
                argument=self.name,
            )
        return codes

    @torch.no_grad()
    def read(self, positions: Tensor) -> Tensor:
        """One call, checked, but not for being deterministic."""
        count = len(positions)
        if positions.dim() not in (1, 2) or not count:
            raise InputError(f"positions of shape {tuple(positions.shape)}: pass (n,), or (n, axes) on a grid")
        if self.limit is not None and positions.dim() == 1:
            low, high = positions.min().item(), positions.max().item()
            if low < 0 or high >= self.limit:
                raise InputError(
                    f"positions from {low:g} to {high:g}: {self.name} has codes for 0 .. {self.limit - 1} only"
                )
        try:
            codes = torch.as_tensor(self.function(positions.clone()))
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            raise InputError(f"failed for {count} {self.of}s: {located(error)}", argument=self.name) from error
        shape = tuple(codes.shape)
        if not shape or shape != (count, self.dim or shape[-1]) or not shape[-1] or codes.is_complex():
            hint = "; return codes[0], without a batch" if shape[:2] == (1, count) else ""
            raise InputError(
                f"gave {shape} of {codes.dtype} for {count} positions; must give real (n, {self.dim or 'dim'}), a "
                f"row each{hint}",
                argument=self.name,
            )
        codes = codes.detach().to("cpu", torch.float64)
        valid = codes.square().sum(-1).isfinite()
        if not bool(valid.all()):
            first = positions[int((~valid).int().argmax())].tolist()
            raise InputError(f"the code of {self.of} {first} is not finite, or its square is not", argument=self.name)
        return codes


def in_chunks(codes: Codes, count: int) -> Callable[[Tensor], Tensor]:
    """The codes of any of the positions 0 .. count-1 of one text, a row each: read as asked for, or all at once where they
    depend on each other."""
    if not codes.needs_length:
        return codes
    every = codes(torch.arange(count))
    return lambda positions: every[positions.long()]


def defined_until(codes: Codes, start: int, end: int) -> tuple[int, str]:
    """The first of the positions start .. end-1 without a code (end: all have one), and why, "" where all have one."""
    last = end if codes.limit is None else min(end, codes.limit)
    refusal = "" if last == end else codes.ends or f"it is made for {last}"
    step = last - start if codes.needs_length else CHUNK
    while start < last:
        high = min(start + step, last)
        try:
            codes(torch.arange(high) if codes.needs_length else torch.arange(start, high))
            start = high
        except InputError as error:  # the first without a code is below high: look half as far ahead
            refusal = first_line(error.__cause__ or error).rstrip(".")
            last, step = high - 1, max(1, (high - start) // 2)
    return start, refusal


def positions_of(codes: Codes, length: int, least: int = 2, argument: str = "length") -> Tensor:
    """0 .. length-1, where the codes are defined.

    Raises:
        InputError: fewer than the least, or past the limit.
    """
    check_integers(least, **{argument: length})
    if codes.limit is not None and length > codes.limit:
        raise InputError(
            f"{codes.name} has codes for {codes.limit} {codes.of}s, at least {least} are needed",
            argument=argument,
            value=length,
        )
    return torch.arange(length)


SHAPE: Any = {"dim": 64, "num_heads": 4, "head_dim": 64, "num_layers": 1, "max_positions": 512, "causal": True}
"""The model that an encoding given by name is made for by default."""
HEAD_DIM = 64
"""Width of a head where the encoding takes any."""
SEQUENTIAL = 2048
"""Positions searched by default where a code takes computing those of all positions before it."""


def make(text: str, **shape: Any) -> Encoding:
    """The encoding of a text for a model of that shape, drawn from a fixed seed."""
    with seeded():
        return create(text, **{**SHAPE, **shape})


def codes_of(subject: Any, *, name: str | None = None, **shape: Any) -> Codes:
    """The codes of a subject; where layers differ, those of the first.

    Args:
        subject: an encoding, or its text ("rope:rope_theta=500", made for `shape`, see SHAPE); a function or a module
            from (n,) positions to (n, dim) vectors; a table (n, dim), as a tensor, an array or nn.Embedding; a
            transformers model with a learned table or a rotation, or a posenc Transformer.
            Of an encoding: its vectors of positions (its method `position_codes`), or what it adds to the input; else what
            its rotation makes of a query of ones in the first head; else its bias of every distance between content of
            ones, a number per head. Codes of a position map are rotations by the mapped distance.
        name: for people.
        shape: of the model, for a text; for an encoding the sizes that it does not have as attributes num_heads,
            num_kv_heads, head_dim or dim; for a function `dim`, the width that it must give.

    Raises:
        InputError: a subject without codes, with the reason, or a shape for a subject that has another.
    """
    if isinstance(subject, Codes):
        return subject
    if isinstance(subject, str):
        return encoding_codes(make(subject, **shape).eval(), name or subject)
    sized = isinstance(subject, (Tensor, nn.Embedding, Transformer)) or hasattr(subject, "config")
    known = set(SHAPE) if isinstance(subject, Encoding) else set() if sized else {"dim"}
    if set(shape) - known:
        raise InputError(
            f"fixed for a {type(subject).__name__}",
            "leave it out (only encodings and their names take it)",
            argument=", ".join(sorted(set(shape) - known)),
        )
    if isinstance(subject, Encoding):
        return encoding_codes(subject, name or subject.known_as, shape)
    if isinstance(subject, nn.Embedding):
        return _table_codes(subject.weight, name or "table")
    if isinstance(subject, Tensor) or type(subject).__module__ == "numpy":
        return _table_codes(torch.as_tensor(subject), name or "table")
    if isinstance(subject, Transformer):
        return encoding_codes(subject.encoding, name or subject.encoding.known_as)
    if hasattr(subject, "config"):
        return _pretrained_codes(subject, name)
    name = name or str(getattr(subject, "__name__", type(subject).__name__))
    if isinstance(subject, nn.Module):
        device = device_of(subject)
        return Codes(name, lambda at: subject(at.to(device)), module=subject, dim=shape.get("dim"))
    if callable(subject):
        return Codes(name, subject, dim=shape.get("dim"))
    raise InputError(
        f"a {type(subject).__name__} has no codes", "pass an encoding, a function or a table", argument="subject"
    )


def _table_codes(table: Tensor, name: str, module: nn.Module | None = None) -> Codes:
    """The rows of a table (n, dim), one per position."""
    if table.dim() != 2 or not table.numel() or not table.is_floating_point():
        raise InputError(
            f"{name} of shape {tuple(table.shape)} in {table.dtype}: pass floating-point numbers (n, dim), a row per position, "
            "without a batch"
        )

    def rows(positions: Tensor) -> Tensor:
        if bool((positions != positions.floor()).any()):
            raise InputError("a table has rows for integer positions only", "round them", argument=name)
        return table.detach()[positions.long().to(table.device)]

    return Codes(name, rows, limit=len(table), module=module)


# ---------------------------------------------------------------- sizes


@dataclass(frozen=True)
class Sizes:
    """Sizes of queries, keys and the input. dim: None where neither the encoding nor the caller gives it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dim: int | None


def parts_of(encoding: nn.Module) -> list[Encoding]:
    """All encodings inside a module, the module first if it is one."""
    return [part for part in encoding.modules() if isinstance(part, Encoding)]


def size_of(encoding: Encoding, name: str) -> int | None:
    """The attribute of that name, of the encoding or of the first of its parts that has it."""
    sizes = (getattr(part, name, None) for part in parts_of(encoding))
    return next((size for size in sizes if size is not None), None)


def sizes_of(encoding: Encoding, given: Mapping[str, int]) -> Sizes:
    """Its attributes num_heads, num_kv_heads, head_dim and dim; those it lacks are as given by the caller; else there is a
    head for each of its key heads, of width `HEAD_DIM`.

    Raises:
        InputError: a size that contradicts an attribute, or heads that are no multiple of the key heads.
    """
    sizes: dict[str, int | None] = {}
    for name in ("num_heads", "num_kv_heads", "head_dim", "dim"):
        attribute, other = size_of(encoding, name), given.get(name)
        if None not in (attribute, other) and attribute != other:
            raise InputError(
                f"{encoding.known_as} was made with {name}={attribute}", "leave it out", argument=name, value=other
            )
        sizes[name] = other if attribute is None else attribute
    heads = sizes["num_heads"] or sizes["num_kv_heads"] or 1
    groups = sizes["num_kv_heads"] or heads
    if heads % groups:
        raise InputError(f"must be a multiple of the num_kv_heads={groups} of {encoding.known_as}", num_heads=heads)
    return Sizes(heads, groups, sizes["head_dim"] or HEAD_DIM, sizes["dim"])


@torch.no_grad()
def needs_causal(encoding: Encoding, sizes: Sizes) -> bool:
    """Whether no query may see later keys: the encoding declares it, or accepts a causal text and no other."""
    q = torch.ones(1, sizes.num_heads, 2, sizes.head_dim, dtype=torch.float64, device=device_of(encoding))
    k = q[:, : sizes.num_kv_heads]

    def accepts(causal: bool) -> bool:
        try:
            gates = gates_of(encoding, repeated(q[:, 0], sizes.dim))
            at = Positions.arange(2, causal=causal)
            prepare(Call(q, k, k, encoding, at, gates=gates))
        except Exception:  # a user's encoding may refuse by any exception
            return False
        return True

    return encoding.causal_only or (not accepts(False) and accepts(True))


def repeated(x: Tensor, dim: int | None) -> Tensor:
    """Tokens (..., width) as the input of a layer that is dim wide: their channels, again and again."""
    width = x.shape[-1]
    return x if dim is None else x.repeat(*[1] * (x.dim() - 1), -(-dim // width))[..., :dim]


def refuse_gates(parts: Iterable[Encoding], name: str) -> None:
    """Refuse to read one code per position or distance from an encoding that makes it of the text."""
    if any("gates" in part.sites() for part in parts):
        raise InputError(
            "what it does depends on the content of the text (gates): it has no code per position or distance",
            argument=name,
        )


def device_of(module: nn.Module) -> torch.device:
    tensor = next(chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


# ---------------------------------------------------------------- encodings


def encoding_codes(encoding: Encoding, name: str, given: Mapping[str, int] = MappingProxyType({})) -> Codes:
    """See `codes_of`. given: sizes that the encoding does not have as attributes."""
    parts = _acting(encoding)
    for reader in (_input_codes, _rotation_codes, _bias_codes):
        codes = reader(encoding, parts, name, given)
        if codes is not None:
            return codes
    sites = sorted({at for part in parts for at in part.sites()})
    raise InputError(
        f"it has no code per position or distance; in layer 0 it acts on {', '.join(sites) or 'nothing'}", argument=name
    )


def _acting(encoding: Encoding) -> list[Encoding]:
    """What acts in the first layer: the terms of sums, and the encoding whose turn it is."""
    acting = encoding.acting_in(0).part
    return [part for term in acting for part in _acting(term)] if isinstance(acting, Sum) else [acting]


def position_codes(encoding: Encoding, positions: Positions) -> Tensor | None:
    """The vector of each query's position, (batch or 1, num_queries, channels), of an encoding that makes one; None: it has none."""
    made: Callable[[Positions], Tensor] | None = getattr(encoding, "position_codes", None)
    return None if made is None else made(positions)


def _input_codes(encoding: Encoding, parts: list[Encoding], name: str, given: Mapping[str, int]) -> Codes | None:
    used = [part for part in parts if "embed" in part.sites() or hasattr(part, "position_codes")]
    if not used:
        return None
    if len(used) > 1 and any(getattr(part, "merge", "add") != "add" for part in used):
        raise InputError("several codes that are not all added to the input", "analyse them one by one", argument=name)

    def codes(at: Tensor) -> Tensor:
        positions = _text_positions(encoding, at)
        return torch.stack([_vectors(part, positions, given) for part in used]).sum(0)

    waves, known = None, getattr(used[0], "code_frequencies", None)
    frequencies = known() if known is not None and len(used) == 1 else None
    if frequencies is not None and not _moves(encoding):
        with torch.no_grad():
            waves = _waves(frequencies.detach().cpu().double(), codes(torch.arange(4)).cpu(), 1e-6)
    return _codes(name, codes, encoding, used, waves)


def _vectors(part: Encoding, positions: Positions, given: Mapping[str, int]) -> Tensor:
    vectors = position_codes(part, positions)
    if vectors is not None:
        return vectors[0]
    width = sizes_of(part, given).dim
    if width is None:
        raise InputError("the width of the input is not known", "set self.dim, or pass dim=", argument=part.known_as)
    zeros = torch.zeros(1, positions.num_queries, width, device=device_of(part))
    added = part.embed(zeros, positions)
    if not torch.allclose(part.embed(zeros + 1, positions), added + 1, atol=1e-5):
        raise InputError("it is not added to the input", "pass its codes as a function", argument=type(part).__name__)
    return added[0]


def _waves(frequencies: Tensor, codes: Tensor, tolerance: float) -> Waves | None:
    """The pairs of channels, in one of the layouts, that rotate by these frequencies; None: none do. codes: of the first
    positions, (n, dim)."""
    count, dim = len(frequencies), codes.shape[1]
    codes = codes.double()
    for layout in get_args(Layout):
        for start in {0, dim - 2 * count}:
            channels = start + torch.arange(2 * count)
            pair = (channels[:count], channels[count:]) if layout == "half" else (channels[0::2], channels[1::2])
            for first, second in (pair, pair[::-1]):  # cosines first, or sines
                waves = Waves(frequencies, first, second)
                moved = codes[:-1] @ waves.matrix(1, dim).T
                if torch.allclose(moved, codes[1:], rtol=0, atol=tolerance * float(codes.abs().max())):
                    return waves
    return None


def _rotation_codes(encoding: Encoding, parts: list[Encoding], name: str, given: Mapping[str, int]) -> Codes | None:
    rotating = [part for part in parts if "rotate" in part.sites() and part.planes != ()]
    if not rotating:
        return None
    refuse_gates(rotating, name)
    if len(rotating) == 1 and isinstance(rotating[0], Mapped):
        return _map_codes(rotating[0], name, given)

    def codes(at: Tensor) -> Tensor:
        return _rotated(rotating, _text_positions(encoding, at, key_at_zero=not encoding.needs_length), given)

    with seeded(), torch.no_grad():
        first = codes(torch.arange(4)).cpu()
    if bool((first.diff(dim=0) == 0).all()):
        return None  # it prepares queries and keys for the bias, whatever their position
    waves = None
    if len(rotating) == 1:
        with suppress(InputError):
            waves = _waves(frequencies_of(rotating[0], name)[0], first, 1e-9)
    return _codes(name, codes, encoding, rotating, waves)


def _rotated(parts: list[Encoding], positions: Positions, given: Mapping[str, int]) -> Tensor:
    """Queries of ones, rotated. Unless the text's length matters, the only key is at position 0, so that no code depends on
    others."""
    q, k = _alike(sizes_of(parts[0], given), positions)
    for part in parts:
        q, k = part.rotate(q, k, positions)
    return q[0, 0]


def _alike(sizes: Sizes, positions: Positions, content: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Queries and keys that all are `content`, (width,); None: ones."""
    content = torch.ones(sizes.head_dim) if content is None else content
    content = content.to(positions.q.device, torch.float64)
    q = content.expand(1, sizes.num_heads, positions.num_queries, -1)
    return q, content.expand(1, sizes.num_kv_heads, positions.num_keys, -1)


def frequencies_of(part: Encoding, name: str) -> Tensor:
    """Radians by which each pair of keys turns from a position to the next, (heads or 1, pairs) in float64.

    Raises:
        InputError: it turns none by an angle, or by angles that do not grow evenly with position.
    """
    at = Positions.from_ids(torch.arange(3, device=device_of(part)))
    try:  # XPos turns by angles, and refuses those of keys alone
        angles = part.angles(at.k) if isinstance(part, Rotary) else key_angles(part, at)
    except InputError:
        raise InputError("it rotates no pair of channels by an angle", argument=name) from None
    first, second, third = angles[0].detach().cpu().double().unbind(1)
    if not torch.allclose(third - second, second - first, rtol=1e-9):
        raise InputError("its angles do not grow evenly with position", argument=name)
    return second - first


def _map_codes(part: Mapped, name: str, given: Mapping[str, int]) -> Codes:
    """Of a distance: the rotation by the mapped distance."""
    if not part.map.shift_invariant:
        raise InputError("its map depends on more than the distance, so there is no code of a distance", argument=name)

    def codes(distances: Tensor) -> Tensor:
        at = part.map.relative(Positions.from_ids(distances, distances.new_zeros(1)))[0, :, 0]
        if bool(at.isnan().any()):
            raise HiddenKeys(name, int(distances[at.isnan()].min()))
        moved = at.to(device_of(part))
        return _rotated([part.encoding], Positions.from_ids(moved, moved.new_zeros(1)), given)

    return Codes(name, codes, of="distance", module=part)


def _bias_codes(encoding: Encoding, parts: list[Encoding], name: str, given: Mapping[str, int]) -> Codes | None:
    adding = [part for part in parts if "bias" in part.sites() and "restrict" not in part.sites()]
    if not adding or any(hasattr(part, "position_codes") for part in adding):
        return None
    refuse_gates(adding, name)
    causal = any(needs_causal(part, sizes_of(part, given)) for part in adding)
    if causal and any(_reads_keys(part, sizes_of(part, given)) for part in adding):
        raise InputError("its bias depends on the content of the text, so a distance has no code", argument=name)

    def codes(distances: Tensor) -> Tensor:
        """(n, heads): what a query adds to its score with a key so far before it, of content of ones."""
        at = _last_of_a_text(encoding, distances) if causal else _text_positions(encoding, distances, key_at_zero=True)
        bias = torch.stack([bias_of(part, at, sizes_of(part, given)) for part in adding]).sum(0)
        by_distance = bias[:, 0].T.flip(0)[distances.long()] if causal else bias[:, :, 0].T
        hidden = (by_distance == -torch.inf).any(-1).to(distances.device)
        if bool(hidden.any()):
            raise HiddenKeys(name, int(distances[hidden].min()))
        return by_distance

    return _codes(name, codes, encoding, adding, of_distance=True)


def bias_of(part: Encoding, positions: Positions, sizes: Sizes, content: Tensor | None = None) -> Tensor:
    """(heads, queries, keys): what it adds to the scores. content: (width,), of every query and key; None: ones."""
    q, k = _alike(sizes, positions, content)
    try:
        terms = part.effects(positions).terms(q, k)
    except InputError:
        if type(part).share is Encoding.share:
            raise
        part, width = copy(part), sizes.num_heads * sizes.head_dim
        repeat = lambda x: x.repeat(1, -(-width // x.shape[-1]))[..., :width]  # noqa: E731
        part.share([(repeat, repeat)])  # a model's projections, which here repeat its table in every head
        terms = part.effects(positions).terms(q, k)
    bias = dense_sum(terms, positions.q.device)
    if bias is None:
        raise InputError("its bias has no terms in this layer", argument=part.known_as)
    return bias.expand(1, sizes.num_heads, positions.num_queries, positions.num_keys)[0]


def _last_of_a_text(encoding: Encoding, distances: Tensor) -> Positions:
    """The last token of a causal text as the query, with all keys back to the largest distance."""
    if not torch.equal(distances, distances.round()):
        raise InputError("must be integers in a causal text", "round them", argument="distances")
    text = Positions.arange(int(distances.max()) + 1, causal=True, device=device_of(encoding))
    if "augment" in encoding.sites():
        text = encoding.augment(text, 1)
    return Positions.from_ids(text.q[:, -1:], text.q, causal=True, packed=False)


def _reads_keys(part: Encoding, sizes: Sizes) -> bool:
    """Whether its bias is computed from the keys."""
    q, k = _alike(sizes, at := Positions.arange(1, 3, causal=True, device=device_of(part)))
    with torch.enable_grad():
        bias = dense_sum(part.effects(at).terms(q, k.requires_grad_()), k.device)
        if bias is None or not bias.requires_grad:
            return False
        return torch.autograd.grad(bias.sum(), k, allow_unused=True)[0] is not None


def _moves(encoding: Encoding) -> bool:
    """Whether it moves positions, so that codes are not those of the positions asked for."""
    return "augment" in encoding.sites() and (encoding.training or encoding.needs_length)


def _codes(
    name: str,
    function: Callable[[Tensor], Tensor],
    encoding: Encoding,
    parts: Iterable[Encoding],
    waves: Waves | None = None,
    of_distance: bool = False,
) -> Codes:
    used = [*parts, *(part for part in parts_of(encoding) if "augment" in part.sites())]
    limits = [p.max_positions for p in used if p.max_positions is not None and getattr(p, "beyond", "") != "clamp"]
    return Codes(
        name,
        function,
        of="distance" if of_distance else "position",
        limit=min(limits, default=None),
        waves=None if _moves(encoding) else waves,
        module=encoding,
        needs_length=encoding.needs_length,
        search=SEQUENTIAL if any(part.sequential for part in used) else SEARCH,
    )


def _text_positions(encoding: Encoding, at: Tensor, key_at_zero: bool = False) -> Positions:
    """The positions of a text, moved as the encoding moves them. key_at_zero: the queries', with one key at 0."""
    ids = at if at.is_floating_point() and bool((at != at.floor()).any()) else at.long()
    ids = ids.to(device_of(encoding))
    positions = Positions.from_ids(ids if ids.dim() == 1 else ids[None])
    if "augment" in encoding.sites():
        positions = encoding.augment(positions, 1)
    return Positions.from_ids(positions.q, torch.zeros_like(positions.q[:, :1])) if key_at_zero else positions


# ---------------------------------------------------------------- pretrained models


def _pretrained_codes(model: nn.Module, name: str | None) -> Codes:
    inner = unwrap(model)
    model_type = str(inner.config.model_type)
    name = name or model_type
    if has_learned_table(model):
        return _table_codes(rows_of_table(model), name, inner)
    if decoder_of(inner).config.model_type in FAMILIES:
        return encoding_codes(_rotation(model), name)
    known = sorted({*TABLES, *FAMILIES})
    raise InputError(
        f"model of type {model_type!r}: its positions are unknown (known: {', '.join(known)}); pass its table, or a function "
        "that gives its codes"
    )


def _rotation(model: nn.Module) -> Encoding:
    """What rotates queries and keys in the first layer that has positions, of the model, extended or not."""
    structure = model_structure(model)
    layer, first = next((at, each) for at, each in enumerate(structure.layers) if each.rotates)
    record = attached(structure.model)
    rotary = getattr(structure.decoder, "rotary_emb", None)
    if record is not None and isinstance(rotary, RotaryModule):
        kind = first.layer_type if first.layer_type in rotary.rotations else next(iter(rotary.rotations))
        rotation = rotary.rotations[kind]
        assert isinstance(rotation, Encoding)
        if kind in rotary.mapped_layers and first.window is None:
            return Mapped(rotation, record.report.map)
        inside = record.design.encodings[layer] if kind in rotary.identity_layers else rotation
        assert isinstance(inside, Encoding)
        return inside
    rope = structure.ropes.get(first.layer_type, structure.rope)
    return rope.rotation(rope.schedule)


def width_of(encoding: Encoding, sizes: Sizes) -> int:
    """Channels of a token: a head's, and where something is added to the input, of the input."""
    if "embed" not in encoding.sites() or sizes.dim is None:
        return sizes.head_dim
    if size_of(encoding, "head_dim") not in (None, sizes.dim):
        raise InputError(
            f"is {sizes.dim} wide at the input and {sizes.head_dim} in a head; identity projections need one width",
            argument=str(encoding),
        )
    return sizes.dim
