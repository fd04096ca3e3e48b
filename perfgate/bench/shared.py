"""Several groups at once in one window: what they do to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfgate.bench.request import Request, Shared
from perfgate.comm.bandwidth import busbw_gbps

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRow:
    """An op in several groups of one world, alone and at once.

    nccl-tests runs groups side by side and leaves it to the reader to multiply; here all groups
    enter a call together, and the bytes of all count over the one window from the first rank's
    entering to the last one's leaving.

    :param alone_s: the median call of the slowest group while the others are idle.
    :param together_s: the median window of a call in all groups at once.
    :param contention: the largest ratio, over the groups, of a group's call at once to alone.
    :param aggregate_busbw_gbps: the groups' bus bandwidth together in that window.
    """

    request: Request
    world_size: int
    group_size: int
    alone_s: float
    together_s: float
    contention: float
    aggregate_busbw_gbps: float
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: Request, samples: Sequence[Shared]) -> SharedRow:
        """Combine the ranks' stamps, which one host's clock made comparable."""
        groups = range(request.groups)
        members = [[s for s in samples if s.group == group] for group in groups]
        alone = [float(np.median(_window_s([s.alone_ns for s in m]))) for m in members]
        at_once = [float(np.median(_window_s([s.together_ns for s in m]))) for m in members]
        window_s = float(np.median(_window_s([s.together_ns for s in samples])))
        size = len(samples) // request.groups
        busbw = busbw_gbps(request.op, request.size_bytes, window_s, size)
        return cls(
            request=request,
            world_size=len(samples),
            group_size=size,
            alone_s=max(alone),
            together_s=window_s,
            contention=max(b / a for a, b in zip(alone, at_once, strict=True)),
            aggregate_busbw_gbps=busbw * request.groups,
            problems=tuple(s.problem for s in samples if s.problem),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            **asdict(self.request),
            "world_size": self.world_size,
            "group_size": self.group_size,
            "alone_s": self.alone_s,
            "together_s": self.together_s,
            "contention": self.contention,
            "aggregate_busbw_gbps": self.aggregate_busbw_gbps,
            "valid": not self.problems,
            "problems": list(self.problems),
        }


def _window_s(stamps_ns: Sequence[npt.NDArray[np.int64]]) -> Seconds:
    """Return each call's time from the first entering to the last leaving: ``[trials]``."""
    entered = np.min([stamps[:, 0] for stamps in stamps_ns], axis=0)
    left = np.max([stamps[:, 1] for stamps in stamps_ns], axis=0)
    seconds: Seconds = (left - entered) / 1e9
    return seconds
