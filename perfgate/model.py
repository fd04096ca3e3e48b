"""The values that cross perfgate's seams: frozen, self-checking, free of torch and numpy.

Every time is in seconds, every size in bytes, every change a ratio less one (``0.1`` is ten
percent slower) unless the name says otherwise.
"""

from __future__ import annotations

import enum
import math
from dataclasses import asdict, dataclass, field

from perfgate.errors import UsageError
from perfgate.units import format_duration, format_percent, format_rate, format_size

BACKENDS = ("gloo", "nccl")
DEVICES = ("cpu", "cuda")
PROVIDERS = ("torch", "perfgate", "deepspeed")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name}={value!r} is not known; choose one of {', '.join(allowed)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """A group of ranks: how many, over what, on what, and whose collectives are called.

    ``deadline_s`` bounds each function run on it and is no part of the world's identity.
    """

    size: int = 2
    backend: str = "gloo"
    device: str = "cpu"
    provider: str = "torch"
    deadline_s: float = field(default=60.0, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise UsageError(
                f"world size is {self.size!r}; a world has a whole number of ranks, 1 or more"
            )
        _one_of("backend", self.backend, BACKENDS)
        _one_of("device", self.device, DEVICES)
        _one_of("provider", self.provider, PROVIDERS)
        if self.backend == "nccl" and self.device != "cuda":
            raise UsageError(
                "backend='nccl' moves GPU memory only; use device='cuda' or backend='gloo'"
            )
        if not (self.deadline_s > 0 and math.isfinite(self.deadline_s)):
            raise UsageError(f"deadline is {self.deadline_s!r} s; it must be above zero and finite")

    def __str__(self) -> str:
        return f"x{self.size} {self.backend}/{self.device} {self.provider}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a baseline is kept for.

    :param test: the pytest node id that measures it.
    :param op: the collective, or the name of the function that is timed.
    :param size_bytes: nccl-tests' size, None where there is no message.
    :param busbw_factor: bus bytes a message byte, see :mod:`perfgate.comm.bandwidth`.
    :param items: what one call works off, for a throughput; ``unit`` names it.
    """

    test: str
    op: str
    world: WorldSpec
    size_bytes: int | None = None
    dtype: str | None = None
    busbw_factor: float | None = None
    items: float | None = None
    unit: str | None = None

    @property
    def label(self) -> str:
        """The short name: ``all_reduce 256KiB float32 x2``."""
        size = None if self.size_bytes is None else format_size(self.size_bytes)
        return " ".join(part for part in (self.op, size, self.dtype, f"x{self.world.size}") if part)

    @property
    def id(self) -> str:
        """The baseline's key: readable, stable, and distinct wherever figures may differ."""
        world = self.world
        return f"{self.test} | {self.label} {world.backend}/{world.device} {world.provider}"

    def algbw_gbps(self, time_s: float) -> float | None:
        """Size over time, in Gb/s; None where there is no message or no time."""
        if self.size_bytes is None or not time_s > 0:
            return None
        return self.size_bytes * 8 / time_s / 1e9

    def busbw_gbps(self, time_s: float) -> float | None:
        """Bus bandwidth in Gb/s by nccl-tests' convention."""
        algbw_gbps = self.algbw_gbps(time_s)
        if algbw_gbps is None or self.busbw_factor is None:
            return None
        return algbw_gbps * self.busbw_factor

    def items_per_s(self, time_s: float) -> float | None:
        """Throughput in ``unit`` a second."""
        return self.items / time_s if self.items is not None and time_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One fresh world's figures for a case: quantiles over its calls, each the slowest rank's.

    ``probe_s`` is a round trip of the machine's probe meanwhile, where there was one.
    """

    p10_s: float
    p25_s: float
    p50_s: float
    p95_s: float
    calls: int
    probe_s: float | None = None

    def __post_init__(self) -> None:
        figures = (self.p10_s, self.p25_s, self.p50_s, self.p95_s)
        if self.probe_s is not None and not (math.isfinite(self.probe_s) and self.probe_s > 0):
            raise ValueError(f"a probe's time must be finite and above zero, got {self.probe_s} s")
        if not all(math.isfinite(figure) and figure > 0 for figure in figures):
            raise ValueError(f"a launch's times must be finite and above zero, got {figures} s")
        if list(figures) != sorted(figures):
            raise ValueError(f"quantiles must not fall: p10, p25, p50, p95 = {figures} s")
        if self.calls < 1:
            raise ValueError(f"a launch holds at least one call, got {self.calls}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One accepted run of a case: several launches of one commit.

    ``others_share`` is the share of the processor that other processes used meanwhile, 0 to 1.
    """

    commit: str
    date: str
    launches: tuple[Launch, ...]
    others_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The accepted sessions of one case in one environment, oldest first.

    ``figure`` is the quantile of a launch that is compared, chosen at calibration; ``follows`` by
    how much of a change of the machine's pace the log of it changes (:mod:`perfgate.gate.pace`).
    """

    case_id: str
    environment: str
    sessions: tuple[Session, ...]
    figure: str = "p25_s"
    follows: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured of a case now. ``problems`` holds why it is not to be believed, if so.

    ``others_share`` is the share of the processor that other processes used meanwhile, 0 to 1.
    ``time_s`` is the typical call's time where launches hold ratios, which do not tell it.
    """

    case: Case
    environment: str
    launches: tuple[Launch, ...]
    problems: tuple[str, ...] = ()
    others_share: float = 0.0
    time_s: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the gate is asked for.

    :param max_regression: the limit. A slowdown is a REGRESSION when it is significant and its
        estimate lies above this.
    :param must_catch: the size that a PASS excludes. A case that could not have seen it is
        INCONCLUSIVE.
    :param alpha: the chance of a false REGRESSION allowed to this one decision; the run's 1 %
        already divided among its cases.
    """

    max_regression: float = 0.10
    must_catch: float = 0.25
    alpha: float = 0.01

    def __post_init__(self) -> None:
        for name in ("max_regression", "must_catch"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise UsageError(f"{name}={value!r} must be above zero; 0.10 is ten percent")
        if self.must_catch < self.max_regression:
            raise UsageError(
                f"must_catch={self.must_catch:g} is below max_regression={self.max_regression:g}; "
                "what must be caught is at least the limit"
            )
        if not 0 < self.alpha < 0.5:
            raise UsageError(f"alpha={self.alpha!r} must lie between 0 and 0.5")


class Outcome(str, enum.Enum):
    """The six things a gate can say."""

    PASS = "PASS"
    REGRESSION = "REGRESSION"
    IMPROVEMENT = "IMPROVEMENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"
    INVALID = "INVALID"

    __str__ = str.__str__

    @property
    def fails(self) -> bool:
        """Whether the test that measured it fails."""
        return self in (Outcome.REGRESSION, Outcome.INVALID)

    @property
    def unanswered(self) -> bool:
        """Whether the question stays open: a skip, and a failure under ``--perfgate-strict``."""
        return self in (Outcome.INCONCLUSIVE, Outcome.NO_BASELINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision on one case, with everything that a reader of it needs.

    ``change`` is the estimated change of time with its interval ``lower`` to ``upper`` at the
    decision's alpha; ``mde`` is the smallest slowdown this decision finds in 95 % of runs, and
    is what tables call noise. All three are ratios less one. ``pace`` is how much longer the
    machine's probe takes now than for the baseline, which ``change`` allows for.
    """

    outcome: Outcome
    case: Case
    environment: str
    time_s: float = math.nan
    change: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    limit: float = math.nan
    must_catch: float = math.nan
    mde: float = math.nan
    pace: float = math.nan
    reason: str = ""
    next_step: str = ""
    baseline_commit: str = ""
    baseline_sessions: int = 0
    launches: int = 0

    @property
    def figure(self) -> str:
        """The time, with the bus bandwidth or the throughput where there is one."""
        if not math.isfinite(self.time_s):
            return ""
        busbw_gbps = self.case.busbw_gbps(self.time_s)
        items_per_s = self.case.items_per_s(self.time_s)
        parts = [format_duration(self.time_s)]
        if busbw_gbps is not None:
            parts.append(f"busbw {format_rate(busbw_gbps)}")
        if items_per_s is not None:
            parts.append(f"{items_per_s:.4g} {self.case.unit or 'items'}/s")
        return ", ".join(parts)

    @property
    def line(self) -> str:
        """The one line that failure, JUnit, table, summary and annotation all show."""
        change = ""
        if math.isfinite(self.change):
            change = f"{format_percent(self.change)} (limit {format_percent(self.limit)}"
            change += f", noise {format_percent(self.mde).lstrip('+')})"
        facts = ", ".join(part for part in (self.figure, change) if part)
        more = (self.reason, self.next_step and f"next: {self.next_step}")
        told = "; ".join(part for part in (facts, *more) if part)
        return f"{self.outcome} {self.case.label}: {told}"

    def properties(self) -> dict[str, str]:
        """JUnit properties of the test case, by name; figures that do not exist are left out."""
        figures = {
            "time_us": self.time_s * 1e6,
            "algbw_gbps": self.case.algbw_gbps(self.time_s),
            "busbw_gbps": self.case.busbw_gbps(self.time_s),
            "items_per_s": self.case.items_per_s(self.time_s),
            "change_percent": self.change * 100,
            "lower_percent": self.lower * 100,
            "upper_percent": self.upper * 100,
            "limit_percent": self.limit * 100,
            "mde_percent": self.mde * 100,
            "pace_percent": self.pace * 100,
        }
        texts = {
            "verdict": str(self.outcome),
            "environment": self.environment,
            "baseline_commit": self.baseline_commit,
            "case": self.case.id,
        }
        known = {k: f"{v:.6g}" for k, v in figures.items() if v is not None and math.isfinite(v)}
        return known | {k: v for k, v in texts.items() if v}

    def as_json(self) -> dict[str, object]:
        """The verdict as plain data, for the run's record; figures that do not exist are None."""
        record = asdict(self) | {"outcome": str(self.outcome), "line": self.line}
        return {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in record.items()
        }
