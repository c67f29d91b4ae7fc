"""Optimisers of the embedded model: Muon for the matrices of the blocks, AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor, nn


def orthogonalise(stack: Tensor, rounds: int = 5) -> Tensor:  # (n, rows, columns)
    """Push the singular values of every matrix towards one by a quintic Newton-Schulz iteration."""
    wide = stack if stack.shape[1] <= stack.shape[2] else stack.transpose(1, 2)
    wide = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = wide @ wide.transpose(1, 2)
        wide = 3.4445 * wide + torch.baddbmm(gram, gram, gram, beta=-4.775, alpha=2.0315) @ wide
    return wide if stack.shape[1] <= stack.shape[2] else wide.transpose(1, 2)


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are orthogonalised; the work is split over the data-parallel processes."""

    def __init__(
        self, parameters: list[nn.Parameter], lr: float, decay: float = 0.01, momentum: float = 0.95
    ) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        """Move every matrix by an orthogonal step of the learning rate's length."""
        for group in self.param_groups:
            shapes = defaultdict(list)
            for parameter in group["params"]:
                state = self.state[parameter]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(parameter)
                state["velocity"].lerp_(parameter.grad, 1 - group["momentum"])
                shapes[tuple(parameter.shape)].append(parameter)
            for shape, parameters in shapes.items():
                ahead = torch.stack(
                    [p.grad.lerp(self.state[p]["velocity"], group["momentum"]) for p in parameters]
                )
                stride = max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, direction in zip(parameters, _shared(ahead), strict=True):
                    parameter.mul_(1 - group["lr"] * group["decay"])
                    parameter.add_(direction, alpha=-group["lr"] * stride)


def _shared(stack: Tensor) -> Tensor:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return orthogonalise(stack)
    rank, world = dist.get_rank(), dist.get_world_size()
    result = torch.zeros_like(stack)
    result[rank::world] = orthogonalise(stack[rank::world])
    dist.all_reduce(result)
    return result


def average_gradients(parameters: list[nn.Parameter], extra: float) -> float:
    """Average the gradients over all processes in place, and one number beside them."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return extra
    flat = torch.cat([p.grad.flatten() for p in parameters] + [torch.tensor([extra])])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for parameter in parameters:
        parameter.grad.copy_(flat[offset : offset + parameter.numel()].view_as(parameter))
        offset += parameter.numel()
    return float(flat[-1])
