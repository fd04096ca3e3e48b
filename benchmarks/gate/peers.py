"""What other tools would have said: their rules for a regression, from their documentation.

Each rule is given the same calls, in seconds, one array a launch, and says whether it would have
flagged the head as slower. Where a tool times blocks, a block is the mean of 20 calls. A tool
that knows one process only is given the calls of all launches together, which is more than it
would have had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

Calls = Sequence[npt.NDArray[np.float64]]
Rule = Callable[[Calls, Calls], bool]
BLOCK = 20


def blocks(launches: Calls) -> npt.NDArray[np.float64]:
    """Return the means of blocks of 20 calls, over all launches, shape ``(blocks,)``."""
    whole = [calls[: calls.size // BLOCK * BLOCK] for calls in launches]
    return np.concatenate([calls.reshape(-1, BLOCK).mean(axis=1) for calls in whole])


def pytest_benchmark_mean(base: Calls, head: Calls) -> bool:
    """``--benchmark-compare-fail=mean:10%``."""
    return bool(np.concatenate(head).mean() > 1.10 * np.concatenate(base).mean())


def pytest_benchmark_min(base: Calls, head: Calls) -> bool:
    """``--benchmark-compare-fail=min:10%``."""
    return bool(np.concatenate(head).min() > 1.10 * np.concatenate(base).min())


def github_action_benchmark(base: Calls, head: Calls) -> bool:
    """``alert-threshold: 200%`` of the mean."""
    return bool(np.concatenate(head).mean() > 2.0 * np.concatenate(base).mean())


def asv_continuous(base: Calls, head: Calls) -> bool:
    """Mann-Whitney p < 0.002 on pooled samples, and medians apart by ``--factor 1.1``."""
    one, other = blocks(base), blocks(head)
    slower = np.median(other) > 1.1 * np.median(one)
    return bool(slower and stats.mannwhitneyu(one, other).pvalue < 0.002)


def benchstat(base: Calls, head: Calls) -> bool:
    """Mann-Whitney p < 0.05 on one mean a run (``-count``); no limit on the size."""
    one, other = (np.array([calls.mean() for calls in side]) for side in (base, head))
    slower = np.median(other) > np.median(one)
    return bool(slower and stats.mannwhitneyu(one, other).pvalue < 0.05)


def criterion(base: Calls, head: Calls) -> bool:
    """T-test p < 0.05, and the mean's bootstrapped change beyond the noise threshold of 1 %."""
    one, other = blocks(base), blocks(head)
    if not stats.ttest_ind(one, other, equal_var=False).pvalue < 0.05:
        return False
    rng = np.random.default_rng(0)
    means = [
        side[rng.integers(side.size, size=(200, side.size))].mean(axis=1) for side in (one, other)
    ]
    return bool(np.quantile(means[1] / means[0] - 1, 0.025) > 0.01)


def otava(base: Calls, head: Calls) -> bool:
    """The split that parts the series of runs' means best, where a t-test has p < 0.001."""
    series = np.array([calls.mean() for calls in [*base, *head]])
    splits = range(2, series.size - 2)
    found = [stats.ttest_ind(series[:k], series[k:]) for k in splits]
    best = min(found, key=lambda test: float(test.pvalue))
    return bool(best.pvalue < 0.001 and best.statistic < 0)


RULES: dict[str, Rule] = {
    "pytest-benchmark mean:10%": pytest_benchmark_mean,
    "pytest-benchmark min:10%": pytest_benchmark_min,
    "asv continuous": asv_continuous,
    "benchstat": benchstat,
    "criterion": criterion,
    "github-action-benchmark 200%": github_action_benchmark,
    "Otava": otava,
}

Score = Callable[[Calls, Calls], float]


def _ratio_of(figure: Callable[[npt.NDArray[np.float64]], float]) -> Score:
    def score(base: Calls, head: Calls) -> float:
        return figure(np.concatenate(head)) / figure(np.concatenate(base))

    return score


SCORES: dict[str, Score] = {
    "mean": _ratio_of(lambda calls: float(calls.mean())),
    "median": _ratio_of(lambda calls: float(np.median(calls))),
    "min": _ratio_of(lambda calls: float(calls.min())),
}
"""What threshold rules compare, to see what they can do at the best threshold there is."""
