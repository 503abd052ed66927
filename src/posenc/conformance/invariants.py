"""What must hold for every input: checks that compare a function with itself, so they mean something even where its
values are wrong. Each returns a sentence, or None."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc.conformance.kinds import Caller

HEAD_DIM, ROTARY_DIM = 32, 16
DTYPES = (torch.float32, torch.float64), (torch.float64, torch.float32), (torch.bfloat16, torch.float32)
"""What x can be, and what it was in an earlier call."""


def inputs_unchanged(call: Caller) -> str | None:
    """Tensors that were handed in keep their values."""
    given = _question(call, 7)
    before = {name: value.clone() for name, value in given.items() if isinstance(value, Tensor)}
    call.with_tensors(given)
    changed = [name for name, value in before.items() if not torch.equal(value, given[name])]
    return f"changes its input {' and '.join(changed)} in place" if changed else None


def keeps_dtype(call: Caller) -> str | None:
    """x comes back in its own dtype, also after a call with another dtype."""
    wrong = []
    for number, (dtype, other) in enumerate(DTYPES):
        try:
            fresh = _turn(call, 11 + number, dtype).dtype  # a length that was not asked for before
            _turn(call, 21 + number, other)
            later = _turn(call, 21 + number, dtype).dtype
        except NotImplementedError:  # a dtype that is not offered
            continue
        if fresh != dtype:
            wrong.append(f"{_word(dtype)} in, {_word(fresh)} out")
        elif later != dtype:
            what = f"{_word(dtype)} in, {_word(later)} out"
            return f"cached by shape only: {what} after a call of that shape in {_word(other)}"
    return f"result in the wrong dtype: {'; '.join(wrong)}" if wrong else None


def tells_positions_apart(call: Caller) -> str | None:
    """In bfloat16 the angles are those of float32, up to position 4095."""
    length = 4096
    exact, half = (_turn(call, length, dtype, ones=True)[0, 0].double() for dtype in (torch.float32, torch.bfloat16))
    error = (half - exact).abs().amax(-1)
    wrong = error > 8 * torch.finfo(torch.bfloat16).eps
    if not wrong.any():
        return None
    first, apart = int(wrong.nonzero()[0]), len(half.unique(dim=0))
    cause = "frequencies are held" if apart == length else f"{apart} of {length} positions stay apart: they are built"
    says = f"with x in bfloat16 the angles are wrong from position {first} on, by up to {error.max():.2g}"
    return f"{says}; {cause} in half precision"


def shift_invariant(call: Caller) -> str | None:
    """Scores of rotated queries and keys depend on the difference of their positions alone."""
    q, k = (torch.randn(1, 2, 40, HEAD_DIM, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))

    def scores(offset: int) -> Tensor:
        positions = torch.arange(40) + offset
        return _ask(call, q, positions).double() @ _ask(call, k, positions).double().transpose(-1, -2)

    moved = (scores(1000) - scores(0)).abs().max().item()
    # float32 angles at position 1040 are off by 1040 * 2^-22; a score sums head_dim products
    return (
        None
        if moved < 1e-3 * HEAD_DIM
        else f"not shift-invariant: scores move by {moved:.2g} when all positions move by 1000"
    )


INVARIANTS: dict[str, tuple[Callable[[Caller], str | None], ...]] = {
    **dict.fromkeys(
        ("rotary", "rotary_interleaved", "rotary_partial"),
        (inputs_unchanged, keeps_dtype, tells_positions_apart, shift_invariant),
    ),
    **dict.fromkeys(
        ("sinusoidal", "sinusoidal_concat", "sinusoidal_endpoint", "xpos", "t5", "deberta"), (inputs_unchanged,)
    ),
}


def _question(call: Caller, length: int) -> dict[str, Any]:
    """One question of the kind, with tensors of a length."""
    generator = torch.Generator().manual_seed(length)
    everything = {
        "x": torch.randn(1, 2, length, HEAD_DIM, generator=generator),
        "positions": torch.arange(length),
        "relative_position": torch.arange(length) - length // 2,
        "base": 10000.0, "rotary_dim": ROTARY_DIM, "dim": HEAD_DIM, "head_dim": HEAD_DIM, "scale_base": 512,
        "bidirectional": True, "num_buckets": 32, "max_distance": 128, "buckets": 32, "max_position": 128,
    }  # fmt: skip
    return {name: everything[name] for name in call.kind.arguments}


def _turn(call: Caller, length: int, dtype: torch.dtype, ones: bool = False) -> Tensor:
    given = _question(call, length)
    given["x"] = (torch.ones_like(given["x"]) if ones else given["x"]).to(dtype)
    return _tensor(call.with_tensors(given), given["x"].dtype)


def _ask(call: Caller, x: Tensor, positions: Tensor) -> Tensor:
    return _tensor(call.with_tensors({**_question(call, 1), "x": x, "positions": positions}), x.dtype)


def _tensor(result: Any, dtype: torch.dtype) -> Tensor:
    """A result as a tensor; lists of Python's numbers have the dtype that was asked for."""
    if isinstance(result, (list, tuple)):
        return torch.tensor(result, dtype=dtype)
    return torch.as_tensor(result).detach().cpu()


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
