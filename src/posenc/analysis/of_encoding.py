# SPDX-License-Identifier: Apache-2.0
"""The codes of an encoding: what it adds to the input; else what its rotation makes of a constant vector; else its bias
of every distance."""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from types import MappingProxyType
from typing import get_args

import torch
from torch import Tensor

from posenc.analysis.reading import Codes, HiddenKeys, Waves, seeded
from posenc.analysis.sizes import Sizes, device_of, needs_causal, sizes_of
from posenc.bias import dense_sum
from posenc.encoding import Encoding, Sum, bias_of
from posenc.encodings import (
    FLOATER,
    TUPE,
    Absolute,
    ComplexOrder,
    DeBERTaV2,
    Mapped,
    Sinusoidal,
)
from posenc.encodings.temperature import QueryScale
from posenc.errors import InputError
from posenc.functional import Layout
from posenc.positions import Positions

Part = tuple[Encoding, int]
"""An encoding that acts in a layer, and which of its own layers that is."""


def of_encoding(
    encoding: Encoding,
    layer: int,
    name: str,
    site: str | None = None,
    head: int = 0,
    given: Mapping[str, int] = MappingProxyType({}),
) -> Codes:
    """See `codes_of`. given: sizes, for what the encoding does not say of itself."""
    parts = acting(encoding, layer)
    makers = {"embed": _of_input, "rotate": _of_rotation, "bias": _of_bias}
    if site is not None and site not in makers:
        raise InputError(f"site={site!r}: codes are read where it acts, one of {', '.join(makers)}")
    for maker in makers.values() if site is None else [makers[site]]:
        codes = maker(encoding, parts, name, head, given)
        if codes is not None:
            return codes
    raise InputError(f"{name}: {_why_not(parts, layer, site)}")


def acting(encoding: Encoding, layer: int) -> list[Part]:
    """What acts in a layer, sums and layers' turns resolved."""
    own, number = encoding.at(layer)
    if isinstance(own, Sum):
        return [part for term in own for part in acting(term, number)]
    return [(own, number)]


def _why_not(parts: list[Part], layer: int, site: str | None) -> str:
    sites = {at for part, _ in parts for at in part.sites()}
    if site is not None:
        return f"it has no code at {site!r}; leave site= out"
    if not sites:
        return f"it does nothing with positions in layer {layer}, so there is no code to analyse"
    if sites <= {"augment"}:
        return "it moves positions and has no codes of its own; add it to one that has, as in shape+sinusoidal"
    if sites <= {"augment", "sink"}:
        return "it adds to the softmax's denominator, whatever the position: it has no code"
    if all(isinstance(part, QueryScale) for part, _ in parts):
        return "it makes scores sharper or flatter (their temperature) and points nowhere: it has no code"
    return f"it acts on {', '.join(sorted(sites))} and has no code per position or distance"


# ---------------------------------------------------------------- at the input


def _of_input(encoding: Encoding, parts: list[Part], name: str, head: int, given: Mapping[str, int]) -> Codes | None:
    found = [part for part in parts if "embed" in part[0].sites() or isinstance(part[0], TUPE)]
    if not found:
        return None
    if len(found) > 1 and any(getattr(part, "merge", "add") != "add" for part, _ in found):
        raise InputError(f"{name}: several codes that are not all added to the input; analyse them one by one")

    def codes(at: Tensor) -> Tensor:
        positions = _placed(encoding, at)
        return torch.stack([_input_codes(part, number, positions, given) for part, number in found]).sum(0)

    waves = _input_waves(found[0][0]) if len(found) == 1 else None
    return _codes(name, codes, encoding, [part for part, _ in found], waves)


def _input_codes(part: Encoding, layer: int, positions: Positions, given: Mapping[str, int]) -> Tensor:
    if isinstance(part, (Absolute, TUPE)):
        return part.codes(positions)[0]
    if isinstance(part, ComplexOrder):
        return torch.cat(part.waves(torch.ones(1, 1, part.dim, device=device_of(part)), positions), -1)[0]
    if isinstance(part, FLOATER):  # beside its code at the input, what the flow adds to the queries of a layer
        flow = part.codes(positions)[0][0, :, 0, part.own_layer(layer)]
        return torch.cat((part.sinusoidal.codes(positions)[0].to(flow), flow), -1)
    width = sizes_of(part, given).dim
    if width is None:
        raise InputError(f"{part.known_as}: the width of the input is not known; set self.dim, or pass dim=")
    zeros = torch.zeros(1, positions.num_queries, width, device=device_of(part))
    added = part.embed(zeros, positions, layer)
    if not torch.allclose(part.embed(zeros + 1, positions, layer), added + 1, atol=1e-5):
        raise InputError(f"{type(part).__name__}: it is not added to the input; pass its codes as a function")
    return added[0]


def _input_waves(part: Encoding) -> Waves | None:
    if isinstance(part, Sinusoidal):
        sines, cosines = _pairs(len(part.frequencies), "half" if part.layout == "concat" else "interleaved")
        return Waves(part.frequencies.cpu(), cosines, sines)
    if isinstance(part, ComplexOrder):
        frequencies = part.frequency(torch.ones(part.dim, device=device_of(part))).detach().cpu().double()
        return Waves(frequencies, *_pairs(part.dim, "half"))
    return None


# ---------------------------------------------------------------- on queries and keys


def _of_rotation(encoding: Encoding, parts: list[Part], name: str, head: int, given: Mapping[str, int]) -> Codes | None:
    turning = [part for part in parts if "rotate" in part[0].sites() and not isinstance(part[0], QueryScale)]
    turning.sort(key=lambda part: part[0].rotates_last)
    if not turning:
        return None
    if len(turning) == 1 and isinstance(turning[0][0], Mapped):
        return _of_mapped(turning[0][0], turning[0][1], name, head, given)

    def codes(at: Tensor) -> Tensor:
        return _turned(turning, _placed(encoding, at, key_at_zero=not encoding.needs_length), head, given)

    with seeded(), torch.no_grad():
        first = codes(torch.arange(4)).cpu()
    if bool((first.diff(dim=0) == 0).all()):
        return None  # it prepares queries and keys for the bias, whatever their position
    waves = _rotation_waves(*turning[0], head, first) if len(turning) == 1 else None
    return _codes(name, codes, encoding, [part for part, _ in turning], waves)


def _turned(parts: list[Part], positions: Positions, head: int, given: Mapping[str, int]) -> Tensor:
    """What becomes of queries that are all ones. Unless the text's length matters, the only key is at position 0, so that
    no code depends on others."""
    sizes = sizes_of(parts[0][0], given)
    q, k = _ones(sizes, positions)
    for part, layer in parts:
        q, k = part.rotate(q, k, positions, layer)
    return q[0, _head(head, sizes.num_heads)]


def _ones(sizes: Sizes, positions: Positions) -> tuple[Tensor, Tensor]:
    """Queries and keys that say one in every channel."""
    counts = (sizes.num_heads, positions.num_queries), (sizes.num_kv_heads, positions.num_keys)
    like = {"dtype": torch.float64, "device": positions.q.device}
    return tuple(torch.ones(1, heads, n, sizes.head_dim, **like) for heads, n in counts)  # type: ignore[call-overload]


def _rotation_waves(part: Encoding, layer: int, head: int, codes: Tensor) -> Waves | None:
    """The angles of its keys, if they grow evenly and turn pairs of channels in one of the two layouts. codes: of the first
    positions, (n, dim)."""
    try:
        angles = part.key_angles(Positions.from_ids(torch.arange(3, device=device_of(part))), layer)[0].detach().cpu()
    except InputError:
        return None
    own = angles[head * len(angles) // sizes_of(part, {}).num_heads].double()
    frequencies, dim = own[1] - own[0], codes.shape[1]
    if not torch.allclose(own[2] - own[1], frequencies, rtol=1e-9):
        return None
    for layout in get_args(Layout):
        for start in {0, dim - 2 * len(frequencies)}:
            waves = Waves(frequencies, *_pairs(len(frequencies), layout, start))
            moved = codes[:-1] @ waves.matrix(1, dim).T
            if torch.allclose(moved, codes[1:], rtol=0, atol=1e-9 * float(codes.abs().max())):
                return waves
    return None


def _pairs(count: int, layout: Layout, start: int = 0) -> tuple[Tensor, Tensor]:
    """The channels of each pair."""
    channels = start + torch.arange(2 * count)
    if layout == "half":
        return channels[:count], channels[count:]
    return channels[0::2], channels[1::2]


def _of_mapped(part: Mapped, layer: int, name: str, head: int, given: Mapping[str, int]) -> Codes:
    """Of a distance: the rotation by what the map makes of it."""
    if not part.map.shift_invariant:
        raise InputError(f"{name}: its map depends on more than the distance, so there is no code of a distance")

    def codes(distances: Tensor) -> Tensor:
        at = part.map.relative(Positions.from_ids(distances, distances.new_zeros(1)))[0, :, 0]
        if bool(at.isnan().any()):
            raise HiddenKeys(name, int(distances[at.isnan()].min()))
        moved = at.to(device_of(part))
        return _turned([(part.encoding, layer)], Positions.from_ids(moved, moved.new_zeros(1)), head, given)

    return Codes(name, codes, of="distance", module=part)


# ---------------------------------------------------------------- on the scores


def _of_bias(encoding: Encoding, parts: list[Part], name: str, head: int, given: Mapping[str, int]) -> Codes | None:
    adding = [part for part in parts if "bias" in part[0].sites()]
    if not adding or any(isinstance(part, TUPE) for part, _ in adding):
        return None
    adding = [(_projecting(part, layer), layer) for part, layer in adding]
    causal = any(needs_causal(part, sizes_of(part, given), layer) for part, layer in adding)
    if causal and any(_reads_keys(part, layer, sizes_of(part, given)) for part, layer in adding):
        raise InputError(f"{name}: its bias depends on what the text says, so there is no code before there is a text")

    def codes(distances: Tensor) -> Tensor:
        """(n, heads): what a query adds to its score with a key so far before it, of content all ones."""
        at = _last_of_a_text(encoding, distances) if causal else _placed(encoding, distances, key_at_zero=True)
        bias = torch.stack([_bias(part, layer, at, sizes_of(part, given)) for part, layer in adding]).sum(0)
        found = bias[:, 0].T.flip(0)[distances.long()] if causal else bias[:, :, 0].T
        hidden = (found == -torch.inf).any(-1).to(distances.device)
        if bool(hidden.any()):
            raise HiddenKeys(name, int(distances[hidden].min()))
        return found

    return _codes(name, codes, encoding, [part for part, _ in adding], of_distance=True)


def _bias(part: Encoding, layer: int, positions: Positions, sizes: Sizes) -> Tensor:
    """(heads, queries, keys)."""
    bias = dense_sum(bias_of(part, *_ones(sizes, positions), positions, layer), positions.q.device)
    if bias is None:
        raise InputError(f"{type(part).__name__}: its bias has no terms; give it some")
    return bias[0]


def _last_of_a_text(encoding: Encoding, distances: Tensor) -> Positions:
    """Of a text's last token as the query, with all keys that reach back to the largest distance."""
    if not torch.equal(distances, distances.round()):
        raise InputError("distances: its text is causal, so they are whole; round them")
    text = Positions.arange(int(distances.max()) + 1, causal=True, device=device_of(encoding))
    if "augment" in encoding.sites():
        text = encoding.augment(text, 1)
    return Positions.from_ids(text.q[:, -1:], text.q, causal=True)


def _reads_keys(part: Encoding, layer: int, sizes: Sizes) -> bool:
    """Whether its bias is computed from the keys."""
    q, k = _ones(sizes, at := Positions.arange(1, 3, causal=True, device=device_of(part)))
    with torch.enable_grad():
        bias = dense_sum(bias_of(part, q, k.requires_grad_(), at, layer), k.device)
        if bias is None or not bias.requires_grad:
            return False
        return torch.autograd.grad(bias.sum(), k, allow_unused=True)[0] is not None


def _projecting(part: Encoding, layer: int) -> Encoding:
    """DeBERTa of version 2 without a model gets projections that leave its table as it is, cut into heads."""
    if not isinstance(part, DeBERTaV2) or not part.shared or layer < len(part.projections):
        return part
    width = part.num_heads * part.head_dim

    def project(x: Tensor) -> Tensor:
        return x.repeat(1, -(-width // x.shape[-1]))[..., :width]

    alone = copy(part)
    alone.share([(project, project)] * (layer + 1))
    return alone


# ---------------------------------------------------------------- shared


def _codes(
    name: str,
    function: Callable[[Tensor], Tensor],
    encoding: Encoding,
    parts: Iterable[Encoding],
    waves: Waves | None = None,
    of_distance: bool = False,
) -> Codes:
    used = [*parts, *(part for part in encoding.modules() if isinstance(part, Encoding) and "augment" in part.sites())]
    limits = [p.max_positions for p in used if p.max_positions is not None and getattr(p, "beyond", "") != "clamp"]
    moves = "augment" in encoding.sites() and (encoding.training or encoding.needs_length)
    return Codes(
        name,
        function,
        of="distance" if of_distance else "position",
        limit=min(limits, default=None),
        waves=None if moves else waves,
        module=encoding,
        needs_length=encoding.needs_length,
        reach=2048 if any(isinstance(part, FLOATER) for part in used) else None,
    )


def _placed(encoding: Encoding, at: Tensor, key_at_zero: bool = False) -> Positions:
    """The positions of a text, where the encoding moves them to. key_at_zero: its queries' alone, the only key at 0."""
    ids = at if at.is_floating_point() and bool((at != at.floor()).any()) else at.long()
    ids = ids.to(device_of(encoding))
    own = Positions.from_ids(ids if ids.dim() == 1 else ids[None])
    if "augment" in encoding.sites():
        own = encoding.augment(own, 1)
    return Positions.from_ids(own.q, torch.zeros_like(own.q[:, :1])) if key_at_zero else own


def _head(head: int, heads: int) -> int:
    if not 0 <= head < heads:
        raise InputError(f"head={head}: there are heads 0 .. {heads - 1}")
    return head
