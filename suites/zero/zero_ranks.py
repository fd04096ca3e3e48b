"""One reduction, described by values, and what runs on each rank to perform it.

The controller draws a :class:`Job`, every rank makes its own gradients from it and reduces them,
and the controller, which can make the same gradients, judges what the ranks hold afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist

from perfgate.zero import GradientReducer, Topology, ZeroConfig

INTEGER_LIMIT = 8


@dataclass(frozen=True, kw_only=True)
class Job:
    """A reduction.

    :param shapes: the parameters' shapes.
    :param config: keys of :class:`perfgate.zero.ZeroConfig`.
    :param kind: what gradients look like: ``integers`` (multiples of the number of ranks, so that
        sums and means are exact in every dtype), ``normal``, ``cancelling``, ``tiny``.
    :param absent: parameters that nobody uses.
    :param shuffled: every rank's gradients become ready in an order of its own.
    :param rounds: steps; the last one is judged.
    """

    shapes: tuple[tuple[int, ...], ...]
    config: Mapping[str, Any]
    strategy: str | None = None
    dtype: str = "float32"
    kind: str = "integers"
    seed: int = 0
    absent: frozenset[int] = frozenset()
    shuffled: bool = False
    rounds: int = 1
    sequence_parallel_size: int = 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one step."""
        return int(self.config.get("gradient_accumulation_steps") or 1)

    def gradient(self, rank: int, ranks: int, round_: int, micro: int, param: int) -> torch.Tensor:
        """Return what backward gives ``rank`` for ``param``."""
        shape, dtype = self.shapes[param], getattr(torch, self.dtype)
        place = ((round_ * 64 + micro) * 64 + param) * 8 + rank
        generator = torch.Generator().manual_seed(self.seed * 2**20 + place)
        if self.kind == "integers":
            limit = INTEGER_LIMIT // self.micro_batches or 1
            whole = torch.randint(-limit, limit + 1, shape, generator=generator)
            return (whole * ranks).to(dtype)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if self.kind == "cancelling":
            values += 1000.0 * (1 if rank % 2 else -1)
        if self.kind == "tiny":
            values *= 40 * float(torch.finfo(dtype).smallest_normal) * 2**-6
        return values.to(dtype)


@dataclass(frozen=True)
class Outcome:
    """What one rank holds after a reduction.

    :param owned: (parameter's index, first element, reduced gradient).
    :param padding: the partition's elements that belong to no parameter.
    :param freed: parameters whose ``grad`` is gone.
    """

    owned: list[tuple[int, int, torch.Tensor]]
    padding: torch.Tensor
    freed: list[int] = field(default_factory=list)


def reduce(job: Job) -> Outcome:
    """Perform ``job`` on this rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dtype = getattr(torch, job.dtype)
    params = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in job.shapes]
    reducer = GradientReducer(
        [(str(index), param) for index, param in enumerate(params)],
        ZeroConfig(**{"stage": 2, **job.config}),
        strategy=job.strategy,
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


def gathered(job: Job, outcomes: list[Outcome]) -> list[torch.Tensor]:
    """Put every rank's slices together; fails unless each element is owned exactly once."""
    whole = [torch.full((numel(shape),), torch.nan, dtype=torch.float64) for shape in job.shapes]
    times = [torch.zeros(numel(shape), dtype=torch.int64) for shape in job.shapes]
    for outcome in outcomes:
        for param, start, values in outcome.owned:
            whole[param][start : start + values.numel()] = values.double()
            times[param][start : start + values.numel()] += 1
    for param, count in enumerate(times):
        assert bool((count == 1).all()), f"parameter {param} is owned {count.tolist()} times"
    return whole


def terms(job: Job, ranks: int, param: int) -> list[torch.Tensor]:
    """Return all that is added up for ``param`` in the judged step, flat, in fp64 (exactly)."""
    if param in job.absent:
        return [torch.zeros(numel(job.shapes[param]), dtype=torch.float64)]
    return [
        job.gradient(rank, ranks, job.rounds - 1, micro, param).reshape(-1).double()
        for rank in range(ranks)
        for micro in range(job.micro_batches)
    ]


def divisor(job: Job, ranks: int) -> Fraction:
    """Return what the sum over ranks is divided by."""
    if job.config.get("gradient_allreduce_op") == "sum":
        return Fraction(1)
    return Fraction(ranks, job.sequence_parallel_size)


def numel(shape: tuple[int, ...]) -> int:
    """Elements of a shape."""
    return torch.Size(shape).numel()
