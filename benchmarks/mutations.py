"""Break the reducer in many ways, each in a copy of the package, and show which test tells.

    python benchmarks/mutations.py [--jobs N] [WORD ...]

A word restricts the run to mutations whose description holds it. The exit status is 1 when a
mutation survives, or when the suite fails without any.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = [
    "suites/zero/test_layout.py",
    "suites/zero/test_hooks.py",
    "suites/zero/test_equivalence.py",
    "suites/zero/test_rounding.py",
    "suites/zero/test_groups.py",
    "suites/zero/test_volume.py",
    "suites/zero/test_agreement.py",
    "suites/zero/test_training.py",
]
FIRST = {
    "agreement.py": "suites/zero/test_agreement.py",
    "config.py": "suites/zero/test_rounding.py",
    "gather.py": "suites/zero/test_training.py",
    "groups.py": "suites/zero/test_groups.py",
    "exchange.py": "suites/zero/test_equivalence.py",
    "message.py": "suites/zero/test_equivalence.py",
    "optimizer.py": "suites/zero/test_training.py",
    "scaling.py": "suites/zero/test_rounding.py",
    "steps.py": "suites/zero/test_training.py",
}
"""Where to look first: the whole suite runs until something tells."""
OPTIONS = ["-xq", "--no-header", "-p", "no:cacheprovider", "-o", "perfgate_deadline=20"]
OPTIONS += ["-k", "not on_the_wire"]  # starts worlds of its own; calls are counted all the same
TIMEOUT_S = 300


@dataclass(frozen=True)
class Mutation:
    """What is broken: in ``file``, ``old`` becomes ``new``. ``old`` stands there once."""

    what: str
    file: str
    old: str
    new: str


MUTATIONS = [
    # The layout
    Mutation(
        "a slice reaches one element into the next partition", "partition.py",
        "self.partition_numel - within)", "self.partition_numel - within + 1)",
    ),
    Mutation(
        "the last element of a parameter is dropped", "partition.py",
        "while start < self.numels[param]:", "while start + 1 < self.numels[param]:",
    ),
    Mutation(
        "owners are permuted", "partition.py",
        "yield Slice(param, owner, start", "yield Slice(param, self.partitions - 1 - owner, start",
    ),
    Mutation(
        "partitions are rounded down", "partition.py",
        "_round_up(-(-end // partitions), alignment)", "_round_up(end // partitions, alignment)",
    ),
    Mutation(
        "dealing forgets the last parameter", "partition.py",
        "for item in range(hand, count, hands)", "for item in range(hand, count - 1, hands)",
    ),
    Mutation(
        "parameters are not aligned", "partition.py",
        "offsets[param] = _round_up(end, parameter_alignment)", "offsets[param] = end",
    ),
    Mutation(
        "padding is not zero", "groups.py",
        "owned=torch.zeros(layout", "owned=torch.ones(layout",
    ),
    # Buckets
    Mutation(
        "the last bucket is dropped", "bucket.py",
        "    for group in range(len(layouts)):\n        close(group)",
        "    for group in range(len(layouts) - 1):\n        close(group)",
    ),
    Mutation(
        "runs are merged that are no neighbours", "bucket.py",
        "if last and last.flat + last.numel == piece.flat:", "if last:",
    ),
    Mutation(
        "every run is taken from the start of the message", "bucket.py",
        "runs.append(Run(position, ", "runs.append(Run(0, ",
    ),
    Mutation(
        "messages are not grouped by owner", "bucket.py",
        "key=lambda s: s.flat)", "key=lambda s: s.param)",
    ),
    Mutation(
        "a full bucket is sent too early", "bucket.py",
        "filled[group] + numel > bucket_numel", "filled[group] + numel >= bucket_numel",
    ),
    Mutation(
        "a parameter that fits no bucket grows it", "bucket.py",
        "if filled[group] + numel > bucket_numel:", "if filled[group] > bucket_numel:",
    ),
    # Scaling
    Mutation(
        "the divisor forgets sequence parallelism", "scaling.py",
        "ranks / sequence_parallel_size if mean", "float(ranks) if mean",
    ),
    Mutation(
        "a sum is averaged", "scaling.py",
        "ranks / sequence_parallel_size if mean else 1.0", "ranks / sequence_parallel_size",
    ),
    Mutation(
        "predividing is not made up for", "scaling.py",
        "return cls(before, divisor / before)", "return cls(before, divisor)",
    ),
    Mutation(
        "predividing by the number of ranks ends the division", "scaling.py",
        "return cls(before, divisor / before)",
        "return cls(before, 1.0 if before == ranks else divisor / before)",
    ),
    Mutation(
        "gradients are cast before they are divided", "scaling.py",
        "torch.div(gradient.to(wider), self.before, out=place)",
        "place.copy_(gradient).div_(self.before)",
    ),
    Mutation(
        "the sum is multiplied by a reciprocal", "scaling.py",
        "torch.div(total, self.after, out", "torch.mul(total, 1 / self.after, out",
    ),
    # Strategies
    Mutation(
        "the exchange adds in the dtype that travels", "message.py",
        "return torch.float64 if dtype == torch.float64 else torch.float32", "return dtype",
    ),
    Mutation(
        "the exchange adds the own part first", "exchange.py",
        "rows.insert(rank, parts[rank])", "rows.insert(0, parts[rank])",
    ),
    Mutation(
        "the exchange stops at the shortest part", "exchange.py",
        "enumerate(spans(max(message.counts), length))",
        "enumerate(spans(min(message.counts), length))",
    ),
    Mutation(
        "the exchange does not wait for what it receives", "exchange.py",
        "for work in works:\n                    work.wait()\n                sum_by", "sum_by",
    ),
    Mutation(
        "the tail of a chunk is not added", "message.py",
        "for start in range(0, numel, at_most):", "for start in range(0, numel - 1, at_most):",
    ),
    Mutation(
        "a rank of a group is taken for a global rank", "message.py",
        "return rank if self.group is None else dist.get_global_rank(self.group, rank)",
        "return rank",
    ),
    Mutation(
        "every rank keeps the first part", "message.py",
        "return self.data[starts[self.rank] : starts[self.rank + 1]]",
        "return self.data[: self.counts[self.rank]]",
    ),
    Mutation(
        "whatever is configured, all is reduced", "reducer.py",
        "return STRATEGIES[name]()", 'return STRATEGIES["all_reduce"]()',
    ),
    # On the way
    Mutation(
        "an absent gradient leaves what was in the buffer", "slot.py",
        "                place.zero_()", "                pass",
    ),
    Mutation(
        "a later micro-batch replaces the earlier ones", "slot.py",
        "            if self._add:", "            if False:",
    ),
    Mutation(
        "the accumulator is never reset", "slot.py",
        "            if self._add:", "            if True:",
    ),
    Mutation(
        "a buffer is packed anew before it has been put down", "slot.py",
        "        self.settle()\n        if self._done", "        if self._done",
    ),
    Mutation(
        "a bucket is sent before its last gradient", "pipeline.py",
        "not self._missing[self._next]:", "self._missing[self._next] <= 1:",
    ),
    Mutation(
        "gradients that came early are not packed", "pipeline.py",
        "if (bucket.group, param) in self._arrived:", "if False:",
    ),
    Mutation(
        "each rank keeps its own order of buckets", "hooks.py",
        "        self._comm.broadcast(places, first, group=group)\n", "",
    ),
    Mutation(
        "stage 2 keeps the gradients", "hooks.py",
        "if self.config.stage == 2:\n            parameter.grad",
        "if False:\n            parameter.grad",
    ),
    Mutation(
        "stage 1 keeps the last micro-batch only", "hooks.py",
        "self._sums[key].add_(gradient)", "self._sums[key] = gradient.to(dtype)",
    ),
    Mutation(
        "ranks do not compare what they reduce", "agreement.py",
        "    if all(torch.equal(digests[0], other) for other in digests):", "    if True:",
    ),
    Mutation(
        "an expert is averaged over its own group", "groups.py",
        "ranks=dist.get_world_size(topology.group)", "ranks=dist.get_world_size(process_group)",
    ),
    Mutation(
        "parts of a sequence travel in bf16", "config.py",
        "if sequence_parallel_size > 1:", "if False:",
    ),
    # The step
    Mutation(
        "the gradient is not clipped", "optimizer.py",
        "scale = limit / norm if 0 < limit < norm else 1.0", "scale = 1.0",
    ),
    Mutation(
        "each rank takes the norm of its own part", "optimizer.py",
        "        self._comm.all_reduce(squares, group=self.reducer.topology.group)\n", "",
    ),
    Mutation(
        "bf16 parameters are stepped in bf16", "optimizer.py",
        "self._partition.to(group.sum_dtype)", "self._partition.clone()",
    ),
    Mutation(
        "weights decay into the moments", "steps.py",
        "first.lerp_(gradient, 1 - beta1)", "first.lerp_(gradient + param, 1 - beta1)",
    ),
    Mutation(
        "the first rank's partition is broadcast for all", "gather.py",
        "comm.broadcast(partition[span], group.global_rank(rank)",
        "comm.broadcast(partition[span], group.global_rank(0)",
    ),
]  # fmt: skip


def copy_project(folder: Path) -> None:
    """Copy what the suite needs."""
    for name in ("perfgate", "suites"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def mutate(folder: Path, mutation: Mutation) -> None:
    """Break the copy."""
    path = folder / "perfgate" / "zero" / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        found = text.count(mutation.old)
        raise SystemExit(f"{mutation.what}: {mutation.file} holds {mutation.old!r} {found} times")
    path.write_text(text.replace(mutation.old, mutation.new))


def run_suite(folder: Path, first: str) -> str | None:
    """Run the suite on the copy; return the first test that fails, or None."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    command = [sys.executable, "-m", "pytest", *OPTIONS, "--hypothesis-profile=first-failure"]
    try:
        done = subprocess.run(
            [*command, *sorted(SUITE, key=lambda path: path != first)], cwd=folder, env=environment,
            check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"(no end within {TIMEOUT_S} s)"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (?:\S*/)?(\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"(pytest ended with {done.returncode}) {done.stdout[-400:]}"


def try_mutation(mutation: Mutation | None) -> tuple[str, str | None, float]:
    """Return what was broken, which test told, and how long that took."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="perfgate-mutation-") as name:
        folder = Path(name)
        copy_project(folder)
        if mutation:
            mutate(folder, mutation)
        told = run_suite(folder, FIRST.get(mutation.file, "") if mutation else "")
    return mutation.what if mutation else "nothing", told, time.perf_counter() - start


def main() -> int:
    """Try the suite without a mutation, then with each; print which test told."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if all(word in m.what for word in options.words)]
    _, told, took_s = try_mutation(None)
    print(f"without a mutation: {told or 'passes'} ({took_s:.0f} s)", flush=True)
    if told:
        return 1
    survived = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for what, told, took_s in pool.map(try_mutation, chosen):
            survived += told is None
            print(f"{what:58} {told or 'SURVIVES'} ({took_s:.0f} s)", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutations caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
