"""SGD and AdamW on whole partitions.

They step as ``torch.optim.SGD`` and ``torch.optim.AdamW`` do, a group's partition at a time.
Making one of those imports torch's compiler, which takes every fresh rank seconds; these cost
nothing. :class:`~perfgate.zero.ZeroOptimizer` takes either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

import torch


class PartitionOptimizer(Protocol):
    """What steps a partition: an optimizer that works element by element."""

    param_groups: list[dict[str, Any]]

    def step(self) -> Any:
        """Step every parameter by its ``grad``."""


class SGD:
    """Stochastic gradient descent with momentum and L2 weight decay.

    :param groups: each a dict with ``params`` and options of its own.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self.param_groups: list[dict[str, Any]] = [{**options, **group} for group in groups]
        self._velocity: dict[torch.Tensor, torch.Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Step every parameter by its ``grad``."""
        for group in self.param_groups:
            for param in group["params"]:
                self._step(param, group["lr"], group["momentum"], group["weight_decay"])

    def _step(self, param: torch.Tensor, lr: float, momentum: float, decay: float) -> None:
        gradient = param.grad
        if gradient is None:
            return
        if decay:
            gradient = gradient.add(param, alpha=decay)
        if momentum:
            if param not in self._velocity:
                self._velocity[param] = torch.zeros_like(param)
            gradient = self._velocity[param].mul_(momentum).add_(gradient)
        param.add_(gradient, alpha=-lr)


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019, algorithm 2).

    :param groups: each a dict with ``params`` and options of its own.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        self.param_groups = [defaults | group for group in groups]
        self._moments: dict[torch.Tensor, tuple[torch.Tensor, torch.Tensor]] = {}
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """Step every parameter by its ``grad``."""
        self._steps += 1
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._step(param, param.grad, group)

    def _step(self, param: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        if param not in self._moments:
            self._moments[param] = torch.zeros_like(param), torch.zeros_like(param)
        first, second = self._moments[param]
        param.mul_(1 - lr * group["weight_decay"])
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = math.sqrt(1 - beta2**self._steps)
        deviation = second.sqrt().div_(root).add_(group["eps"])
        param.addcdiv_(first, deviation, value=-lr / (1 - beta1**self._steps))
