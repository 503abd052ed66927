# SPDX-License-Identifier: Apache-2.0
"""FLOATER: codes that a small neural ODE carries from each position to the next.

The flow is solved by Kutta's fourth-order 3/8 rule, the authors' "rk4", and backwards by autograd through its steps. It is one
operator for torch.compile and torch.export, since how many steps there are depends on the largest position.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.bias import KeyValues
from posenc.encoding import Encoding, Size, require_fit
from posenc.encodings.absolute import Sinusoidal
from posenc.encodings.shared import Affine, kv_heads_of, normal_parameter
from posenc.errors import InputError, Positive, check_devices, refuse_in_onnx
from posenc.functional import exactly, no_second_derivatives, transformed
from posenc.positions import Positions
from posenc.positions.memory import without_hooks

FARTHEST = 2**20
"""The largest position: the flow takes all steps up to it, one after the other."""


def solved(initial: Tensor, layers: Sequence[Tensor], positions: Tensor, step: float, substeps: int) -> Tensor:
    """States of the flow at positions, (...) -> (..., rows, dim), from initial, (rows, dim), at position 0.

    dp/dt = W2 [relu(W1 [p, t] + b1), t] + b2 with t = step * position. layers: W1, b1, W2, b2; W1 and W2 are (dim, dim + 1),
    b1 and b2 (dim,). substeps: Runge-Kutta steps for each position. A fractional position is reached from the integer below it
    in as many shorter steps, so a state never depends on which others are asked for."""
    if bool((positions < 0).any()):
        raise InputError(f"FLOATER: position {positions.min().item()} is negative; its flow starts at 0")
    start = positions.floor().long()
    last = int(start.max())
    if last > FARTHEST:
        remedy = "subtract each text's first position"
        raise InputError(f"FLOATER: position {last}, at most {FARTHEST} steps from 0: {remedy}")
    weight1, bias1, weight2, bias2 = layers
    first, second, of_time1, of_time2 = weight1[:, :-1].T, weight2[:, :-1].T, weight1[:, -1], weight2[:, -1]

    def slope(time: Tensor | float, state: Tensor) -> Tensor:
        hidden = (state @ first + (bias1 + time * of_time1)).relu()
        return hidden @ second + (bias2 + time * of_time2)

    def advanced(state: Tensor, at: Tensor | float, width: Tensor | float) -> Tensor:
        dt = step / substeps * width
        for substep in range(substeps):
            time = step * at + substep * dt
            one = dt * slope(time, state)
            two = dt * slope(time + dt / 3, state + one / 3)
            three = dt * slope(time + dt * 2 / 3, state - one / 3 + two)
            four = dt * slope(time + dt, state + one - two + three)
            state = state + (one + 3 * two + 3 * three + four) / 8
        return state

    with exactly(positions):
        states = [initial]
        for position in range(last):
            states.append(advanced(states[-1], float(position), 1.0))
        found = torch.stack(states)[start]
        if not positions.is_floating_point():
            return found
        at, width = (x.to(initial)[..., None, None] for x in (start, positions - start))
        return advanced(found, at, width)


@torch.library.custom_op("posenc::flow", mutates_args=())
def flow(
    initial: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, positions: Tensor, step: float,
    substeps: int,
) -> Tensor:  # fmt: skip
    """`solved`, opaque to torch.compile and torch.export."""
    return solved(initial, (weight1, bias1, weight2, bias2), positions, step, substeps)


@torch.library.custom_op("posenc::flow_backward", mutates_args=())
def flow_backward(
    gradient: Tensor, initial: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, positions: Tensor,
    step: float, substeps: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of `flow` with respect to initial, weight1, bias1, weight2 and bias2."""

    def function(initial: Tensor, *layers: Tensor) -> Tensor:
        return solved(initial, layers, positions, step, substeps)

    with without_hooks():
        back = torch.func.vjp(function, initial, weight1, bias1, weight2, bias2)[1]
        of_initial, *of_layers = (x.clone() for x in back(gradient))
    return of_initial, of_layers[0], of_layers[1], of_layers[2], of_layers[3]


@flow.register_fake
def _(initial, weight1, bias1, weight2, bias2, positions, step, substeps):  # type: ignore[no-untyped-def]
    check_devices("FLOATER", initial, weight1, bias1, weight2, bias2, positions)
    return initial.new_empty(*positions.shape, *initial.shape)


@flow_backward.register_fake
def _(gradient, initial, weight1, bias1, weight2, bias2, positions, step, substeps):  # type: ignore[no-untyped-def]
    check_devices("FLOATER", gradient, initial, weight1, bias1, weight2, bias2, positions)
    return tuple(torch.empty_like(x) for x in (initial, weight1, bias1, weight2, bias2))


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.step, ctx.substeps = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    return *flow_backward(gradient, *ctx.saved_tensors, ctx.step, ctx.substeps), None, None, None


flow.register_autograd(_backward, setup_context=_save)
flow_backward.register_autograd(no_second_derivatives("FLOATER", "take all derivatives by torch.func"))


# ---------------------------------------------------------------- the encoding

QUERY, KEY, VALUE = range(3)


@dataclass(eq=False, repr=False)
class FLOATER(Encoding):
    """Learned codes that follow a neural ODE, dp/dt = h(t, p), added to the queries, keys and values of every layer
    beside a sinusoidal code at the input.

    Position k is time t = step * k. h is Linear, ReLU, Linear, each given t as an extra channel, and shared by all;
    the initial values differ by layer and among queries, keys and values. Initial values and h's last layer start at
    zero, so that an untrained model is the sinusoidal one.

    num_heads, head_dim: the codes' width. dim: width of the model. num_kv_heads: keys and values of fewer heads take
    the first num_kv_heads * head_dim channels of their codes. num_layers: layers with separate initial values.
    step: time per position. substeps: solver steps per position. base: of the sinusoidal code. init_std: of the initial
    values.

    Codes are solved in float32 or better, once per forward pass of a model. Raises InputError for positions below 0 or above
    1,048,576 (every step up to them is taken). Source: Liu et al. 2020, section 3, whose code solves every 400 updates alone.
    """

    name = "floater"
    title = "FLOATER, a neural ODE"
    papers: ClassVar[tuple[str, ...]] = ("liu2020learning",)
    formula: ClassVar[tuple[str, ...]] = (
        r"\frac{\mathrm{d}p}{\mathrm{d}t} = h(t, p), \quad [p_i^q; p_i^k; p_i^v] = p(i\, \Delta t)",
        r"q_i' = q_i + p_i^q, \quad k_j' = k_j + p_j^k, \quad v_j' = v_j + p_j^v",
        r"x_{i,2c}' = x_{i,2c} + \sin(i \theta_c), \quad x_{i,2c+1}' = x_{i,2c+1} + \cos(i \theta_c)",
    )
    extrapolates = "yes: the flow goes on"
    use_when = (
        "Take it where learned codes must go on past the training length; every code takes computing those before it."
    )
    sequential = True
    equal_to = "torchdiffeq's solvers"
    mixes_heads = True

    num_heads: Size
    _: KW_ONLY
    head_dim: Size
    dim: Size
    num_kv_heads: Size | None = None
    num_layers: Size = 1
    step: Positive = 0.01
    substeps: Size = 5
    base: float = 10000.0
    init_std: float = 0.0

    def setup(self) -> None:
        self._kv_heads: int = kv_heads_of(self.num_heads, self.num_kv_heads)
        self.sinusoidal: Sinusoidal = Sinusoidal(self.dim, base=self.base)
        width = self.num_heads * self.head_dim
        self.initial: nn.Parameter = normal_parameter(3, self.num_layers, width, init_std=self.init_std)
        self.first: Affine = Affine(width + 1, width)
        self.second: Affine = Affine(width + 1, width)
        nn.init.xavier_normal_(self.first.weight)
        for parameter in (self.first.bias, self.second.weight, self.second.bias):
            nn.init.zeros_(parameter)

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, x=x)
        return self.sinusoidal.embed(x, positions, layer)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        for name, x, heads in (("q", q, self.num_heads), ("k", k, self._kv_heads)):
            if x.shape[1] != heads or x.shape[3] != self.head_dim:
                made = f"this FLOATER has {heads} of {self.head_dim}"
                raise InputError(f"{name} with {x.shape[1]} heads of width {x.shape[3]}: {made}")
        of_queries, of_keys = self.codes(positions)
        return q + self._heads(of_queries, QUERY, layer).to(q), k + self._heads(of_keys, KEY, layer).to(k)

    def values(self, positions: Positions, layer: int = 0) -> KeyValues:
        return KeyValues(self._heads(self.codes(positions)[1], VALUE, layer))

    def _heads(self, codes: Tensor, part: int, layer: int) -> Tensor:
        """(batch, n, 3, num_layers, width) -> (batch, heads, n, head_dim) of one part in one layer."""
        heads = self.num_heads if part == QUERY else self._kv_heads
        of_part = codes[:, :, part, self.own_layer(layer), : heads * self.head_dim]
        return of_part.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def codes(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """The flow where the queries and where the keys are: two (batch or 1, n, 3, num_layers, num_heads * head_dim),
        the three for queries, keys and values."""
        codes = self.remember(positions, "codes", lambda: self._solve(positions))
        if positions.q is positions.k:
            return codes, codes
        return codes[:, : positions.num_queries], codes[:, positions.num_queries :]

    def _solve(self, positions: Positions) -> Tensor:
        """The codes at the queries, then at the keys, unless both are the same."""
        positions.require_one_axis(type(self).__name__)
        ids, k = positions.q, positions.k
        if ids is not k:
            rows = max(ids.shape[0], k.shape[0])
            ids = torch.cat((ids.expand(rows, -1), k.expand(rows, -1)), 1)
        check_devices("FLOATER", ids, *self.parameters())
        refuse_in_onnx("FLOATER", "its flow, which takes a step for each position", "`learned`")
        if ids.requires_grad:
            raise InputError("FLOATER: positions that need a gradient; its flow has none for them: pass ids.detach()")
        tensors = (self.initial.flatten(0, 1), self.first.weight, self.first.bias, self.second.weight, self.second.bias)
        initial, *layers = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors)
        if transformed():
            states = solved(initial, layers, ids, self.step, self.substeps)
        else:
            states = flow(initial, *layers, ids, self.step, self.substeps)
        return states.unflatten(-2, (3, self.num_layers))
