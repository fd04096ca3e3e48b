"""What ranks leave behind is cleared away, and what ends the controller ends them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from perfgate import RankFailure, World, WorldSpec
from perfgate.errors import LaunchError
from perfgate.world.crossing import ship_by_value
from perfgate.world.local import host
from perfgate.world.pool import Worlds

ship_by_value(sys.modules[__name__])


def get_rank() -> int:
    return dist.get_rank()


def leave_thread() -> None:
    threading.Thread(target=threading.Event().wait, name="endless").start()


def leave_child() -> int:
    return subprocess.Popen(["sleep", "1000"]).pid


def leave_worker() -> int:
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
    worker.start()
    return worker.pid


def leave_daemon() -> int:
    """Fork twice, in a session of its own: nobody's child any more."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            os.execvp("sleep", ["sleep", "1000"])
        os.write(write, str(pid).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read, 20))


def leave_ignoring_signals() -> int:
    ignoring = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"
    return subprocess.Popen([sys.executable, "-c", ignoring], start_new_session=True).pid


@pytest.mark.parametrize(
    "leave", [leave_child, leave_worker, leave_daemon, leave_ignoring_signals],
    ids=lambda leave: leave.__name__,
)  # fmt: skip
@pytest.mark.parametrize("end", ["closed", "failed"])
def test_processes_that_ranks_left_end_with_the_world(leave, end, gone) -> None:
    with World.start() as bystander, World.start() as world:
        kept = bystander.run(leave_child) + bystander.run(leave_daemon)
        pids = world.run(leave)
        assert world.run(get_rank) == [0, 1]
        if end == "failed":
            with pytest.raises(RankFailure):
                world.run(os.kill, os.getpid(), "no number")
        world.close()
        assert gone(pids)
        assert all(psutil.pid_exists(pid) for pid in kept), "another world's child was killed"
    assert gone(kept)


def test_thread_that_never_ends_does_not_hold_up_the_end() -> None:
    world = World.start()
    world.run(leave_thread)
    began = time.monotonic()
    world.close()
    assert time.monotonic() - began < 1.5


def write_much() -> None:
    for _ in range(10):
        os.write(1, b"x" * ((1 << 20) - 1) + b"\n")
    sys.stdout.write("the last line\n")


def test_ten_megabytes_of_stray_output(tmp_path: Path) -> None:
    with World.start(output=tmp_path) as world:
        world.run(write_much)
        text = world.output(1)
        assert text.endswith("the last line\n")
        assert text.startswith("[")
        assert len(text) < 1 << 20
        assert world.output(1) == ""
        assert world.run(get_rank) == [0, 1]
    assert (tmp_path / "rank0.log").stat().st_size > 10 << 20


def close_group() -> None:
    dist.destroy_process_group()


def test_group_closed_by_all_ranks_costs_the_next_test_nothing() -> None:
    with Worlds() as worlds:
        worlds.get(WorldSpec()).run(close_group)
        assert worlds.get(WorldSpec()).run(get_rank) == [0, 1]


SCRIPT = """
import os, sys, time
from perfgate import World
from perfgate.world.local import host
def hang():
    print("pid", os.getpid(), flush=True)
    time.sleep(1000)
world = World.start(passthrough=True)
print("pid", host().process.pid, flush=True)
world.run(hang)
"""


def heed_interrupts() -> None:
    """What a shell starts in the background ignores them, and hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def controller(count: int, script: str = SCRIPT) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a controller whose ranks hang; return it and its processes' ids."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=heed_interrupts,
    )  # fmt: skip
    lines = [process.stdout.readline() for _ in range(count)]
    pids = [int(line.split()[1]) for line in lines if line]
    assert len(pids) == count, process.communicate()
    return process, pids


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_end_of_the_controller_is_the_end_of_its_ranks(signum: int, gone) -> None:
    process, pids = controller(3)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=20)
    assert gone(pids)
    assert ("KeyboardInterrupt" in errors) == (signum == signal.SIGINT)


def test_end_of_the_zygote_is_told_and_another_is_started() -> None:
    world = World.start()
    os.kill(host().process.pid, signal.SIGKILL)
    with pytest.raises((LaunchError, RankFailure)):
        world.run(time.sleep, 30, deadline_s=40)
    assert not world.alive
    world.close()
    with World.start() as another:
        assert another.run(get_rank) == [0, 1]


def print_much() -> None:
    for _ in range(1000):
        sys.stdout.write("x" * 1000)


def test_full_disk_under_the_log_folder(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=4", "tmpfs", tmp_path],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        with World.start(output=tmp_path / "logs") as world:
            with pytest.raises(RankFailure) as caught:
                world.run(print_much)
            assert "OSError: [Errno 28] No space left on device" in caught.value.line
        with pytest.raises(LaunchError, match=r"cannot be kept: .*No space left"):
            World.start(output=tmp_path / "more")
        with World.start() as world:
            assert world.run(get_rank) == [0, 1]
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def fill_memory(cgroup: str) -> None:
    if dist.get_rank() == 1:
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
        torch.ones(1 << 30)
    dist.barrier()


def test_killed_for_want_of_memory() -> None:
    cgroup = Path("/sys/fs/cgroup/memory") / f"perfgate-{os.getpid()}"
    try:
        cgroup.mkdir()
        (cgroup / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no control group that limits memory can be made here: {error}")
    try:
        with World.start() as world, pytest.raises(RankFailure) as caught:
            world.run(fill_memory, str(cgroup), deadline_s=20)
        assert caught.value.line == "rank 1 of 2 was killed by SIGKILL: the kernel, out of memory"
    finally:
        cgroup.rmdir()


def open_files(count: int) -> int:
    return len(psutil.Process().open_files()) + psutil.Process().num_fds()


def test_hundred_calls_and_twenty_worlds_leak_nothing() -> None:
    with World.start() as world:
        world.run(get_rank)
        here, there = psutil.Process().num_fds(), world.run(open_files, 0)
        for _ in range(100):
            world.run(get_rank)
        assert psutil.Process().num_fds() == here
        assert world.run(open_files, 0) == there
        for _ in range(20):
            with World.start() as another:
                another.run(get_rank)
        assert psutil.Process().num_fds() == here
