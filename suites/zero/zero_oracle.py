"""What ranks must hold after a reduction: exact where it can be, within a derived bound elsewhere.

Runs in the controller, and shares no code with the reducer but the table of rounding steps in
:mod:`perfgate.zero.bounds`.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from zero_ranks import Job, Outcome

from perfgate.zero.bounds import Schedule
from perfgate.zero.scaling import Scaling


def gathered(job: Job, outcomes: list[Outcome]) -> list[torch.Tensor]:
    """Put the ranks' slices together, flat; fails unless each element is owned exactly once."""
    whole = [torch.full((numel(shape),), torch.nan, dtype=torch.float64) for shape in job.shapes]
    owners = [torch.zeros(numel(shape), dtype=torch.int64) for shape in job.shapes]
    for outcome in outcomes:
        for param, start, values in outcome.owned:
            whole[param][start : start + values.numel()] = values.double()
            owners[param][start : start + values.numel()] += 1
    for param, count in enumerate(owners):
        assert bool((count == 1).all()), f"parameter {param} is owned {count.tolist()} times"
    return whole


def terms(job: Job, ranks: int, param: int) -> list[torch.Tensor]:
    """Return all that is added up for ``param`` in the judged step: flat, fp64, unrounded."""
    if param in job.absent:
        return [torch.zeros(numel(job.shapes[param]), dtype=torch.float64)]
    return [
        job.gradient(rank, ranks, job.rounds - 1, micro, param).reshape(-1).double()
        for micro in range(job.micro_batches)
        for rank in range(ranks)
    ]


def divisor(job: Job, ranks: int) -> Fraction:
    """Return what the sum over ranks is divided by."""
    if job.config.get("gradient_allreduce_op") == "sum":
        return Fraction(1)
    return Fraction(ranks, job.sequence_parallel_size)


def exact(job: Job, ranks: int) -> list[torch.Tensor]:
    """Return the exact result for gradients of kind ``integers``, whose fp64 sums are exact."""
    by = float(divisor(job, ranks))
    return [sum(terms(job, ranks, param)) / by for param in range(len(job.shapes))]


def in_rank_order(job: Job, ranks: int) -> list[torch.Tensor]:
    """Return, to the bit, what the exchange must give one micro-batch of fp32 gradients."""
    comm = job.zero.comm_dtype(job.dtype)
    reduced = []
    for param in range(len(job.shapes)):
        total = torch.zeros(numel(job.shapes[param]))
        for number, term in enumerate(terms(job, ranks, param)):
            sent = term.to(job.dtype).to(comm).float()
            total = sent if number == 0 else total + sent
        reduced.append((total / float(divisor(job, ranks))).double())
    return reduced


def schedule(job: Job, ranks: int) -> Schedule:
    """Return what happens to a gradient of ``job``; stage 2, or one micro-batch."""
    config = job.zero
    comm = config.comm_dtype(job.dtype, job.sequence_parallel_size)
    wide = torch.promote_types(torch.float32, comm)
    default = torch.promote_types(torch.float32, job.dtype)
    return Schedule(
        ranks=ranks,
        scaling=Scaling.plan(
            ranks=ranks,
            sequence_parallel_size=job.sequence_parallel_size,
            mean=config.gradient_allreduce_op == "mean",
            prescale=config.prescale_gradients,
            predivide_factor=config.gradient_predivide_factor,
        ),
        gradient=job.dtype,
        comm=comm,
        sum=wide if (job.strategy or config.strategy) == "exchange" else comm,
        kept=config.accumulation_dtype or default,
        micro_batches=job.micro_batches,
    )


def beyond_bound(job: Job, ranks: int, reduced: list[torch.Tensor]) -> list[str]:
    """Return, in words, each element that lies further from the exact result than it may."""
    steps, by = schedule(job, ranks), divisor(job, ranks)
    faults = []
    for param, values in enumerate(reduced):
        columns = torch.stack(terms(job, ranks, param)).T.tolist()
        for place, (column, value) in enumerate(zip(columns, values.tolist(), strict=True)):
            true = Fraction(math.fsum(column)) / by  # fsum rounds once, to fp64
            slack = abs(true) / 2**52
            bound = steps.bound(Fraction(math.fsum(map(abs, column)))) + slack
            if not math.isfinite(value) or abs(Fraction(value) - true) > bound:
                faults.append(
                    f"parameter {param}[{place}] = {value!r}, exactly {float(true)!r}, may be off "
                    f"by {float(bound):.3g}"
                )
    return faults


def numel(shape: tuple[int, ...]) -> int:
    """Elements of a shape."""
    return torch.Size(shape).numel()
