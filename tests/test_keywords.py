"""One rule for all callables with several numbers, flags or texts: the first of them may come by position, the others by name."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import posenc
from posenc import Positions, encodings, frequencies, functional, position_maps, tasks
from posenc.attention.call import SDPA
from posenc.errors import SYNONYMS, InputError, meaning
from posenc.frequencies.schedules import stretch
from posenc.lab.compare import EXPERIMENTS

CALLABLES = {
    **{f"encodings.{name}": getattr(encodings, name) for name in encodings.__all__ if name != "ENCODINGS"},
    **{f"position_maps.{name}": function for name, function in position_maps.MAPS.items()},
    **{f"frequencies.{name}": function for name, function in frequencies.SCHEDULES.items()},
    "frequencies.create": frequencies.create,
    "frequencies.stretch": stretch,
    **{
        f"functional.{name}": getattr(functional, name)
        for name in functional.__all__
        if inspect.isfunction(getattr(functional, name))
    },
    **{f"tasks.{name}": cls for name, cls in tasks.TASKS.items()},
    **{f"lab.{name}": cls for name, cls in EXPERIMENTS.items()},
    **{name: getattr(posenc, name) for name in ("attention", "explain", "linear_attention", "extend", "finetune")},
    **{name: getattr(posenc, name) for name in ("load", "convert_layout", "TransformerConfig", "VisionConfig")},
}
OF_ANOTHER_KIND = [
    "Tensor", "Encoding", "Positions", "PositionMap", "Mapping", "Frequencies", "Any", "Module", "Callable",
]  # fmt: skip
"""Types whose values are refused in the place of a number, a flag or a text."""


def by_position(function):
    """The parameters of numbers, flags and texts that a call may give by position."""
    parameters = inspect.signature(function).parameters.values()
    may = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [
        p.name for p in may if p.annotation is not Tensor and not any(k in str(p.annotation) for k in OF_ANOTHER_KIND)
    ]


@pytest.mark.parametrize("name", CALLABLES)
def test_one_argument_at_most_comes_by_position(name):
    assert len(by_position(CALLABLES[name])) <= 1


def test_a_length_is_not_taken_for_the_base():
    for call in (posenc.Rotary, posenc.Sinusoidal, posenc.XPos, frequencies.default, functional.frequency_curve):
        with pytest.raises(TypeError, match="positional"):
            call(64, 2048)


FOREIGN = [(name, key, meant) for name, cls in posenc.ENCODINGS.items() for group in SYNONYMS for key in group
           if key not in cls.arguments() and (meant := meaning(key, cls.arguments()))]  # fmt: skip


def test_another_librarys_name_of_an_option_is_answered_with_ours():
    """Of every encoding: where it is given by a keyword, in a text, and to the class."""
    assert len(FOREIGN) > 500
    assert {("rope", "base", "rope_theta"), ("rope", "dim", "head_dim"), ("sinusoidal", "d_model", "dim"),
            ("t5", "relative_attention_num_buckets", "num_buckets"), ("sinusoidal", "theta", "base"),
            ("learned", "max_position_embeddings", "max_positions")} <= {*FOREIGN}  # fmt: skip
    shape = set(inspect.signature(posenc.create).parameters)
    for name, key, meant in FOREIGN:
        with pytest.raises(InputError, match=f"'{key}=3': did you mean '{meant}'"):
            posenc.create(f"{name}:{key}=3")
        if key not in shape:
            with pytest.raises(InputError, match=f"'{key}': did you mean '{meant}'"):
                posenc.create(name, dim=8, num_heads=2, max_positions=8, grid=(2, 4), **{key: 3})
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{key}': did you mean '{meant}'"):
            posenc.ENCODINGS[name](**{key: 3})


def test_a_mask_in_the_place_of_the_encoding_is_named():
    q = torch.randn(1, 2, 4, 8)
    for call in (posenc.attention, posenc.explain, posenc.linear_attention):
        with pytest.raises(
            InputError, match=r"encoding=a tensor of shape \(4, 4\).*a mask is none: pass Positions.*from_mask"
        ):
            call(q, q, q, torch.ones(4, 4).bool())


def test_the_guide_lists_the_names_of_pytorchs_attention():
    guide = (Path(posenc.__file__).parents[2] / "docs/guides/your-model.md").read_text(encoding="utf-8")
    table = guide.split("## Axes and names")[1].split("## ")[0]
    named = set(re.findall(r"`(\w+)", table))
    theirs = {"attn_mask", "is_causal", "enable_gqa", "scale", "dropout_p"}
    assert SDPA.keys() | {"scale", "dropout_p"} == theirs
    assert theirs <= named
    q, mask = torch.randn(3, 2, 4, 600, 8).unbind()[0], torch.ones(2, 600).long()
    for encoding, positions, seen in (
        (None, Positions.arange(600, causal=True), torch.ones(600, 600).tril()),
        (None, Positions.from_mask(mask, causal=True), torch.ones(600, 600).tril()),
        (None, Positions.arange(600, causal=True).with_window(511), torch.ones(600, 600).tril().triu(-511)),
        (
            posenc.create("none+window:before=511"),
            Positions.arange(600, causal=True),
            torch.ones(600, 600).tril().triu(-511),
        ),
    ):
        want = scaled_dot_product_attention(q, q, q, attn_mask=seen.bool())
        torch.testing.assert_close(posenc.attention(q, q, q, encoding, positions), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"q .*(transpose|order|seq)"):
        posenc.attention(*[q.transpose(1, 2)[:, :, :, :]] * 3, posenc.ALiBi(num_heads=4))
