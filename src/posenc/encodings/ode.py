# SPDX-License-Identifier: Apache-2.0
"""The flow behind FLOATER: a small neural ODE solved along the positions, as one differentiable operator.

The step is Kutta's fourth-order 3/8 rule, which is what "rk4" means in torchdiffeq and in the fork of it that FLOATER's
authors use. Backwards is the exact derivative of these steps. As an operator it is opaque to torch.compile and
torch.export, since how many steps there are depends on the largest position.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.positions.ids import exact

TIMES = (0.0, 1 / 3, 2 / 3, 1.0)
LEANS: tuple[tuple[float, ...], ...] = ((), (1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0))
WEIGHTS = (1 / 8, 3 / 8, 3 / 8, 1 / 8)
"""The 3/8 rule: when each stage looks, how it leans on the slopes before it, how the four slopes are averaged."""

BLOCK = 64
"""Positions whose stages are held at a time on the way back."""


class Dynamics(NamedTuple):
    """dp/dt = W2 [relu(W1 [p, t] + b1), t] + b2 with t = step * position. W1 and W2 are (dim, dim + 1), b1 and b2
    (dim,); substeps Runge-Kutta steps are taken per position."""

    weight1: Tensor
    bias1: Tensor
    weight2: Tensor
    bias2: Tensor
    step: float
    substeps: int

    def matrices(self) -> tuple[Tensor, Tensor]:
        """The two layers without the column of time, multiplied from the right."""
        return self.weight1[:, :-1].T.contiguous(), self.weight2[:, :-1].T.contiguous()

    def times(self, at: Tensor, width: Tensor) -> Tensor:
        """When the stages of the steps from positions `at` over `width` look: (...) -> (substeps, 4, ..., 1, 1)."""
        starts = exact(torch.arange(self.substeps, device=at.device))
        parts = (starts[:, None] + starts.new_tensor(TIMES)) / self.substeps
        where = at + parts.view(self.substeps, 4, *[1] * at.dim()) * width
        return (self.step * where).to(self.bias1.dtype)[..., None, None]


def advance(
    state: Tensor, at: Tensor, width: Tensor, dynamics: Dynamics, matrices: tuple[Tensor, Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
    """The state (..., rows, dim) at positions `at`, (...), carried on by `width`: with every stage's point and hidden
    layer, in order, and the stages' times."""
    first, second = matrices
    times = dynamics.times(at, width)
    early = (dynamics.bias1 + times * dynamics.weight1[:, -1]).flatten(0, 1).unbind()
    late = (dynamics.bias2 + times * dynamics.weight2[:, -1]).flatten(0, 1).unbind()
    dt = (dynamics.step / dynamics.substeps * width).to(state.dtype)[..., None, None]
    points, hidden = [], []
    for substep in range(dynamics.substeps):
        slopes: list[Tensor] = []
        for stage, leans in enumerate(LEANS):
            point = state
            for lean, slope in zip(leans, slopes, strict=True):
                point = torch.add(point, slope, alpha=lean)
            seen = _affine(point, first, early[4 * substep + stage]).relu_()
            slopes.append(_affine(seen, second, late[4 * substep + stage]).mul_(dt))
            points.append(point)
            hidden.append(seen)
        for weight, slope in zip(WEIGHTS, slopes, strict=True):
            state = torch.add(state, slope, alpha=weight)
    return state, points, hidden, times


def _affine(x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, matrix) if x.dim() == 2 else (x @ matrix).add_(bias)


def trajectory(initial: Tensor, dynamics: Dynamics, last: int, known: Tensor | None = None) -> Tensor:
    """The states at positions 0 .. last (or further, if more are known), (n, rows, dim), from initial, (rows, dim), at 0.
    known: those at hand."""
    known = initial[None] if known is None else known
    matrices = dynamics.matrices()
    one = exact(torch.ones((), device=initial.device))
    states = [known[-1]]
    for position in range(len(known) - 1, last):
        states.append(advance(states[-1], position * one, one, dynamics, matrices)[0])
    return torch.cat((known, torch.stack(states)[1:]))


@torch.library.custom_op("posenc::flow", mutates_args=())
def flow(
    initial: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    positions: Tensor,
    known: Tensor | None,
    step: float,
    substeps: int,
) -> Tensor:
    """States of the flow at positions, (...) -> (..., rows, dim), from initial, (rows, dim), at position 0.

    A fractional position is reached from the whole number below it in `substeps` shorter steps, so a state never
    depends on which others are asked for. known: the trajectory as far as it is at hand, up to the largest position.

    Raises:
        InputError: a negative position.
    """
    dynamics = Dynamics(weight1, bias1, weight2, bias2, step, substeps)
    with torch.autocast(positions.device.type, enabled=False):
        whole = _whole(positions)
        if known is None:
            known = trajectory(initial, dynamics, int(whole.max()))
        states = known[whole]
        if positions.is_floating_point():
            states = advance(states, whole, positions - whole, dynamics, dynamics.matrices())[0]
        return states


@torch.library.custom_op("posenc::flow_backward", mutates_args=())
def flow_backward(
    gradient: Tensor,
    initial: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    positions: Tensor,
    known: Tensor | None,
    step: float,
    substeps: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `flow` with respect to initial, weight1, bias1, weight2 and bias2."""
    dynamics = Dynamics(weight1, bias1, weight2, bias2, step, substeps)
    with torch.autocast(positions.device.type, enabled=False):
        whole = _whole(positions)
        last = int(whole.max())
        known = trajectory(initial, dynamics, last) if known is None else known
        back = _Backwards(dynamics)
        if positions.is_floating_point():
            gradient = back.through(known[whole], gradient, whole, positions - whole)
        arriving = torch.zeros_like(known[: last + 1])
        arriving.index_add_(0, whole.flatten(), gradient.flatten(0, whole.dim() - 1))
        return back.along(known, arriving), *back.parameters()


class _Backwards:
    """The steps of `advance` in reverse, gathering the gradients of the parameters."""

    def __init__(self, dynamics: Dynamics) -> None:
        self.dynamics, self.matrices = dynamics, dynamics.matrices()
        self.layers = [torch.zeros_like(dynamics.weight1), torch.zeros_like(dynamics.weight2)]
        self.biases = [torch.zeros_like(dynamics.bias1), torch.zeros_like(dynamics.bias2)]

    def parameters(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of weight1, bias1, weight2 and bias2, of all steps so far."""
        return self.layers[0], self.biases[0], self.layers[1], self.biases[1]

    def through(self, state: Tensor, gradient: Tensor, at: Tensor, width: Tensor) -> Tensor:
        """The gradient at the state (..., rows, dim), given the one where `advance` leads."""
        _, points, hidden, times = advance(state, at, width, self.dynamics, self.matrices)
        dt = (self.dynamics.step / self.dynamics.substeps * width).to(state.dtype)[..., None, None]
        gradient, early, late = self._steps(gradient, [(seen > 0).to(seen) for seen in hidden], dt)
        self._gather(points, hidden, times, early, late)
        return gradient

    def along(self, known: Tensor, arriving: Tensor) -> Tensor:
        """The gradient at position 0, given what arrives at each position of a trajectory, (n, rows, dim)."""
        dt = self.dynamics.step / self.dynamics.substeps
        gradients = list(arriving)
        gradient = gradients.pop()
        for start in reversed(range(0, len(gradients), BLOCK)):
            at = torch.arange(start, min(start + BLOCK, len(gradients)), device=known.device)
            whole = exact(torch.ones_like(at))
            _, points, hidden, times = advance(known[at], at, whole, self.dynamics, self.matrices)
            active = [(seen > 0).to(seen).unbind() for seen in hidden]
            early, late = [], []
            for index in reversed(range(len(at))):
                gradient, *met = self._steps(gradient, [stage[index] for stage in active], dt)
                gradient = gradient + gradients[start + index]
                early.append(torch.stack(met[0]))
                late.append(torch.stack(met[1]))
            self._gather(points, hidden, times, *(torch.stack(x[::-1], 1).unbind() for x in (early, late)))
        return gradient

    def _steps(
        self, gradient: Tensor, active: list[Tensor], dt: Tensor | float
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Back through substeps: the gradient at their start, and at what enters the two layers' sums per stage."""
        first, second = (matrix.T for matrix in self.matrices)
        early, late = [], []
        for substep in reversed(range(self.dynamics.substeps)):
            slopes = [gradient * (weight * dt) for weight in WEIGHTS]
            for stage in (3, 2, 1, 0):
                late.append(slopes[stage])
                early.append((slopes[stage] @ second).mul_(active[4 * substep + stage]))
                point = early[-1] @ first
                gradient = gradient + point
                for earlier, lean in enumerate(LEANS[stage]):
                    slopes[earlier] = slopes[earlier] + (lean * dt) * point
        return gradient, early[::-1], late[::-1]

    def _gather(
        self,
        points: Sequence[Tensor],
        hidden: Sequence[Tensor],
        times: Tensor,
        early: Sequence[Tensor],
        late: Sequence[Tensor],
    ) -> None:
        """Add what stages give to the parameters' gradients: either layer's inputs against the gradient at its sums."""
        for layer, (inputs, sums) in enumerate(((points, early), (hidden, late))):
            dim = sums[0].shape[-1]
            for given, met, time in zip(inputs, sums, times.flatten(0, 1), strict=True):
                flat = met.reshape(-1, dim)
                self.layers[layer][:, :-1].addmm_(flat.T, given.reshape(-1, dim))
                self.layers[layer][:, -1] += (met * time).reshape(-1, dim).sum(0)
                self.biases[layer] += flat.sum(0)


def _whole(positions: Tensor) -> Tensor:
    if bool((positions < 0).any()):
        raise InputError(f"FLOATER: position {positions.min().item()} is negative; its flow starts at 0")
    return positions.floor().long() if positions.is_floating_point() else positions


@flow.register_fake
def _(initial, weight1, bias1, weight2, bias2, positions, known, step, substeps):  # type: ignore[no-untyped-def]
    return initial.new_empty(*positions.shape, *initial.shape)


@flow_backward.register_fake
def _(gradient, initial, weight1, bias1, weight2, bias2, positions, known, step, substeps):  # type: ignore[no-untyped-def]
    return tuple(torch.empty_like(x) for x in (initial, weight1, bias1, weight2, bias2))


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.step, ctx.substeps = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    found = flow_backward(gradient, *ctx.saved_tensors, ctx.step, ctx.substeps)
    return *found, None, None, None, None


flow.register_autograd(_backward, setup_context=_save)
