"""One row of the benchmark: what the ranks' samples amount to, and whether to believe it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from perfgate.bench.request import Request, Sample
from perfgate.comm.bandwidth import algbw_gbps, busbw_gbps, deepspeed_convention
from perfgate.units import format_duration

PERCENTILES = (10, 25, 50, 75, 90, 95, 99)
COPY_SLACK = 2.0
"""How much faster than a plain copy a collective may seem: caches, and more than one core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An op's figures at one size. Times are in seconds, rates in Gb/s.

    :param times_s: each call's time, the slowest rank's: ``[trials]``.
    :param enqueue_s: of asynchronous calls, the median until a handle was returned.
    :param wait_s: of asynchronous calls, the median from there to the result.
    :param problems: why the figures are not to be believed; empty for a valid row.
    :param skipped: why there are none, where memory or support was lacking.
    """

    request: Request
    world_size: int
    itemsize: int
    times_s: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    enqueue_s: float | None = None
    wait_s: float | None = None
    problems: tuple[str, ...] = ()
    skipped: str | None = None
    debug: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: Request, itemsize: int, samples: Sequence[Sample]) -> Row:
        """Combine the ranks' samples, in the order of the ranks."""
        where: dict[str, Any] = {
            "request": request, "world_size": len(samples), "itemsize": itemsize,
        }  # fmt: skip
        reasons = [sample.skipped for sample in samples if sample.skipped]
        if reasons:
            # The rank that lacks something says the most of it.
            return cls(**where, skipped=max(reasons, key=len))
        times_s = np.max([sample.times_ns for sample in samples], axis=0) / 1e9
        enqueue_s, wait_s = _split(samples)
        return cls(
            **where,
            times_s=times_s,
            enqueue_s=enqueue_s,
            wait_s=wait_s,
            problems=(*_problems(samples, times_s), *_above_link(request, len(samples), times_s)),
            debug=tuple(sample.debug for sample in samples if sample.debug),
        )

    @property
    def time_s(self) -> float:
        """The median call; NaN where there is none."""
        return float(np.median(self.times_s)) if len(self.times_s) else float("nan")

    @property
    def percentiles_s(self) -> dict[str, float]:
        """The distribution of calls: ``p10`` to ``p99``, ``mean``, ``min`` and ``max``."""
        if not len(self.times_s):
            return {}
        values = np.percentile(self.times_s, PERCENTILES)
        found = {f"p{p}": float(v) for p, v in zip(PERCENTILES, values, strict=True)}
        ends = {"mean": self.times_s.mean(), "min": self.times_s.min(), "max": self.times_s.max()}
        return found | {name: float(value) for name, value in ends.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data, both conventions named."""
        op, size = self.request.op, self.request.size_bytes
        figures = deepspeed_convention(op, size, self.time_s, self.world_size)
        return {
            **asdict(self.request),
            "world_size": self.world_size,
            "elements": size // self.itemsize,
            "calls": len(self.times_s),
            "time_s": self.percentiles_s,
            "enqueue_s": self.enqueue_s,
            "wait_s": self.wait_s,
            "nccl_tests": _finite(
                size_bytes=size,
                algbw_gbps=algbw_gbps(size, self.time_s),
                busbw_gbps=busbw_gbps(op, size, self.time_s, self.world_size),
            ),
            "deepspeed": _finite(
                size_bytes=figures.size_bytes,
                throughput_gbps=figures.tput_gbps,
                busbw_gbps=figures.busbw_gbps,
            ),
            "valid": not self.problems and self.skipped is None,
            "problems": list(self.problems),
            "skipped": self.skipped,
        }


def _finite(**figures: float) -> dict[str, float | None]:
    return {name: value if np.isfinite(value) else None for name, value in figures.items()}


def _split(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """Return the medians of entering and of waiting, each the slowest rank's."""
    enqueues = [sample.enqueue_ns for sample in samples if sample.enqueue_ns is not None]
    if not enqueues:
        return None, None
    waits = [s.times_ns - s.enqueue_ns for s in samples if s.enqueue_ns is not None]
    enqueue, wait = (np.median(np.max(times, axis=0)) / 1e9 for times in (enqueues, waits))
    return float(enqueue), float(wait)


def _above_link(
    request: Request, world_size: int, times_s: npt.NDArray[np.float64]
) -> Iterator[str]:
    if request.link_gbps is None:
        return
    busbw = busbw_gbps(request.op, request.size_bytes, float(np.median(times_s)), world_size)
    if busbw > request.link_gbps:
        yield f"busbw {busbw:.1f} Gb/s is above the link's {request.link_gbps:g} Gb/s"


def _problems(samples: Sequence[Sample], times_s: npt.NDArray[np.float64]) -> list[str]:
    """Return why the figures are impossible, or the data wrong."""
    problems = [sample.problem for sample in samples if sample.problem]
    tick_s = max(sample.tick_ns for sample in samples) / 1e9
    fastest_s = float(times_s.min()) if len(times_s) else 0.0
    if fastest_s < tick_s or fastest_s <= 0:
        problems.append(
            f"a call of {fastest_s * 1e9:.0f}ns is below the clock's step of {tick_s * 1e9:.0f}ns"
        )
    copies_s = [sample.copy_ns / 1e9 for sample in samples if sample.copy_ns]
    if copies_s and fastest_s * COPY_SLACK < min(copies_s):
        problems.append(
            f"a call of {format_duration(max(fastest_s, 1e-9))} is faster than memory: copying "
            f"what it brings takes {format_duration(min(copies_s))}"
        )
    for rank, sample in enumerate(samples):
        total_ns = int(sample.times_ns.sum())
        if total_ns > sample.wall_ns:
            problems.append(
                f"rank {rank}'s calls take {format_duration(total_ns / 1e9)} together, more than "
                f"the {format_duration(max(sample.wall_ns, 1) / 1e9)} that passed"
            )
    return problems
