# SPDX-License-Identifier: Apache-2.0
"""FLOATER: codes that a small neural ODE carries from each position to the next.

The flow is solved by Kutta's fourth-order 3/8 rule, which is what "rk4" means in torchdiffeq and in the fork of it that
FLOATER's authors use. Backwards is the exact derivative of these steps. It is one operator, opaque to torch.compile and
torch.export, since how many steps there are depends on the largest position. Plain autograd through the steps was measured:
a training step at 512 positions takes 2.4 times as long with 128 channels, since 10,000 small stages are recorded.
"""

from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from posenc.bias import KeyValues
from posenc.encoding import Encoding, Size, require_fit
from posenc.encodings.absolute import Sinusoidal
from posenc.encodings.shared import Affine, kv_heads_of, normal_parameter
from posenc.errors import InputError, check_devices, check_positive, refuse_in_onnx, unknown
from posenc.functional import intercepted, no_second_derivatives, transformed
from posenc.positions import Positions
from posenc.positions.ids import exact

TIMES = (0.0, 1 / 3, 2 / 3, 1.0)
LEANS: tuple[tuple[float, ...], ...] = ((), (1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0))
WEIGHTS = (1 / 8, 3 / 8, 3 / 8, 1 / 8)
"""The 3/8 rule: when each stage looks, how it leans on the slopes before it, how the four slopes are averaged."""

BLOCK = 64
"""Positions whose stages are in memory at once on the way back."""

FARTHEST = 2**20
"""The largest position: the flow takes all steps up to it, one after the other."""


Layers = tuple[Tensor, Tensor]
"""Of a stage: the point where it looks and its hidden layer, each (..., rows, dim); or the gradients of its two layers."""


class Dynamics(NamedTuple):
    """dp/dt = W2 [relu(W1 [p, t] + b1), t] + b2 with t = step * position. W1 and W2 are (dim, dim + 1), b1 and b2
    (dim,); substeps Runge-Kutta steps are taken per position."""

    weight1: Tensor
    bias1: Tensor
    weight2: Tensor
    bias2: Tensor
    step: float
    substeps: Size

    def matrices(self) -> tuple[Tensor, Tensor]:
        """The two layers without the column of time, multiplied from the right."""
        return self.weight1[:, :-1].T.contiguous(), self.weight2[:, :-1].T.contiguous()

    def times(self, at: Tensor, width: Tensor) -> Tensor:
        """When the stages of the steps from positions `at` over `width` look: (...) -> (substeps, 4, ..., 1, 1)."""
        starts = exact(torch.arange(self.substeps, device=at.device))
        parts = (starts[:, None] + starts.new_tensor(TIMES)) / self.substeps
        where = at + parts.view(self.substeps, 4, *[1] * at.dim()) * width
        return (self.step * where).to(self.bias1.dtype)[..., None, None]

    def widths(self, width: Tensor) -> Tensor:
        """Times of the Runge-Kutta steps that go over `width`, (...) -> (..., 1, 1)."""
        return (self.step / self.substeps * width).to(self.bias1.dtype)[..., None, None]


def advance(
    state: Tensor, at: Tensor, width: Tensor, dynamics: Dynamics, matrices: tuple[Tensor, Tensor]
) -> tuple[Tensor, list[Layers]]:
    """The state (..., rows, dim) at positions `at`, (...), carried on by `width`, and every stage's point and hidden layer."""
    first, second = matrices
    times = dynamics.times(at, width)
    early = (dynamics.bias1 + times * dynamics.weight1[:, -1]).flatten(0, 1).unbind()
    late = (dynamics.bias2 + times * dynamics.weight2[:, -1]).flatten(0, 1).unbind()
    dt = dynamics.widths(width)
    seen: list[Layers] = []
    for substep in range(dynamics.substeps):
        slopes: list[Tensor] = []
        for stage, leans in enumerate(LEANS, start=4 * substep):
            point = state
            for lean, slope in zip(leans, slopes, strict=True):
                point = torch.add(point, slope, alpha=lean)
            hidden = _affine(point, first, early[stage]).relu_()
            seen.append((point, hidden))
            slopes.append(_affine(hidden, second, late[stage]).mul_(dt))
        for weight, slope in zip(WEIGHTS, slopes, strict=True):
            state = torch.add(state, slope, alpha=weight)
    return state, seen


def _affine(x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    if x.dim() == 2:
        return torch.addmm(bias, x, matrix)
    return (x.flatten(0, -2) @ matrix).unflatten(0, x.shape[:-1]).add_(bias)  # flat: the matrix has one gradient


def trajectory(initial: Tensor, dynamics: Dynamics, last: int, known: Tensor | None = None) -> Tensor:
    """The states at positions 0 .. last (or further, if more are known), (n, rows, dim), from initial, (rows, dim), at 0.
    known: those computed before."""
    _check_near(last)
    known = initial[None] if known is None else known
    matrices = dynamics.matrices()
    one = exact(torch.ones((), device=initial.device))
    states = [known[-1]]
    for position in range(known.shape[0] - 1, last):
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

    A fractional position is reached from the integer below it in `substeps` shorter steps, so a state never
    depends on which others are asked for. known: the trajectory as far as it has been computed, up to the largest position.

    Raises:
        InputError: a negative position, or one above FARTHEST.
    """
    return solved(initial, Dynamics(weight1, bias1, weight2, bias2, step, substeps), positions, known)


def solved(initial: Tensor, dynamics: Dynamics, positions: Tensor, known: Tensor | None = None) -> Tensor:
    """`flow` as one expression, which torch.func differentiates."""
    with torch.autocast(positions.device.type, enabled=False):
        start = _floor(positions)
        if known is None:
            known = trajectory(initial, dynamics, int(start.max()))
        states = known[start]
        if positions.is_floating_point():
            states = advance(states, start, positions - start, dynamics, dynamics.matrices())[0]
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
        start = _floor(positions)
        known = trajectory(initial, dynamics, int(start.max())) if known is None else known
        totals = [torch.zeros_like(x) for x in (weight1, bias1, weight2, bias2)]
        if positions.is_floating_point():
            gradient = _pull(known[start], gradient, start, positions - start, dynamics, totals)
        arriving = torch.zeros_like(known[: int(start.max()) + 1])
        arriving.index_add_(0, start.flatten(), gradient.flatten(0, start.dim() - 1))
        along = _along(known, arriving, dynamics, totals)
        return along, totals[0], totals[1], totals[2], totals[3]


def _pull(
    state: Tensor, gradient: Tensor, at: Tensor, width: Tensor, dynamics: Dynamics, totals: list[Tensor]
) -> Tensor:
    """The gradient at the states (..., rows, dim), given the one where `advance` leads; adds those of the parameters."""
    _, seen = advance(state, at, width, dynamics, dynamics.matrices())
    active = [(hidden > 0).to(hidden) for _, hidden in seen]
    gradient, pulled = _before(gradient, active, dynamics.widths(width), dynamics)
    _of_layers(seen, pulled, dynamics.times(at, width), totals)
    return gradient


def _along(known: Tensor, arriving: Tensor, dynamics: Dynamics, totals: list[Tensor]) -> Tensor:
    """The gradient at position 0, given what arrives at each position of a trajectory, (n, rows, dim); adds those of the
    parameters. All but the gradients of the states is computed for a block of positions at once."""
    gradients = list(arriving)
    gradient = gradients.pop()
    one = exact(torch.ones((), device=known.device))
    width = dynamics.widths(one)
    for start in reversed(range(0, len(gradients), BLOCK)):
        at = torch.arange(start, min(start + BLOCK, len(gradients)), device=known.device)
        _, seen = advance(known[at], at, one.expand(at.shape[0]), dynamics, dynamics.matrices())
        active = [(hidden > 0).to(hidden).unbind() for _, hidden in seen]
        pulled = []  # for each position, of its stages
        for index in reversed(range(at.shape[0])):
            gradient, of_position = _before(gradient, [stage[index] for stage in active], width, dynamics)
            pulled.append(of_position)
            gradient = gradient + gradients[start + index]
        stages = zip(*reversed(pulled), strict=True)
        stacked = [(torch.stack([one for one, _ in stage]), torch.stack([two for _, two in stage])) for stage in stages]
        _of_layers(seen, stacked, dynamics.times(at, one), totals)
    return gradient


def _before(gradient: Tensor, active: list[Tensor], dt: Tensor, dynamics: Dynamics) -> tuple[Tensor, list[Layers]]:
    """The gradient before a position's steps, given the one after them, and those of every stage's layers.
    active: which hidden units of each stage are above zero."""
    first, second = dynamics.weight1[:, :-1], dynamics.weight2[:, :-1]
    pulled: list[Layers] = []  # from the last stage to the first
    for substep in reversed(range(dynamics.substeps)):
        slopes = [gradient * (weight * dt) for weight in WEIGHTS]
        for stage in (3, 2, 1, 0):
            hidden = (slopes[stage] @ second).mul_(active[4 * substep + stage])
            pulled.append((hidden, slopes[stage]))
            point = hidden @ first
            gradient = gradient + point
            for earlier, lean in enumerate(LEANS[stage]):
                slopes[earlier] = slopes[earlier] + (lean * dt) * point
    return gradient, pulled[::-1]


def _of_layers(seen: list[Layers], pulled: list[Layers], times: Tensor, totals: list[Tensor]) -> None:
    """Adds the gradients of W1, b1, W2 and b2, given what every stage's layers have seen and their gradients."""
    for inputs, gradients, time in zip(seen, pulled, times.flatten(0, 1), strict=True):
        for layer, (x, of_layer) in enumerate(zip(inputs, gradients, strict=True)):
            weight, bias = totals[2 * layer : 2 * layer + 2]
            weight[:, :-1] += of_layer.flatten(0, -2).T @ x.flatten(0, -2)
            weight[:, -1] += (time * of_layer).flatten(0, -2).sum(0)
            bias += of_layer.flatten(0, -2).sum(0)


def _check_near(last: float) -> None:
    if last > FARTHEST:
        raise InputError(
            f"FLOATER: position {last}; its flow takes every step from 0, at most {FARTHEST}: subtract each text's first position"
        )


def _floor(positions: Tensor) -> Tensor:
    if bool((positions < 0).any()):
        raise InputError(f"FLOATER: position {positions.min().item()} is negative; its flow starts at 0")
    return positions.floor().long() if positions.is_floating_point() else positions


@flow.register_fake
def _(initial, weight1, bias1, weight2, bias2, positions, known, step, substeps):  # type: ignore[no-untyped-def]
    check_devices("FLOATER", initial, weight1, bias1, weight2, bias2, positions, known)
    return initial.new_empty(*positions.shape, *initial.shape)


@flow_backward.register_fake
def _(gradient, initial, weight1, bias1, weight2, bias2, positions, known, step, substeps):  # type: ignore[no-untyped-def]
    check_devices("FLOATER", gradient, initial, weight1, bias1, weight2, bias2, positions, known)
    return tuple(torch.empty_like(x) for x in (initial, weight1, bias1, weight2, bias2))


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.step, ctx.substeps = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    gradients = flow_backward(gradient, *ctx.saved_tensors, ctx.step, ctx.substeps)
    return *gradients, None, None, None, None


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
    step: time per position. substeps: solver steps per position. base: of the sinusoidal code. solver: "rk4", or any
    of torchdiffeq's (the extra `ode`), which neither compile nor promise codes to the last bit independent of which
    positions are asked for. init_std: of the initial values.

    Codes are solved in float32 or better, once per forward pass of a model. Raises InputError for positions below 0 or above
    1,048,576 (every step up to them is taken).
    Source: Liu et al. 2020, section 3; the authors' code solves only every 400 updates and uses codes without
    gradient in between, and starts from random values.
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
    step: float = 0.01
    substeps: Size = 5
    base: float = 10000.0
    solver: str = "rk4"
    init_std: float = 0.0

    def setup(self) -> None:
        self._kv_heads: int = kv_heads_of(self.num_heads, self.num_kv_heads)
        check_positive(step=self.step)
        if self.solver != "rk4":
            _torchdiffeq(self.solver)
        self.sinusoidal: Sinusoidal = Sinusoidal(self.dim, base=self.base)
        width = self.num_heads * self.head_dim
        self.initial: nn.Parameter = normal_parameter(3, self.num_layers, width, init_std=self.init_std)
        self.first: Affine = Affine(width + 1, width)
        self.second: Affine = Affine(width + 1, width)
        nn.init.xavier_normal_(self.first.weight)
        for parameter in (self.first.bias, self.second.weight, self.second.bias):
            nn.init.zeros_(parameter)
        self._values: list[Tensor] = []
        self._known: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_values": [], "_known": None}  # copies do not carry the trajectory

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, x=x)
        return self.sinusoidal.embed(x, positions, layer)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        for name, x, heads in (("q", q, self.num_heads), ("k", k, self._kv_heads)):
            if x.shape[1] != heads or x.shape[3] != self.head_dim:
                raise InputError(
                    f"{name} with {x.shape[1]} heads of width {x.shape[3]}: this FLOATER has {heads} of {self.head_dim}"
                )
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

    def position_codes(self, positions: Positions, layer: int = 0) -> Tensor:
        """The code at the input beside what the flow adds to the queries of a layer."""
        flow = self.codes(positions)[0][:, :, QUERY, self.own_layer(layer)]
        return torch.cat((self.sinusoidal.codes(positions).to(flow), flow), -1)

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
        eager = not torch.compiler.is_compiling() and not intercepted()
        if eager and ids.is_inference():
            ids = ids.clone()  # positions made in inference mode may meet training later
        initial, dynamics = self._system()
        if self.solver != "rk4":
            states = self._by_torchdiffeq(ids)
        elif transformed():
            states = solved(initial, dynamics, ids)
        else:
            known = self._trajectory(positions) if eager else None
            states = flow(initial, *dynamics[:4], ids, known, self.step, self.substeps)
        return states.unflatten(-2, (3, self.num_layers))

    def _system(self) -> tuple[Tensor, Dynamics]:
        """Initial values, (3 * num_layers, width), and dynamics, in float32 or better."""
        tensors = (self.initial.flatten(0, 1), self.first.weight, self.first.bias, self.second.weight, self.second.bias)
        wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors]
        return wide[0], Dynamics(wide[1], wide[2], wide[3], wide[4], self.step, self.substeps)

    def _current(self) -> list[Tensor]:
        """The parameters' values; another list whenever one of them has changed, in whatever way."""
        values = [parameter.detach() for parameter in self.parameters()]
        same = len(values) == len(self._values) and all(
            a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
            for a, b in zip(values, self._values, strict=True)
        )
        if not same:
            with torch.inference_mode(False):
                self._values, self._known = [value.clone() for value in values], None
        return self._values

    def _trajectory(self, positions: Positions) -> Tensor:
        """The states at 0 .. the largest position or further, without gradient: solved once for given parameters, and
        continued where a longer one is wanted, as in generation."""
        last = positions.shared("largest position", lambda: int(max(positions.q.max(), positions.k.max())))
        self._current()
        if self._known is None or self._known.shape[0] <= last:
            device = self.initial.device.type
            with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
                self._known = trajectory(*self._system(), last, self._known)
        return self._known

    def _by_torchdiffeq(self, ids: Tensor) -> Tensor:
        """The states at ids by another solver, in float64."""
        if torch.compiler.is_compiling():
            raise InputError("cannot be compiled or exported: use 'rk4'", solver=self.solver)
        if bool((ids < 0).any()):
            raise InputError(f"FLOATER: position {ids.min().item()} is negative; its flow starts at 0")
        _check_near(ids.max().item())
        initial, dynamics = self._system()
        weight1, bias1, weight2, bias2 = (exact(layer) for layer in dynamics[:4])

        def slope(t: Tensor, p: Tensor) -> Tensor:
            at = t.expand(p.shape[0], 1)
            seen = linear(torch.cat((p, at), -1), weight1, bias1).relu()
            return linear(torch.cat((seen, at), -1), weight2, bias2)

        solvers, package = _torchdiffeq(self.solver), import_module("torchdiffeq")
        times = exact(torch.cat((ids.flatten(), ids.new_tensor([0, 1])))).unique()
        options: dict[str, Any] = {"method": self.solver}
        if issubclass(solvers[self.solver], import_module("torchdiffeq._impl.solvers").FixedGridODESolver):
            options["options"] = {"step_size": self.step / self.substeps}
        solve = package.odeint
        if self.solver == "scipy_solver":  # it leaves no graph to go back through: solve the adjoint flow
            solve, options["adjoint_params"] = package.odeint_adjoint, (weight1, bias1, weight2, bias2)
        states = solve(slope, exact(initial), self.step * times, **options)
        return states[torch.searchsorted(times, exact(ids))].to(initial.dtype)


def _torchdiffeq(solver: str) -> dict[str, type]:
    """torchdiffeq's solvers, among them this one."""
    try:
        known: dict[str, type] = import_module("torchdiffeq._impl.odeint").SOLVERS
    except ImportError:
        raise InputError(
            "'rk4' is built in, others need torchdiffeq", "pip install 'posenc[ode]'", solver=solver
        ) from None
    if solver not in known:
        raise unknown("solver", solver, known)
    return known
