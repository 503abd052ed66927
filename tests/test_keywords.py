"""One rule for all callables with several numbers, flags or texts: the first of them may come by position, the others by name."""

import inspect

import pytest
from torch import Tensor

import posenc
from posenc import encodings, frequencies, functional, position_maps, tasks
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
    **{
        name: getattr(posenc, name)
        for name in ("load", "resize", "convert_layout", "TransformerConfig", "VisionConfig")
    },
}
OF_ANOTHER_KIND = (
    "Tensor",
    "Encoding",
    "Positions",
    "PositionMap",
    "Mapping",
    "Frequencies",
    "Any",
    "Module",
    "Callable",
)
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
