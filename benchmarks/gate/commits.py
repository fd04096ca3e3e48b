"""How much two live worlds of the same code differ, launch by launch: what two commits are up to.

Each line is a case: the standard deviation of a launch's log ratio, their mean, and the pairs in
a launch. ``python benchmarks/gate/commits.py PYTHON [LAUNCHES] [LAUNCH_S]``; PYTHON is the base's.
"""

from __future__ import annotations

import sys

import numpy as np

from perfgate import Case, WorldSpec
from perfgate.base import Base
from perfgate.duel import measure_beside
from perfgate.gate.stats import log_figures
from perfgate.measure import Effort, Timing
from perfgate.units import parse_size
from perfgate.world.interpreter import describe
from perfgate.world.pool import Worlds

SIZES = ("4KiB", "256KiB", "4MiB")


def main() -> None:
    """Measure and print."""
    base = Base(interpreter=describe(sys.argv[1]), name="base", checkout="/nowhere", seed=1)
    launches, launch_s = (
        float(word) for word in (*sys.argv[2:], *("16", "0.3")[len(sys.argv) - 2 :])
    )
    print(f"{'case':<32} {'SD':>7} {'mean':>8} {'pairs':>6} {'time':>8}")
    with Worlds() as worlds:
        for op in ("all_reduce", "broadcast"):
            for size in SIZES:
                _print(op, size, base, worlds, Effort(int(launches), launch_s))


def _print(op: str, size: str, base: Base, worlds: Worlds, effort: Effort) -> None:
    spec = WorldSpec()
    case = Case(test="commits", op=op, world=spec, size_bytes=parse_size(size), dtype="float32")
    args = (op, case.size_bytes, "float32", spec.provider, spec.device)
    timing = Timing("time_collective", args)
    found = measure_beside(
        case, "here", timing, worlds, effort, lambda *_: None, base=base, attempt=""
    )
    logs = log_figures(found.launches, "p50_s")
    pairs = np.median([launch.calls for launch in found.launches])
    print(
        f"{case.label:<32} {logs.std(ddof=1):7.4f} {logs.mean():+8.4f} {pairs:6.0f} "
        f"{found.time_s * 1e6:6.0f}us",
        flush=True,
    )


if __name__ == "__main__":
    main()
