"""Gate: the fixture that measures. Its verdict is the outcome of the test that asked for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from perfgate.comm.bandwidth import factor
from perfgate.errors import UsageError
from perfgate.gate.ratio import portable
from perfgate.judgement import AgainstLimit, Judgement
from perfgate.measure import PairTiming, Timing, try_once
from perfgate.model import Case, Policy, Verdict, WorldSpec
from perfgate.run import Run
from perfgate.units import parse_size


@dataclass
class Gate:
    """What one test measures, and what came of it.

    Without ``--perfgate`` each case runs a few times, its data verified, and nothing is decided:
    the methods return None then.

    :param test: the test's node id, part of every case's id.
    :param defaults: what the test's ``perfgate`` marker says.
    """

    run: Run
    test: str
    spec: WorldSpec
    defaults: dict[str, Any]
    verdicts: list[Verdict] = field(default_factory=list)
    _decisions: int = 0

    def collective(
        self,
        op: str,
        *,
        size: str | int,
        dtype: str = "float32",
        max_regression: float | str | None = None,
        must_catch: float | str | None = None,
    ) -> Verdict | None:
        """Measure and gate one collective on the test's world.

        :param size: nccl-tests' size, ``"256KiB"`` or bytes; it must divide among the ranks.
        :param max_regression: the limit, ``0.10`` or ``"10%"``.
        :param must_catch: the slowdown that a PASS excludes; 2.5 times the limit by default.
        :raises UsageError: for an op, size, dtype or limit that cannot be.
        """
        __tracebackhide__ = True
        spec = self.spec
        size_bytes = parse_size(size)
        case = Case(
            test=self.test,
            op=op,
            world=spec,
            size_bytes=size_bytes,
            dtype=dtype,
            busbw_factor=factor(op, spec.size),
        )
        timing = Timing("time_collective", (op, size_bytes, dtype, spec.provider, spec.device))
        return self._gate(case, timing, max_regression, must_catch)

    def throughput(
        self,
        function: Callable[..., Any],
        *,
        items: float,
        unit: str = "items",
        setup: Callable[[], Any] | None = None,
        max_regression: float | str | None = None,
        must_catch: float | str | None = None,
    ) -> Verdict | None:
        """Measure and gate a function that every rank of the test's world runs.

        :param items: what one call works off over all ranks together; ``unit`` names it.
        :param setup: runs once a launch on every rank; its result is the function's argument.
        :raises UsageError: for items or a limit that is not above zero.
        """
        __tracebackhide__ = True
        if not items > 0:
            raise UsageError(f"items={items!r} must be above zero: what one call works off")
        case = Case(
            test=self.test, op=_name(function), world=self.spec, items=float(items), unit=unit
        )
        timing = Timing("time_function", (function, setup))
        return self._gate(case, timing, max_regression, must_catch)

    def ratio(
        self,
        function: Callable[..., Any],
        *,
        to: Callable[..., Any],
        at_most: float | None = None,
        setup: Callable[[], Any] | None = None,
        max_regression: float | str | None = None,
        must_catch: float | str | None = None,
    ) -> Verdict | None:
        """Measure and gate how much of another function's time a function takes.

        Calls of both alternate in one world, so that the ratio resolves about 1 % and holds on
        other machines too.

        :param at_most: what the ratio must not pass; without it, the stored portable ratio is
            what it is held against.
        :param setup: runs twice a launch on every rank, once for each function.
        :raises UsageError: for a limit that is not above zero.
        """
        __tracebackhide__ = True
        op = f"{_name(function)}/{_name(to)}"
        case = Case(test=self.test, op=op, world=self.spec)
        timing = PairTiming("time_pair", (function, to, setup))
        policy = self._policy(max_regression, must_catch)
        if at_most is None:
            return self._conclude(case, timing, lambda: self.run.against_portable(case, policy))
        if not (isinstance(at_most, (int, float)) and 0 < at_most < math.inf):
            raise UsageError(f"at_most={at_most!r} must be above zero; 0.60 is six tenths of it")
        return self._conclude(case, timing, lambda: AgainstLimit(at_most, policy.alpha))

    def _gate(
        self, case: Case, timing: Timing, max_regression: object, must_catch: object
    ) -> Verdict | None:
        __tracebackhide__ = True
        policy = self._policy(max_regression, must_catch)
        return self._conclude(case, timing, lambda: self.run.against_baseline(case, policy))

    def _conclude(
        self, case: Case, timing: Timing, judgement: Callable[[], Judgement]
    ) -> Verdict | None:
        """Try the case out, or measure it and keep the verdict."""
        __tracebackhide__ = True
        if not self.run.settings.gated:
            problems = try_once(case, timing, self.run.worlds)
            if problems:
                raise WrongResult("; ".join(problems))
            return None
        where = portable() if isinstance(timing, PairTiming) else None
        verdict = self.run.judge(case, timing, judgement(), where)
        self.verdicts.append(verdict)
        return verdict

    def _policy(self, max_regression: object, must_catch: object) -> Policy:
        self._decisions += 1
        limit = self.defaults.get("max_regression") if max_regression is None else max_regression
        catch = self.defaults.get("must_catch") if must_catch is None else must_catch
        return self.run.settings.policy(self.run.alpha(self._decisions), limit, catch)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "function"))


class WrongResult(AssertionError):
    """A collective gave a wrong result."""
