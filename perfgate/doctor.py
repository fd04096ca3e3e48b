"""``perfgate doctor``: what this machine lets the gate see, tried on the spot.

Each case is measured twice as it is and once with a planted slowdown, in rounds, so that minutes
lie between the two. What differs between the first two is noise; the third must be found.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from perfgate.comm.bandwidth import factor
from perfgate.gate.allocate import Design, to_detect
from perfgate.gate.decide import decide
from perfgate.gate.noise import steadiest_figure
from perfgate.gate.pace import follows
from perfgate.gate.stats import Figure, launches_of
from perfgate.measure import Effort, Timing, measure
from perfgate.model import (
    Baseline,
    Case,
    Measurement,
    Outcome,
    Policy,
    Session,
    Verdict,
    WorldSpec,
)
from perfgate.run import RUN_ALPHA
from perfgate.units import (
    format_duration,
    format_percent,
    format_size,
    parse_duration,
    parse_size,
)
from perfgate.world.pool import Worlds

PLANTED = 0.25
WANTED = (0.05, 0.10)
QUANTILES = ("p25_s", "p10_s", "p50_s")
CASES_OF_A_RUN = 30
_HERE = "this machine"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one case.

    :param spread: standard deviation of the steadiest figure's log between launches.
    :param same: the verdict on unchanged code, ``planted`` on the slowdown.
    """

    case: Case
    figure: str
    spread: float
    launches: int
    same: Verdict
    planted: Verdict

    def sees(self, sessions: int) -> float:
        """Return the smallest slowdown that is found against so many stored sessions."""
        design = Design(spread=self.spread, launches=self.launches, sessions=sessions)
        return design.detectable(alpha=RUN_ALPHA / CASES_OF_A_RUN)

    def way_to(self, size: float) -> str:
        """Return the settings with which a slowdown of this size is found."""
        design = Design(spread=self.spread, launches=self.launches)
        found = to_detect(size, design, alpha=RUN_ALPHA / CASES_OF_A_RUN)
        if found is None:
            return "not here"
        return f"{found.sessions} x {found.launches}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument("--op", action="append", help="a collective (default: all_reduce)")
    parser.add_argument("--size", action="append", help="default: 4KiB, 256KiB and 4MiB")
    parser.add_argument("--world-size", type=int, default=2, metavar="N")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--launches", type=int, default=8, metavar="N")
    parser.add_argument("--budget", default="30", metavar="SECONDS", help="default: 30")


def run(args: argparse.Namespace) -> int:
    """Measure and print; return 1 when a planted slowdown was overlooked, else 0."""
    device = "cuda" if args.backend == "nccl" else "cpu"
    spec = WorldSpec(size=args.world_size, backend=args.backend, device=device)
    sizes = [parse_size(size) for size in args.size or ("4KiB", "256KiB", "4MiB")]
    cases = [
        Case(
            test="doctor",
            op=op,
            world=spec,
            size_bytes=size,
            dtype="float32",
            busbw_factor=factor(op, spec.size),
        )
        for op in args.op or ("all_reduce",)
        for size in sizes
    ]
    effort = Effort.share(parse_duration(args.budget), 3 * len(cases), args.launches)
    findings = examine(cases, effort)
    _print(findings)
    return int(any(finding.planted.outcome is Outcome.PASS for finding in findings))


def examine(cases: Sequence[Case], effort: Effort) -> list[Finding]:
    """Measure the cases in three rounds, the last with the slowdown, and decide.

    :raises UsageError: for a case that cannot be.
    """
    rounds: list[list[Measurement]] = []
    with Worlds() as worlds:
        for number, slowdown in enumerate((0.0, 0.0, PLANTED), start=1):
            measurements = []
            for case in cases:
                _tell(f"round {number} of 3: {case.label}")
                measurements.append(_measure(case, slowdown, worlds, effort))
            rounds.append(measurements)
    _tell("")
    return [_finding(*three) for three in zip(*rounds, strict=True)]


def _measure(case: Case, slowdown: float, worlds: Worlds, effort: Effort) -> Measurement:
    world = case.world
    args = (case.op, case.size_bytes, case.dtype, world.provider, world.device)
    timing = Timing("time_collective", args, slowdown)
    return measure(case, _HERE, timing, worlds, effort, lambda *_: None)


def _finding(first: Measurement, second: Measurement, slowed: Measurement) -> Finding:
    sessions = [_session(first), _session(second)]
    share = follows(first.case)
    quantile = steadiest_figure(sessions, QUANTILES, share)
    figure = Figure(quantile, share).known_of(launches_of(sessions))
    logs = [figure.logs(session.launches) for session in sessions]
    spread = math.sqrt(np.mean([np.var(values, ddof=1) for values in logs]))
    baseline = Baseline(
        case_id=first.case.id,
        environment=_HERE,
        sessions=(sessions[0],),
        figure=quantile,
        follows=share,
    )
    policy = Policy(alpha=RUN_ALPHA / CASES_OF_A_RUN)
    return Finding(
        case=first.case,
        figure=quantile,
        spread=float(spread),
        launches=len(first.launches),
        same=decide(second, baseline, policy),
        planted=decide(slowed, baseline, policy),
    )


def _session(measurement: Measurement) -> Session:
    return Session(
        commit=_HERE,
        date="",
        launches=measurement.launches,
        others_share=measurement.others_share,
    )


def _print(findings: Sequence[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    columns = ("case", "time", "launches", "twice", "planted", "sees 1", "sees 5", "10%", "5%")
    for column in columns:
        table.add_column(column, justify="left" if column == "case" else "right", no_wrap=True)
    group = ""
    for finding in findings:
        if finding.case.op != group:
            group = finding.case.op
            table.add_row(group)
        table.add_row(
            f"  {format_size(finding.case.size_bytes or 0)}",
            format_duration(finding.same.time_s),
            _plain(math.expm1(finding.spread)),
            format_percent(finding.same.change),
            format_percent(finding.planted.change),
            _plain(finding.sees(1)),
            _plain(finding.sees(5)),
            *(finding.way_to(size) for size in reversed(WANTED)),
        )
    Console(width=None if sys.stdout.isatty() else 80, highlight=False).print(table)
    sys.stdout.write(_LEGEND.format(planted=format_percent(PLANTED), cases=CASES_OF_A_RUN))


_LEGEND = """
launches     how much launches of one session differ
twice        unchanged code, measured again
planted      code slowed down by {planted}
sees 1, 5    the smallest slowdown found in 95 % of runs of {cases} cases, with so
             many stored sessions
10%, 5%      what would find that much: sessions x launches of each
"""


def _plain(fraction: float) -> str:
    return format_percent(fraction).removeprefix("+")


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
