"""Partition-aware reduction beside all-reduce and beside DeepSpeed, all in one run.

    python benchmarks/zero.py [exchange|bytes|deepspeed]...

Prints ratios, each of which is below one where this project keeps its promise:

- ``exchange``: time of the direct exchange over that of all-reduce, the same gradients, on gloo;
- ``bytes``: what a rank sends over the least that is possible, counted on the loopback device of
  a private network namespace;
- ``deepspeed``: the whole reduction of a 25 M-parameter model over DeepSpeed's ZeRO stage 2, and
  the peak memory of both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from perfgate import World, WorldSpec
from perfgate.zero import STRATEGIES, GradientReducer, Message, ZeroConfig
from perfgate.zero.scratch import Scratch

MIB = 2**20
LAUNCHES, CALLS = 5, 10
LAYERS, WIDTH = 24, 1024
"""24 matrices of 1024 x 1024 and their biases: 25.2 M parameters."""


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that the slowest rank takes, from a common start."""
    dist.barrier()
    start = time.perf_counter()
    call()
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def time_strategies(size_bytes: int) -> dict[str, list[float]]:
    """Time each strategy on one message, calls alternating; runs on the rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    numel = size_bytes // 4 // ranks
    gradients = torch.randn(numel * ranks)
    data = {name: gradients.clone() for name in STRATEGIES}
    scratch = {name: Scratch() for name in STRATEGIES}
    times: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for call in range(CALLS + 2):
        for name, strategy in STRATEGIES.items():
            data[name].copy_(gradients)
            message = Message(data[name], (numel,) * ranks, rank, scratch[name])
            took = timed(lambda s=strategy, m=message: s().start(m)())  # type: ignore[misc]
            if call >= 2:
                times[name].append(took)
    return times


def exchange() -> None:
    """Print the strategies' times over all-reduce's: medians over launches of their medians."""
    print("time over all_reduce's          limit  " + "".join(f"{n:>16}" for n in STRATEGIES))
    for ranks, limit in ((2, 0.60), (4, 0.70)):
        for size_mib in (4, 16, 64):
            ratios: dict[str, list[float]] = {name: [] for name in STRATEGIES}
            for _ in range(LAUNCHES):
                with World.start(WorldSpec(size=ranks), watched=False) as world:
                    times = world.run(time_strategies, size_mib * MIB)[0]
                base = statistics.median(times["all_reduce"])
                for name in STRATEGIES:
                    ratios[name].append(statistics.median(times[name]) / base)
            row = "".join(
                f"{statistics.median(v):6.2f} [{min(v):.2f},{max(v):.2f}]" for v in ratios.values()
            )
            print(f"{ranks} ranks, {size_mib:3d} MiB, {base * 1e3:6.1f} ms  {limit:.2f}  {row}")


def send_message(name: str, size_bytes: int, calls: int) -> None:
    """Reduce messages of ``size_bytes``; runs on the rank."""
    ranks = dist.get_world_size()
    numel = size_bytes // 4 // ranks
    message = Message(torch.ones(numel * ranks), (numel,) * ranks, dist.get_rank(), Scratch())
    for _ in range(calls):
        STRATEGIES[name]().start(message)()


def sent_bytes() -> int:
    """Return the bytes that the loopback device has sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("lo:")).split()[9])


def count_bytes() -> None:
    """Print bytes a rank sent over the least possible; runs in a namespace of its own."""
    size_bytes, calls = 4 * MIB, 8
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    print("bytes a rank sent over (n-1)/n of S" + "".join(f"{n:>16}" for n in STRATEGIES))
    for ranks in (2, 3, 4):
        row = ""
        with World.start(WorldSpec(size=ranks), watched=False) as world:
            for name in STRATEGIES:
                world.run(send_message, name, size_bytes, 1)
                before = sent_bytes()
                world.run(send_message, name, size_bytes, calls)
                sent = (sent_bytes() - before) / ranks / calls
                row += f"{sent / (size_bytes * (ranks - 1) / ranks):16.3f}"
        print(f"{ranks} ranks, 4 MiB                     " + row)


def bytes_on_the_wire() -> None:
    """Count in a private network namespace, where this user may make one."""
    flags = ["--net"] if os.geteuid() == 0 else ["--net", "--map-root-user"]
    command = ["unshare", *flags, sys.executable, __file__, "count"]
    if subprocess.run(["unshare", *flags, "true"], check=False, capture_output=True).returncode:
        print("bytes: no private network namespace here; run as a user who may make one")
        return
    subprocess.run(command, check=True)


class Model(torch.nn.Module):
    """Parameters whose gradients cost nothing to make, so that reducing them is what is timed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a loss: one sample through all layers."""
        for layer in self.layers:
            x = layer(x)
        return x.square().sum()


def peak_bytes(reset: bool = False) -> int:
    """Return this process's peak resident memory since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(x for x in status.splitlines() if x.startswith("VmHWM")).split()[1])


Arm = tuple[Callable[[torch.Tensor], None], Callable[[], object]]
"""A backward pass that reduces, which is timed, and what must follow it, which is not."""


def ours(bucket: int) -> Arm:
    """Return a backward pass with this project's stage 2."""
    model = Model()
    config = ZeroConfig(stage=2, reduce_bucket_size=bucket, overlap_comm=True)
    reducer = GradientReducer(model.named_parameters(), config).attach()

    def backward(x: torch.Tensor) -> None:
        model(x).backward()
        reducer.end_micro_batch()

    return backward, model.zero_grad


def theirs(bucket: int) -> Arm:
    """Return a backward pass with DeepSpeed's stage 2, as it is by default but for the bucket."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("LOCAL_SIZE", str(dist.get_world_size()))
    import deepspeed
    from deepspeed.ops import __compatible_ops__

    __compatible_ops__["deepspeed_shm_comm"] = False  # compiles for a minute, and is not needed
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": bucket, "overlap_comm": True},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    return lambda x: engine.backward(engine(x)), engine.step


ARMS: dict[str, Callable[[int], Arm]] = {"ours": ours, "theirs": theirs}


def time_arms(bucket: int) -> dict[str, list[float]]:
    """Time both backward passes, alternating in one world; runs on the rank."""
    arms = {name: make(bucket) for name, make in ARMS.items()}
    x = torch.randn(1, WIDTH) / 100
    times: dict[str, list[float]] = {name: [] for name in arms}
    for call in range(CALLS + 2):
        for name, (backward, rest) in arms.items():
            took = timed(lambda b=backward: b(x))  # type: ignore[misc]
            rest()
            if call >= 2:
                times[name].append(took)
    return times


def measure_memory(name: str, bucket: int) -> float:
    """Return the MiB that two steps add at their peak; runs on the rank."""
    if name == "theirs":
        import deepspeed  # noqa: F401 - what importing costs is not the reducer's
    before = peak_bytes(reset=True)
    backward, rest = ARMS[name](bucket)
    x = torch.randn(1, WIDTH) / 100
    for _ in range(2):
        backward(x)
        rest()
    return (peak_bytes() - before) / MIB


def beside_deepspeed() -> None:
    """Print time and peak memory of both arms, for the default bucket and a small one."""
    for ranks in (2, 4):
        for bucket in (500_000_000, 4_000_000):
            with World.start(WorldSpec(size=ranks, deadline_s=300), watched=False) as world:
                times = world.run(time_arms, bucket)[0]
            peaks = {}
            for name in ARMS:
                with World.start(WorldSpec(size=ranks, deadline_s=300), watched=False) as world:
                    peaks[name] = max(world.run(measure_memory, name, bucket))
            medians = {name: statistics.median(each) for name, each in times.items()}
            print(
                f"{ranks} ranks, 25 M parameters, bucket {bucket:.0e}: DeepSpeed "
                f"{medians['theirs'] * 1e3:.0f} ms over ours {medians['ours'] * 1e3:.0f} ms = "
                f"{medians['theirs'] / medians['ours']:.2f} (at least 1.50); peak "
                f"{peaks['ours']:.0f} MiB over {peaks['theirs']:.0f} MiB = "
                f"{peaks['ours'] / peaks['theirs']:.2f} (at most 1.00)"
            )


PARTS = {
    "exchange": exchange,
    "bytes": bytes_on_the_wire,
    "deepspeed": beside_deepspeed,
    "count": count_bytes,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or ["exchange", "bytes", "deepspeed"]:
        PARTS[part]()
