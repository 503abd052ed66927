# SPDX-License-Identifier: Apache-2.0
"""Muon (Jordan et al. 2024) as the lab trains with it: `torch.optim.Muon`, the same on every processor."""

from typing import Any

import torch
from torch import Tensor, nn


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` whose Newton-Schulz products are in float32 on a CPU.

    torch multiplies in bfloat16. A CPU without instructions for it emulates them, which takes 16 times as long as float32
    and three quarters of a training; one that has them gains a tenth. In float32 all train alike. A GPU stays with bfloat16.

    On a GPU, matrices of one shape or of its transpose are orthogonalised together: the time of a small model is the number of
    its kernels.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step, as in torch: momentum (Nesterov's), orthogonalisation, decoupled weight decay. closure: must be None."""
        assert closure is None
        if all(type(p) is nn.Parameter and p.is_cuda for group in self.param_groups for p in group["params"]):
            self.step_together()
            return
        for group in self.param_groups:
            lr, decay, momentum = group["lr"], group["weight_decay"], group["momentum"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(gradient)
                average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
                update = gradient.lerp(average, momentum) if group["nesterov"] else average
                rows, columns = parameter.shape
                parameter.mul_(1 - lr * decay)
                update = orthogonalised(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                parameter.add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)

    @torch.no_grad()
    def step_together(self) -> None:
        """The same step for all matrices at once."""
        group = self.param_groups[0]  # groups differ in their rate and decay
        of_each = [(p, g) for g in self.param_groups for p in g["params"] if p.grad is not None]
        parameters, gradients = [p for p, _ in of_each], [p.grad for p, _ in of_each]
        for parameter in (p for p in parameters if "momentum_buffer" not in self.state[p]):
            self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        averages = [self.state[p]["momentum_buffer"] for p in parameters]
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, averages, group["momentum"]) if group["nesterov"] else averages
        torch._foreach_mul_(parameters, [1 - g["lr"] * g["weight_decay"] for _, g in of_each])
        alike: dict[tuple[int, ...], list[int]] = {}
        for at, update in enumerate(updates):
            alike.setdefault(tuple(sorted(update.shape)), []).append(at)
        for which in alike.values():
            wide = torch.stack([updates[at].T if _is_tall(updates[at]) else updates[at] for at in which])
            made = orthogonalised(wide, group["ns_coefficients"], group["ns_steps"], group["eps"]).unbind()
            of = [parameters[at] for at in which]
            factors = [
                -of_each[at][1]["lr"] * max(1.0, of_each[at][0].shape[0] / of_each[at][0].shape[1]) ** 0.5
                for at in which
            ]
            steps = torch._foreach_mul([m.T if _is_tall(p) else m for m, p in zip(made, of, strict=True)], factors)
            torch._foreach_add_(of, steps)


def _is_tall(matrix: Tensor) -> bool:
    return matrix.shape[0] > matrix.shape[1]


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Newton-Schulz iterations towards the nearest orthogonal matrix, (rows, columns), or (matrices, rows, columns) of no
    more rows than columns -> the same shape and dtype: singular values come to lie between about 0.7 and 1.2. Every step applies
    an odd polynomial with these coefficients."""
    a, b, c = coefficients
    x = matrix.float() if matrix.device.type == "cpu" else matrix.bfloat16()
    if x.dim() == 3:
        x = x / x.flatten(1).norm(dim=1).clamp(min=eps)[:, None, None]
        for _ in range(steps):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.to(matrix.dtype)
    tall = _is_tall(x)
    if tall:
        x = x.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)
