"""Change points over stored sessions: the slow drifts and lasting steps no single run can see.

Binary segmentation. In each segment the split with the largest standardised difference of means
is sought (CUSUM), and believed when a permutation of the sessions seldom gives one as large: the
maximum over all splits is compared with maxima over all splits, so that searching for the split
costs no error. With the permutations' fixed seed the same history gives the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfgate.gate.noise import baseline_means
from perfgate.gate.stats import Floats
from perfgate.model import Baseline
from perfgate.units import format_percent

ALPHA = 0.01
LEAST = 3
"""Sessions on either side of a change."""
PERMUTATIONS = 2000
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A lasting step in a case's history.

    :param index: the first session after it, and that session's ``commit`` and ``date``.
    :param change: of the time, a ratio less one.
    :param p: how often chance gives a step as large somewhere in the segment.
    """

    index: int
    commit: str
    date: str
    before_s: float
    after_s: float
    p: float

    @property
    def change(self) -> float:
        """The step, as a ratio less one."""
        return self.after_s / self.before_s - 1


def change_points(baseline: Baseline, *, alpha: float = ALPHA) -> list[ChangePoint]:
    """Return the lasting steps in a case's stored sessions, oldest first."""
    sessions = tuple(session for session in baseline.sessions if session.launches)
    if len(sessions) < 2 * LEAST:
        return []
    values = np.array([mean.value for mean in baseline_means(replace(baseline, sessions=sessions))])
    splits = _split(values, 0, alpha)
    edges = [0, *sorted(splits), len(values)]
    return [
        ChangePoint(
            index=edges[k],
            commit=sessions[edges[k]].commit,
            date=sessions[edges[k]].date,
            before_s=math.exp(values[edges[k - 1] : edges[k]].mean()),
            after_s=math.exp(values[edges[k] : edges[k + 1]].mean()),
            p=splits[edges[k]],
        )
        for k in range(1, len(edges) - 1)
    ]


def _split(values: Floats, offset: int, alpha: float) -> dict[int, float]:
    """Return p by the index of each believed split of a segment and of its parts."""
    if values.size < 2 * LEAST or np.ptp(values) == 0:
        return {}
    steps = _steps(values[None])[0]
    at = int(steps.argmax())
    rng = np.random.default_rng(SEED)
    shuffled = rng.permuted(np.tile(values, (PERMUTATIONS, 1)), axis=1)
    as_large = int((_steps(shuffled).max(axis=1) >= steps[at] * (1 - 1e-9)).sum())
    p = (1 + as_large) / (1 + PERMUTATIONS)
    if p > alpha:
        return {}
    split = at + LEAST
    left = _split(values[:split], offset, alpha)
    right = _split(values[split:], offset + split, alpha)
    return {offset + split: p} | left | right


def _steps(rows: Floats) -> Floats:
    """Return the standardised step at each admissible split, shape ``(rows, splits)``."""
    count = rows.shape[1]
    sizes = np.arange(LEAST, count - LEAST + 1)
    sums = np.cumsum(rows, axis=1)
    left = sums[:, sizes - 1]
    means = left / sizes - (sums[:, -1:] - left) / (count - sizes)
    steps: Floats = np.abs(means) * np.sqrt(sizes * (count - sizes) / count)
    return steps


def latest(points: Sequence[ChangePoint]) -> str:
    """Return one line on the last step, empty where there was none."""
    if not points:
        return ""
    point = points[-1]
    return f"{format_percent(point.change)} since {point.commit[:12]} of {point.date[:10]}"
