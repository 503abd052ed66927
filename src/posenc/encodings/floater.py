# SPDX-License-Identifier: Apache-2.0
"""Positions as a flow: codes that a small neural ODE carries from each position to the next."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from posenc.bias import KeyValues
from posenc.encoding import Encoding, require_fit
from posenc.encodings.absolute import Sinusoidal
from posenc.encodings.ode import Dynamics, flow, trajectory
from posenc.encodings.shared import normal_parameter
from posenc.errors import InputError, unknown
from posenc.positions import Positions
from posenc.positions.ids import exact

QUERY, KEY, VALUE = range(3)


@dataclass(eq=False, repr=False)
class FLOATER(Encoding):
    """Learned codes that follow a neural ODE, dp/dt = h(t, p), added to the queries, keys and values of every layer
    beside a sinusoidal code at the input.

    Position k is time t = step * k. h is Linear, ReLU, Linear, each given t as an extra channel, and shared by all;
    the initial values differ by layer and among queries, keys and values. Initial values and h's last layer start at
    zero, so that an untrained model is the sinusoidal one.

    num_heads, head_dim: the codes' width. dim: width of the model. num_kv_heads: keys and values of fewer heads take
    the first num_kv_heads * head_dim channels of their codes. num_layers: layers with initial values of their own.
    step: time per position. substeps: solver steps per position. base: of the sinusoidal code. solver: "rk4", or any
    of torchdiffeq's (the extra `ode`), which neither compile nor promise codes to the last bit independent of which
    positions are asked for. init_std: of the initial values.

    Codes are solved in float32 or better, once per forward pass of a model. Raises InputError for negative positions.
    Source: Liu et al. 2020, section 3; the authors' code solves only every 400 updates and uses codes without
    gradient in between, and starts from random values.
    """

    name = "floater"
    papers: ClassVar[tuple[str, ...]] = ("liu2020learning",)
    formula: ClassVar[tuple[str, ...]] = (
        r"\frac{\mathrm{d}p}{\mathrm{d}t} = h(t, p), \quad [p_i^q; p_i^k; p_i^v] = p(i\, \Delta t)",
        r"q_i' = q_i + p_i^q, \quad k_j' = k_j + p_j^k, \quad v_j' = v_j + p_j^v",
        r"x_i' = x_i + \text{a sinusoidal code}",
    )
    extrapolates = "yes: the flow goes on"
    equal_to = "torchdiffeq's solvers"

    num_heads: int
    head_dim: int
    dim: int
    num_kv_heads: int | None = None
    num_layers: int = 1
    step: float = 0.01
    substeps: int = 5
    base: float = 10000.0
    solver: str = "rk4"
    init_std: float = 0.0

    def setup(self) -> None:
        if self.num_kv_heads is not None and not (self.num_kv_heads >= 1 and self.num_heads % self.num_kv_heads == 0):
            raise InputError(f"num_kv_heads={self.num_kv_heads}: must divide num_heads={self.num_heads}")
        if not 0 < self.step < float("inf"):
            raise InputError(f"step={self.step}: the time from one position to the next, above 0")
        if self.solver != "rk4":
            _torchdiffeq(self.solver)
        self.sinusoidal: Sinusoidal = Sinusoidal(self.dim, self.base)
        width = self.num_heads * self.head_dim
        self.initial: nn.Parameter = normal_parameter(3, self.num_layers, width, init_std=self.init_std)
        self.first: nn.Linear = nn.Linear(width + 1, width)
        self.second: nn.Linear = nn.Linear(width + 1, width)
        nn.init.xavier_normal_(self.first.weight)
        for parameter in (self.first.bias, self.second.weight, self.second.bias):
            nn.init.zeros_(parameter)
        self._values: list[Tensor] = []
        self._known: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_values": [], "_known": None}  # copies do not carry the trajectory

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, x=x)
        if layer == 0 and positions.of_pass is not None:
            self._begin(positions)
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

    @property
    def _kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    def _heads(self, codes: Tensor, part: int, layer: int) -> Tensor:
        """(batch, n, 3, num_layers, width) -> (batch, heads, n, head_dim) of one part in one layer."""
        heads = self.num_heads if part == QUERY else self._kv_heads
        own = codes[:, :, part, self.own_layer(layer), : heads * self.head_dim]
        return own.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def codes(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """The flow where the queries and where the keys are: two (batch or 1, n, 3, num_layers, num_heads * head_dim),
        the three for queries, keys and values."""
        codes = None
        of_pass = positions.of_pass
        values, begun = (None, None) if of_pass is None else of_pass.get(self, (None, None))
        if begun is not None and values is self._current():
            trains = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
            codes = begun if begun.requires_grad or not trains else None
        if codes is None:
            codes = self._solve(positions)
        if positions.q is positions.k:
            return codes, codes
        return codes[:, : positions.num_queries], codes[:, positions.num_queries :]

    def _begin(self, positions: Positions) -> None:
        """Solve for a model's forward pass: its layers share the solution, and one way back through it."""
        assert positions.of_pass is not None
        codes = self._solve(positions)
        positions.of_pass[self] = self._current(), codes

    def _solve(self, positions: Positions) -> Tensor:
        """The codes at the queries, then at the keys, unless both are the same."""
        positions.require_one_axis(type(self).__name__)
        ids, k = positions.q, positions.k
        if ids is not k:
            rows = max(ids.shape[0], k.shape[0])
            ids = torch.cat((ids.expand(rows, -1), k.expand(rows, -1)), 1)
        eager = not torch.compiler.is_compiling()
        if eager and ids.is_inference():
            ids = ids.clone()  # positions made in inference mode may meet training later
        initial, dynamics = self._system()
        if self.solver != "rk4":
            states = self._by_torchdiffeq(ids)
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
        if self._known is None or len(self._known) <= last:
            device = self.initial.device.type
            with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
                self._known = trajectory(*self._system(), last, self._known)
        return self._known

    def _by_torchdiffeq(self, ids: Tensor) -> Tensor:
        """The states at ids by another solver, in float64."""
        if torch.compiler.is_compiling():
            raise InputError(f"solver={self.solver!r} cannot be compiled or exported: use 'rk4'")
        if bool((ids < 0).any()):
            raise InputError(f"FLOATER: position {ids.min().item()} is negative; its flow starts at 0")
        initial, dynamics = self._system()
        weight1, bias1, weight2, bias2 = (exact(layer) for layer in dynamics[:4])

        def slope(t: Tensor, p: Tensor) -> Tensor:
            at = t.expand(len(p), 1)
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
            f"solver={solver!r}: 'rk4' is built in, others need torchdiffeq; pip install 'posenc[ode]'"
        ) from None
    if solver not in known:
        raise unknown("solver", solver, known)
    return known
