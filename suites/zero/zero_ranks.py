"""One reduction, described by values, and what runs on each rank to perform it.

The controller draws a :class:`Job`, every rank makes its own gradients from it and reduces them,
and the controller, which can make the same gradients, judges what the ranks hold afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from perfgate.zero import Exchange, GradientReducer, Strategy, Topology, ZeroConfig

STRATEGIES = ("all_reduce", "reduce", "reduce_scatter", "exchange")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A reduction.

    :param shapes: the parameters' shapes.
    :param config: keys of :class:`perfgate.zero.ZeroConfig`.
    :param segment_bytes: what the exchange sends at a time; None leaves it its default.
    :param kind: what gradients look like: ``integers`` (multiples of the number of ranks, small
        enough that sums and means are exact in every dtype), ``normal``, ``cancelling``, ``tiny``,
        ``constant`` (``scale`` everywhere), ``staircase`` (256, then ones).
    :param absent: parameters that nobody uses.
    :param shuffled: every rank's gradients become ready in an order of its own.
    :param rounds: steps; the last one is judged.
    :param nan: (rank, parameter, element) of a gradient that is not a number.
    """

    shapes: tuple[tuple[int, ...], ...]
    config: Mapping[str, Any]
    strategy: str | None = None
    segment_bytes: int | None = None
    dtype: torch.dtype = torch.float32
    kind: str = "integers"
    scale: float = 1.0
    seed: int = 0
    absent: frozenset[int] = frozenset()
    shuffled: bool = False
    rounds: int = 1
    sequence_parallel_size: int = 1
    nan: tuple[int, int, int] | None = None

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one step."""
        return int(self.config.get("gradient_accumulation_steps") or 1)

    @property
    def zero(self) -> ZeroConfig:
        """The configuration."""
        return ZeroConfig(**{"stage": 2, **self.config})

    @property
    def how(self) -> str | Strategy | None:
        """The strategy."""
        if self.strategy == "exchange" and self.segment_bytes:
            return Exchange(self.segment_bytes)
        return self.strategy

    def gradient(self, rank: int, ranks: int, round_: int, micro: int, param: int) -> torch.Tensor:
        """Return what backward gives ``rank`` for ``param``."""
        shape = self.shapes[param]
        place = ((round_ * 64 + micro) * 64 + param) * 8 + rank
        generator = torch.Generator().manual_seed(self.seed * 2**20 + place)
        if self.kind == "integers":
            limit = max(1, 8 // self.micro_batches)
            whole = torch.randint(-limit, limit + 1, shape, generator=generator)
            gradient = (whole * ranks).to(self.dtype)
            if self.nan and self.nan[:2] == (rank, param):
                gradient.view(-1)[self.nan[2]] = torch.nan
            return gradient
        if self.kind == "constant":
            return torch.full(shape, self.scale, dtype=self.dtype)
        if self.kind == "staircase":
            return torch.full(shape, 1.0 if micro else 256.0, dtype=self.dtype)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if self.kind == "cancelling":
            values += 1000.0 * (1 if rank % 2 else -1)
        if self.kind == "tiny":
            values *= float(torch.finfo(torch.float16).tiny) / 32
        return values.to(self.dtype)


@dataclass(frozen=True)
class Outcome:
    """What one rank holds after a reduction.

    :param owned: (parameter's index, first element, reduced gradient).
    :param padding: the partition's elements that belong to no parameter.
    :param freed: parameters whose ``grad`` is gone.
    :param kept_dtype: the dtype the owner keeps gradients in.
    """

    owned: list[tuple[int, int, torch.Tensor]]
    padding: torch.Tensor
    freed: list[int] = field(default_factory=list)


def reduce(job: Job) -> Outcome:
    """Perform ``job`` on this rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    params = [torch.nn.Parameter(torch.zeros(shape, dtype=job.dtype)) for shape in job.shapes]
    reducer = GradientReducer(
        [(str(index), param) for index, param in enumerate(params)],
        job.zero,
        strategy=job.how,
        topology=Topology(sequence_parallel_size=job.sequence_parallel_size),
    )
    for round_ in range(job.rounds):
        for param in params:
            param.grad = None
        for micro in range(job.micro_batches):
            for index in arrival_order(job, rank, round_):
                gradient = job.gradient(rank, ranks, round_, micro, index)
                held = params[index].grad
                params[index].grad = gradient if held is None else held + gradient
                reducer.ready(str(index))
            complete = reducer.end_micro_batch()
            assert complete == (micro == job.micro_batches - 1)
    return held_by(reducer, params)


def reduce_all(jobs: list[Job]) -> list[Outcome]:
    """Perform several jobs on this rank."""
    return [reduce(job) for job in jobs]


def arrival_order(job: Job, rank: int, round_: int) -> list[int]:
    """Return the used parameters in the order in which their gradients become ready here."""
    used = [index for index in range(len(job.shapes)) if index not in job.absent][::-1]
    if job.shuffled:
        generator = torch.Generator().manual_seed(job.seed * 100 + rank * 10 + round_)
        used = [used[place] for place in torch.randperm(len(used), generator=generator)]
    return used


def held_by(reducer: GradientReducer, params: list[torch.nn.Parameter]) -> Outcome:
    """Return this rank's share."""
    owned, padding = [], []
    for group in reducer.groups:
        rest = torch.ones_like(group.owned, dtype=torch.bool)
        for name, start, values in group.owned_slices():
            owned.append((int(name), start, values.clone()))
            offset = values.storage_offset()
            rest[offset : offset + values.numel()] = False
        padding.append(group.owned[rest])
    freed = [index for index, param in enumerate(params) if param.grad is None]
    return Outcome(owned, torch.cat(padding), freed)


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """A job whose parameters are not all held by all ranks.

    :param dense: the ranks that hold the dense parameters; every other rank holds nothing.
    :param experts: disjoint groups of ranks, each with an expert of its own: parameters in
        ``expert_params`` are reduced within them.
    """

    job: Job
    dense: tuple[int, ...]
    experts: tuple[tuple[int, ...], ...] = ()
    expert_params: frozenset[int] = frozenset()


def reduce_grouped(grouped: Grouped) -> Outcome | None:
    """Perform a job in its groups; None on a rank that has no part in it."""
    dense = dist.new_group(list(grouped.dense))
    experts = [(ranks, dist.new_group(list(ranks))) for ranks in grouped.experts]
    rank = dist.get_rank()
    mine = next((group for ranks, group in experts if rank in ranks), None)
    try:
        topology = Topology(
            group=dense, experts=dict.fromkeys(map(str, grouped.expert_params), mine)
        )
        return _reduce_once(grouped, topology) if rank in grouped.dense else None
    finally:
        for group in (dense, *(group for _, group in experts)):
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)


def _reduce_once(grouped: Grouped, topology: Topology) -> Outcome:
    job = grouped.job
    params = [torch.nn.Parameter(torch.zeros(shape, dtype=job.dtype)) for shape in job.shapes]
    named = [(str(index), param) for index, param in enumerate(params)]
    reducer = GradientReducer(named, job.zero, strategy=job.how, topology=topology)
    for index in arrival_order(job, dist.get_rank(), 0):
        params[index].grad = job.gradient(dist.get_rank(), len(grouped.dense), 0, 0, index)
        reducer.ready(str(index))
    reducer.end_micro_batch()
    return held_by(reducer, params)
