"""Every public function and method that takes an integer refuses what is none, and names the argument and the value. Of
schedules: tests/frequencies/test_schedules.py."""

from functools import partial
from inspect import isclass, isfunction, ismethod
from typing import get_type_hints

import pytest
import torch

import posenc
from posenc import InputError, KVCache, Pass, Positions, analysis, functional, position_maps, pretrained
from posenc.tasks import TASKS, create
from references.small_models import small_model
from references.tokenizers import small_tokenizer

Q, AT, IDS, MODEL = torch.randn(1, 2, 64, 8), Positions.arange(64, causal=True), torch.arange(64), small_model("llama")
ROPE, CACHE, TOKENS = posenc.Rotary(8), KVCache(), small_tokenizer(512)
posenc.attention(Q, Q, Q, ROPE, AT, cache=CACHE)
BOTH, MAPS = {"source": "half", "target": "interleaved"}, position_maps.MAPS.values()
OF_CODES = ("deterministic", "kernel", "properties", "shift_matrix", "spectrum", "steps", "unique")
CALLS = [
    *map(partial, [Positions.arange, Positions.grid, AT.with_blocks, AT.keys, AT.mask, AT.shard, KVCache, CACHE.layer]),
    *map(partial, [CACHE.positions, CACHE.crop, ROPE.own_layer, ROPE.acting_in, analysis.smallest_base]),
    *map(partial, [functional.alibi_slopes, functional.frequency_curve, *TASKS.values()]),
    *map(partial, [posenc.TransformerConfig, posenc.VisionConfig]),
    partial(Positions.from_mask, torch.ones(1, 64)), partial(Positions.from_padding, torch.zeros(1, 64)),
    partial(Positions.in_slots, IDS[:4]), partial(Positions.packed, [2, 2]), partial(Positions.grids, [(2, 2)]),
    partial(Positions.prefix_lm, [2]), partial(AT.with_window, before=2), partial(pretrained.multimodal, [64]),
    partial(CACHE.at, ROPE), partial(ROPE.effects, AT), partial(Pass(ROPE, AT).embed, Q[0]), partial(posenc.PerLayer, ROPE),
    *[partial(f, Q, Q, Q, ROPE, AT) for f in (posenc.attention, posenc.explain, posenc.linear_attention)],
    partial(posenc.convert_layout, torch.ones(16, 4), **BOTH), partial(posenc.re_rotate, Q, ROPE, AT),
    *[partial(f, IDS) for f in (functional.binary_digits, functional.deberta_bucket, functional.t5_bucket)],
    partial(functional.layout_permutation, **BOTH), partial(functional.rotary, Q, *torch.ones(2, 64, 2)),
    partial(functional.shift_matrix, 1), partial(functional.sinusoidal, IDS), partial(posenc.create, "rope"),
    *[partial(f, **({"factor": 2} if "factor" in get_type_hints(f) else {})) for f in MAPS],
    partial(analysis.base_bound, 1e4), partial(analysis.longest_length, 1e4), partial(analysis.diff, "default", "ntk"),
    *[partial(f, ROPE) for f in (analysis.scores, analysis.rotation, analysis.analyze)],
    *[partial(getattr(analysis, name), "sinusoidal") for name in OF_CODES], partial(analysis.bias, posenc.ALiBi(2)),
    partial(create("copying").sample, TOKENS), partial(pretrained.loss_by_position, MODEL, IDS),
    partial(posenc.nbce_generate, MODEL, TOKENS, ["a"], "b"), partial(posenc.finetune, MODEL, IDS, pose=True),
    partial(posenc.Transformer(posenc.TransformerConfig(8, dim=8, num_heads=2), "rope").generate, IDS[None, :4]),
]  # fmt: skip
ANY = ("seed", "index", "axis", "rotary_start", "start", "first", "end", "num_buckets", "max_distance")
"""Of either sign, or refused together."""
FROM_ZERO = ("layer", "offset", "rank", "prefix", "sinks", "warmup", "registers", "before", "after", "length")
GOOD = {"head_dim": 8, "dim": 8, "rotary_dim": 4, "length": 32, "trained": 64, "target_length": 64, "slots": 64, "end": 4,
        "n": 4, "window": 4, "steps": 1, **dict.fromkeys((*ANY[:6], *FROM_ZERO[:3]), 0)}  # fmt: skip
ELSEWHERE = {"acting_once", "bounded", "choose", "evaluate", "extend", "compute", "extended", "store", "of_tokens"}
"""Their integers are in lists or read of the other arguments, or they are not for users."""


def integers(function):
    """The arguments that are integers, and whether None is one of them."""
    hints = get_type_hints(function.__init__ if isclass(function) else function, localns={"ProcessGroup": object})
    return {n: h is not int for n, h in hints.items() if h in (int, int | None) and n != "return"}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.func.__qualname__)
def test_what_is_no_integer_is_refused_by_its_name(call):
    found = integers(call.func)
    good = {n: GOOD.get(n, 2) for n, optional in found.items() if not optional}
    for name, optional in found.items():
        least = [] if name in ANY else [-1] if name in FROM_ZERO else [0]
        for wrong in (1.5, 0.0, "4", True, False, [1], *([] if optional else [None]), *least):
            with pytest.raises(InputError) as raised:
                call(**good | {name: wrong})
            assert (raised.value.argument, raised.value.value) == (name, wrong)


def test_every_public_function_is_called():
    modules = posenc, functional, position_maps, analysis, pretrained
    public = [getattr(module, name) for module in modules for name in module.__all__]
    public += [getattr(c, n) for c in (Positions, KVCache, Pass) for n in vars(c) if n[0] != "_"]
    taking = {f.__name__ for f in public if (isfunction(f) or ismethod(f)) and False in integers(f).values()}
    assert taking - {call.func.__name__ for call in CALLS} <= ELSEWHERE
