# SPDX-License-Identifier: Apache-2.0
"""Muon (Jordan et al. 2024) as the lab trains with it: the same on every processor."""

from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """`torch.optim.Muon`, which PyTorch has from 2.9 on, with Newton-Schulz products in float32 on a CPU.

    torch multiplies in bfloat16. A CPU without instructions for it emulates them, which takes 16 times as long as float32
    and three quarters of a training; one that has them gains a tenth. In float32 all train alike. A GPU stays with bfloat16.
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step, as in torch: momentum (Nesterov's), orthogonalisation, decoupled weight decay. closure: must be None."""
        assert closure is None
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
                update = orthogonalised(gradient.lerp(average, momentum))
                rows, columns = parameter.shape
                parameter.mul_(1 - lr * decay)
                parameter.add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)


def orthogonalised(matrix: Tensor) -> Tensor:
    """Five Newton-Schulz iterations towards the nearest orthogonal matrix, (rows, columns) or a stack of them -> the same shape and
    dtype: singular values come to lie between about 0.7 and 1.2. Every one applies an odd polynomial."""
    a, b, c = 3.4445, -4.775, 2.0315
    x = matrix.float() if matrix.device.type == "cpu" else matrix.bfloat16()
    tall, add = x.shape[-2] > x.shape[-1], torch.addmm if x.dim() == 2 else torch.baddbmm
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = add(x, add(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrix.dtype)
