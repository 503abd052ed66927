# SPDX-License-Identifier: Apache-2.0
"""Position maps: the relative position that a query and a key are scored at, as a function of the positions of both.

A map is a few branches. Each maps the positions of queries and keys for some of the pairs: keys near the query, far
from it, in its chunk. `Mapped(Rotary(64), rerope(window=512))` rotates accordingly, and `attention` goes over all
branches in one softmax. Positions count from 0 at each document's first token.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from posenc.errors import InputError, check_integers, check_positive, check_word
from posenc.positions import Positions
from posenc.positions.ids import exact
from posenc.positions.visibility import Branch, PositionMapping, Region
from posenc.spec import check_complete, check_options

__all__ = [
    "MAPS", "PositionMap", "create", "dual_chunk", "inverse_leaky", "jet_long", "lampe", "leaky_rerope", "lm_infinite",
    "rerope", "self_extend", "streaming", "string",
]  # fmt: skip


@dataclass(frozen=True)
class PositionMap:
    """A map by name and options, and its branches, which together contain every pair once, or hide it.

    shift_invariant: it depends on the distance alone. papers: keys into papers.bib.
    """

    name: str
    options: Mapping[str, int | float]
    branches: tuple[Branch, ...]
    shift_invariant: bool
    papers: tuple[str, ...]

    def spec(self) -> dict[str, Any]:
        """A small serialisable dict from which `create` makes the same map."""
        return {"name": self.name, **self.options}

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{option}={value}" for option, value in self.options.items())])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PositionMap) and self.spec() == other.spec()

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.name in MAPS:  # whose branches are functions that pickle would refuse
            return create, (self.spec(),)
        return PositionMap, (self.name, dict(self.options), self.branches, self.shift_invariant, self.papers)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PositionMap":
        return self  # it is immutable

    @cached_property
    def rerotations(self) -> tuple[Branch, ...]:
        """The branches for queries and keys that are rotated at their positions already."""
        return tuple(replace(each, q=_shift(each.q), k=_shift(each.k)) for each in self.branches)

    def relative(self, positions: Positions) -> Tensor:
        """The relative position that each query and key are scored at, (batch or 1, num_queries, num_keys) in float64;
        NaN where the key is hidden. For pictures and tests: attention does not compute it."""
        positions.require_one_axis("a position map")
        q, k, visible = positions.q, positions.k, positions.mask()[:, 0]
        size = 1, positions.num_queries, positions.num_keys
        relative = torch.full(size, torch.nan, dtype=torch.float64, device=q.device)
        for branch in self.branches:
            of_q, of_k = (exact(x if mapping is None else mapping(x)) for x, mapping in ((q, branch.q), (k, branch.k)))
            inside = visible & branch.region.contains(q[:, :, None], k[:, None])
            relative = torch.where(inside, of_q[:, :, None] - of_k[:, None], relative)
        return relative


def _shift(mapping: PositionMapping | None) -> PositionMapping:
    """From a token's position to how far the map moves it."""
    return torch.zeros_like if mapping is None else lambda p: mapping(p) - p


def rerope(window: int) -> PositionMap:
    """ReRoPE: min(r, window). Far keys are all at the same distance, so none is farther than in training.

    window: distances below it are unchanged; a quarter of the context length or less.
    Source: Su 2023, kexue.fm/archives/9708; bojone/rerope, rerope_patch.py.
    """
    check_integers(1, window=window)
    far = Branch(Region(nearest=window), lambda i: torch.full_like(i, window), torch.zeros_like)
    return _distance_map("rerope", {"window": window}, "su2023rerope", window, far)


def leaky_rerope(window: int, *, factor: float) -> PositionMap:
    """Leaky ReRoPE: r up to the window, then window + (r - window) / factor.

    factor: how much slower far positions run; 1 is RoPE. To stay within a context length L over n tokens it must be at
    least (n - window) / (L - window). Source: Su 2023, kexue.fm/archives/9708; bojone/rerope, leaky_rerope_patch.py.
    """
    check_integers(1, window=window)
    check_positive(factor=factor)
    far = Branch(Region(nearest=window), lambda i: (exact(i) - window) / factor + window, lambda j: exact(j) / factor)
    return _distance_map("leaky_rerope", {"window": window, "factor": factor}, "su2023rerope", window, far)


def inverse_leaky(window: int, *, factor: float) -> PositionMap:
    """Inverse Leaky ReRoPE, for training: r up to the window, then window + (r - window) * factor, so that a model
    trained on short inputs has seen the distances of long ones, and reads these with plain RoPE.

    factor: how much faster far positions run; the source takes twice the extension, and a quarter of the context length
    as window. Source: Su 2023, kexue.fm/archives/9728.
    """
    check_positive(factor=factor)
    leaky = leaky_rerope(window, factor=1 / factor)
    return PositionMap("inverse_leaky", {"window": window, "factor": factor}, leaky.branches, True, ("su2023inverse",))


def self_extend(window: int, *, group: int) -> PositionMap:
    """Self-Extend: r up to the window, then i // group + window - window / group - j // group: far tokens share
    positions by groups.

    group: tokens per position; 1 is RoPE. A model trained on L tokens reads (L - window) * group + window, if the window
    is a multiple of group.
    Source: Jin et al. 2024, section 3; datamllab/LongLM, self_extend_patch/Llama.py.
    """
    check_integers(1, window=window, group=group)
    shift = window - window // group if window % group == 0 else window - window / group
    far = Branch(Region(nearest=window), lambda i: exact(i // group) + shift, lambda j: j // group)
    return _distance_map("self_extend", {"window": window, "group": group}, "jin2024llm", window, far, group == 1)


def jet_long(window: int, *, trained: int, groups: int, least: int = 1) -> PositionMap:
    """Jet-Long: r below the window; farther, i // G - j // G, without Self-Extend's shift. The group G grows with the
    text: G = i // trained + 1 for a query at i, so that the first `trained` tokens are read as without the map.

    window: the source's w_0 + 1, 2049 tokens. trained: the source's w, the context length. groups: the
    largest G; trained * groups tokens are read. least: the smallest G. The source reads a prompt of n tokens with
    G = ceil(n / trained) for all of its queries, which is least=G, and later tokens as here; with least=1 a text read in
    pieces is the text of one call.
    Source: arXiv 2607.07740; jet-ai-projects/Jet-Long, modeling_qwen3_jetlong.py.
    """
    check_integers(1, window=window, trained=trained, groups=groups, least=least)
    if least > groups:
        raise InputError("least is at most groups", least=least, groups=groups)
    if window > trained:
        raise InputError("the window is at most the context length", window=window, trained=trained)
    grouped = list(range(max(least, 2), groups + 1))
    first = None if least > 1 else trained  # queries before it see every key at its distance
    branches = [] if first is None else [Branch(Region(until=first if grouped else None))]
    if grouped:
        branches.append(Branch(Region(farthest=window, since=first)))
    for group in grouped:
        since = None if group == least else (group - 1) * trained
        until = None if group == groups else group * trained

        def shared(p: Tensor, group: int = group) -> Tensor:
            return p // group

        branches.append(Branch(Region(nearest=window, since=since, until=until), shared, shared))
    options = {"window": window, "trained": trained, "groups": groups, "least": least}
    return PositionMap("jet_long", options, tuple(branches), groups == 1, ("tang2026jet",))


def streaming(sinks: int, *, recent: int) -> PositionMap:
    """StreamingLLM: a query sees the first tokens and the most recent ones, at their positions in a cache of these
    alone. Fluent at any length, but the tokens between are forgotten.

    sinks: tokens at the start that stay (the source: 4); 0 is a sliding window. recent: the last tokens, the query's own
    with them. Source: Xiao et al. 2024, section 3.2; mit-han-lab/streaming-llm.
    """
    check_integers(0, sinks=sinks)
    check_integers(1, recent=recent)
    last = sinks + recent
    first = Branch(Region(nearest=recent, below=sinks), lambda i: i.clamp(max=last - 1), most=last)
    options = {"sinks": sinks, "recent": recent}
    return _distance_map("streaming", options, "xiao2024efficient", recent, first, sinks == 0)


def lm_infinite(sinks: int, *, window: int) -> PositionMap:
    """LM-Infinite: a query sees the last tokens, and the first ones at a distance of window. The tokens between are
    forgotten, as in `streaming`.

    sinks: tokens at the start that stay (the authors' code: 10). window: the last tokens, the query's own with them; the
    source takes the context length. Source: Han et al. 2024, section 3.2; Glaciohound/LM-Infinite.
    """
    check_integers(0, sinks=sinks)
    check_integers(1, window=window)
    far = Region(nearest=window, below=sinks)
    first = Branch(far, lambda i: torch.full_like(i, window), torch.zeros_like, sinks + window)
    options = {"sinks": sinks, "window": window}
    return _distance_map("lm_infinite", options, "han2024lm", window, first, sinks == 0)


def string(shift: int, *, window: int) -> PositionMap:
    """STRING: r up to shift, then r - shift + window: distances that are rare in training are replaced by shorter ones,
    within the context length.

    shift: from where distances move down; the source takes a third of the context length. window: where they land (128);
    at shift it is RoPE. The source also multiplies cos and sin by 0.1 ln 2 + 1, which is a schedule's attention_factor.
    Source: An et al. 2025, section 4; its far branch counts the key at distance shift twice, this one does not.
    """
    check_integers(1, shift=shift, window=window)
    far = Branch(Region(nearest=shift), lambda i: i - shift + window)
    return _distance_map("string", {"shift": shift, "window": window}, "an2025why", shift, far)


def lampe(window: int, *, used: int, length: int) -> PositionMap:
    """LaMPE: r below the window; farther, positions are scaled so that `length` tokens use as many as `used`:
    m(i) - m(j) + window - 1 - m(window) with m(p) = p * used // (length - 1).

    window: the source's head, 512. length: of the text, from its start to its end: for a growing text, pass its
    final length. Source: Zhang et al. 2025, arXiv 2508.02308; scar-on/LaMPE, llama_sw_map.py, without its tail, and with
    the key at distance window counted once.
    """
    check_integers(1, window=window, used=used)
    check_integers(2, length=length)

    def scaled(p: Tensor) -> Tensor:
        return p * used // (length - 1)

    shift = window - 1 - window * used // (length - 1)
    far = Branch(Region(nearest=window), lambda i: scaled(i) + shift, scaled)
    options = {"window": window, "used": used, "length": length}
    return _distance_map("lampe", options, "zhang2025lampe", window, far, False)


def dual_chunk(chunk: int, *, local: int) -> PositionMap:
    """Dual chunk attention: keys at j mod s, with chunks of s = chunk - local tokens; queries at i mod s for their own
    chunk, at min(i mod s + s, chunk) for the one before, and at chunk for older ones, so that no distance exceeds chunk.

    chunk: the source takes three quarters of the context length. local: distances below it are unchanged; an eighth.
    Source: An et al. 2024, section 3; HKUNLP/ChunkLlama, chunkllama_attn_replace.py.
    """
    check_integers(1, chunk=chunk, local=local)
    if 2 * local > chunk:
        raise InputError("local is at most half of chunk", chunk=chunk, local=local)
    size = chunk - local
    farthest = min(2 * size - 1, chunk)

    def within(p: Tensor) -> Tensor:
        return p % size

    branches = (
        Branch(Region(farthest=1, chunk=size), within, within),
        Branch(Region(nearest=1, farthest=2, chunk=size), lambda i: (i % size + size).clamp(max=chunk), within),
        Branch(Region(nearest=2, chunk=size), lambda i: torch.full_like(i, farthest), within),
    )
    return PositionMap("dual_chunk", {"chunk": chunk, "local": local}, branches, False, ("an2024training",))


def _distance_map(
    name: str, options: Mapping[str, int | float], paper: str, window: int, far: Branch, shift_invariant: bool = True
) -> PositionMap:
    """A map that leaves distances below a window unchanged."""
    return PositionMap(name, options, (Branch(Region(farthest=window), most=far.most), far), shift_invariant, (paper,))


MAPS: dict[str, Callable[..., PositionMap]] = {
    f.__name__: f
    for f in (
        rerope, leaky_rerope, inverse_leaky, self_extend, jet_long, dual_chunk, string, lampe, streaming, lm_infinite,
    )
}  # fmt: skip
"""Every map by name."""


def create(spec: Mapping[str, Any]) -> PositionMap:
    """A map from {"name": "self_extend", "window": 1024, "group": 8}; every other key is an option of that map.

    Raises:
        InputError: an unknown name, or options that the map does not take.
    """
    options = dict(spec)
    name = options.pop("name", None)
    check_word("position map", name, MAPS)
    what, parameters = f"position map {name!r}", signature(MAPS[name]).parameters
    check_options(what, options, parameters, MAPS[name])
    check_complete(what, options, parameters)
    return MAPS[name](**options)
