"""A ZeRO step: each rank steps its own partition, then all ranks gather the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from perfgate.errors import UsageError
from perfgate.zero.config import ZeroConfig
from perfgate.zero.gather import gather_partitions
from perfgate.zero.groups import ReduceGroup, Topology
from perfgate.zero.hooks import GradientReducer
from perfgate.zero.message import Strategy
from perfgate.zero.steps import PartitionOptimizer

MakeOptimizer = Callable[[list[dict[str, Any]]], PartitionOptimizer]
"""Makes an optimizer of parameter groups: ``partial(AdamW, lr=1e-3)``, torch's or this one's."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one call of :meth:`ZeroOptimizer.step` did, the same on every rank.

    :param norm: the global norm of the gradient before clipping; infinite or NaN when an element
        of it is, whichever rank owns it; NaN where ``compute_grad_norm`` is off.
    :param skipped: nothing was changed, because the norm is not finite.
    """

    norm: float
    skipped: bool


class ZeroOptimizer:
    """Trains a module with ZeRO stage 1 or 2: optimizer states live with the partition's owner.

    All ranks start from the first rank's parameters, which become views of one flat buffer
    a group; it is gathered in place. Where they are narrower than fp32, the owner steps an fp32
    copy of its partition.

    ::

        optimizer = ZeroOptimizer(model, partial(AdamW, lr=1e-3), ZeroConfig(stage=2))
        for batch in batches:                  # gradient_accumulation_steps batches a step
            optimizer.backward(loss(model, batch))
            optimizer.step()                   # does nothing until the step's last batch

    :param make: makes the optimizer that steps a partition. It must work element by element, as
        SGD and AdamW do: a partition cuts parameters anywhere.
    :param options: parameters' names and options for each optimizer group, like
        ``[({"bias"}, {"weight_decay": 0.0})]``; the rest forms the first group.
    :raises UsageError: where ranks disagree, as :class:`GradientReducer` does.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        make: MakeOptimizer,
        config: ZeroConfig,
        *,
        options: Iterable[tuple[Iterable[str], Mapping[str, Any]]] = (),
        topology: Topology | None = None,
        strategy: str | Strategy | None = None,
        comm: ModuleType = dist,
    ) -> None:
        choices = [({}, set()), *((dict(chosen), set(names)) for names, chosen in options)]
        kinds = {name: kind for kind, (_, names) in enumerate(choices) for name in names}
        parameters = list(module.named_parameters())
        for name in kinds.keys() - dict(parameters).keys():
            raise UsageError(f"options name the parameter {name!r}, which the module does not have")
        self.config = config
        self.reducer = GradientReducer(
            parameters, config, topology=topology, strategy=strategy, comm=comm, kinds=kinds
        ).attach()
        self._comm = comm
        self._shards = [Shard(group, comm) for group in self.reducer.groups]
        self.optimizer = make(
            [
                {"params": [shard.master], **choices[kinds.get(shard.group.names[0], 0)][0]}
                for shard in self._shards
            ]
        )
        self._complete = False

    def backward(self, loss: torch.Tensor) -> None:
        """Back-propagate one micro-batch's mean loss and reduce what becomes ready.

        The loss is divided by the number of micro-batches, so that their gradients' sum is the
        mean over the step.
        """
        (loss / self.reducer.micro_batches).backward()  # type: ignore[no-untyped-call]
        self._complete = self.reducer.end_micro_batch()

    def step(self) -> Step | None:
        """Step and gather the parameters, or return None while micro-batches are missing."""
        if not self._complete:
            return None
        self._complete = False
        norm = self.norm() if self._needs_norm else math.nan
        skipped = self._needs_norm and not math.isfinite(norm)
        if not skipped:
            self._step_partitions(norm)
        for shard in self._shards:
            for param in shard.group.params:
                param.grad = None
        return Step(norm, skipped)

    def norm(self) -> float:
        """Return the norm of the whole reduced gradient; all ranks must call it.

        Squares are added in fp64, where those of finite fp32 numbers cannot overflow.
        """
        norms = [
            torch.linalg.vector_norm(group.owned, dtype=torch.float64)
            for group in self.reducer.groups
        ]
        squares = torch.stack(norms).square().sum()
        self._comm.all_reduce(squares, group=self.reducer.topology.group)
        return float(squares.sqrt())

    @property
    def _needs_norm(self) -> bool:
        return self.config.compute_grad_norm or self.config.gradient_clipping > 0

    def _step_partitions(self, norm: float) -> None:
        limit = self.config.gradient_clipping
        scale = limit / norm if 0 < limit < norm else 1.0
        for shard in self._shards:
            shard.load_gradient(scale)
        self.optimizer.step()
        for shard in self._shards:
            shard.store()
            gather_partitions(
                shard.flat,
                shard.group,
                bucket_numel=self.config.allgather_bucket_size,
                at_once=self.config.allgather_partitions,
                comm=self._comm,
            )


class Shard:
    """One group's parameters in a flat buffer, and the part of it that this rank steps.

    :param master: this rank's partition, fp32 or wider; the buffer itself where that is as wide.
    """

    def __init__(self, group: ReduceGroup, comm: ModuleType) -> None:
        self.group = group
        first = group.params[0]
        self.flat = torch.zeros(group.layout.numel, dtype=first.dtype, device=first.device)
        for param, offset in zip(group.params, group.layout.offsets, strict=True):
            place = self.flat[offset : offset + param.numel()].view(param.shape)
            place.copy_(param.detach())
            param.data = place
        comm.broadcast(self.flat, group.global_rank(0), group=group.process_group)
        self._partition = self.flat[group.layout.range_of(group.rank)]
        self.master = torch.nn.Parameter(self._partition.to(group.sum_dtype))

    def load_gradient(self, scale: float) -> None:
        """Hand the reduced gradient to the partition, scaled."""
        owned = self.group.owned if scale == 1.0 else self.group.owned.mul_(scale)
        self.master.grad = owned.to(self.master.dtype)

    def store(self) -> None:
        """Round what was stepped to the parameters' dtype, where it is a copy."""
        if self.master.data_ptr() != self._partition.data_ptr():
            self._partition.copy_(self.master.detach())
        self.master.grad = None
