"""What is done for timed ranks: their scheduling, awake processors, kept memory, a probe."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest
import torch

from perfgate import RankFailure, World, WorldSpec, measure
from perfgate.bench.sample import Extent, slowest
from perfgate.errors import LaunchError
from perfgate.model import Case
from perfgate.scheduling import (
    BATCH,
    ORDINARY,
    REAL_TIME,
    class_for,
    permitted,
    share_of_cores,
)
from perfgate.world.awake import Awake
from perfgate.world.crossing import OnRank, ship_by_value
from perfgate.world.pool import Worlds

ship_by_value(sys.modules[__name__])

POLICIES = {REAL_TIME: os.SCHED_RR, BATCH: os.SCHED_BATCH, ORDINARY: os.SCHED_OTHER}
real_time = pytest.mark.skipif(
    permitted() != REAL_TIME, reason=f"real time is not permitted here, only {permitted()}"
)


def policies() -> set[int]:
    return {os.sched_getscheduler(int(task)) for task in os.listdir("/proc/self/task")}


def refuse_real_time() -> None:
    assert policies() == {os.SCHED_BATCH}


def spin() -> None:
    while True:
        pass


def faults_of_a_freed_buffer() -> int:
    for _ in range(16):
        torch.ones(1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.parametrize("scheduling", [permitted(), ORDINARY])
def test_every_thread_of_a_rank_runs_in_the_class_asked_for(scheduling):
    with World.start(WorldSpec(), scheduling=scheduling) as world:
        wanted = {POLICIES[scheduling]}
        found = world.run(policies)
    assert found == [wanted, wanted]  # gloo's threads came after, and inherit it


def test_this_process_stays_in_the_class_it_was_in():
    permitted.cache_clear()
    before = os.sched_getscheduler(0)
    permitted()
    assert os.sched_getscheduler(0) == before


@real_time
def test_ranks_that_share_a_core_do_not_poll_ahead_of_one_another(monkeypatch):
    monkeypatch.setattr(measure, "LAYOUTS", 1)  # the zygote that lives on after this test
    cores = len(os.sched_getaffinity(0))
    assert class_for(cores) == REAL_TIME
    spec = WorldSpec(size=cores + 1, deadline_s=30)
    case = Case(test="t", op="policies", world=spec)
    with Worlds() as worlds:
        measured = measure.measure(
            case,
            "here",
            measure.Timing("time_function", (refuse_real_time, None)),
            worlds,
            measure.Effort(launches=2, launch_s=0.05),
            lambda *_: None,
        )
    assert len(measured.launches) >= 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without rights")
def test_who_may_not_use_real_time_gets_the_batch_class():
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
        os.setuid(65534)
        permitted.cache_clear()
        os.write(write, permitted().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 20).decode() == BATCH


@real_time
def test_a_rank_that_spins_ahead_of_everything_is_ended_by_its_deadline():
    world = World.start(WorldSpec(), scheduling=REAL_TIME)
    with world, pytest.raises(RankFailure, match="deadline"):
        world.run(spin, deadline_s=1.0)


def test_every_core_is_kept_awake_at_the_lowest_priority_and_let_go():
    with Awake() as awake:
        spinning = psutil.Process(awake.pid).children()
        cores = sorted(core for process in spinning for core in process.cpu_affinity())
        assert cores == sorted(os.sched_getaffinity(0))
        assert {os.sched_getscheduler(process.pid) for process in spinning} == {os.SCHED_IDLE}
    assert not any(process.is_running() for process in spinning)


def test_who_is_killed_leaves_no_core_spinning(gone):
    script = """
        import json, os, psutil, signal
        from perfgate.world.awake import Awake
        with Awake() as awake:
            children = psutil.Process(awake.pid).children()
            print(json.dumps([awake.pid, *(child.pid for child in children)]), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert gone(json.loads(done.stdout))


@pytest.mark.skipif(not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="needs glibc")
def test_a_timed_rank_keeps_what_it_frees():
    pages = 4 * 2**20 // os.sysconf("SC_PAGESIZE")
    with World.start(WorldSpec(), scheduling=permitted()) as world:
        assert max(world.run(faults_of_a_freed_buffer)) < pages


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_machine_is_probed_with_every_call(size):
    extent = Extent(calls=20, probed=True)
    args = ("all_reduce", 4096, "float32", "torch", "cpu", extent)
    time_collective = OnRank("perfgate.bench.timing", "time_collective")
    with Worlds() as worlds, worlds.fresh(WorldSpec(size=size)) as world:
        for _ in range(3):  # each time with a probe of its own
            timed = slowest(world.run(time_collective, *args))
            assert timed.problem is None
            assert (timed.probes_ns > 0).sum() == (20 if size > 1 else 0)


def leave_before_the_probe() -> None:
    from perfgate.bench.probe import Probe

    with Probe() as probe:
        if torch.distributed.get_rank() == 1:
            return
        probe.time()


def test_a_rank_that_leaves_its_probe_is_told():
    with World.start(WorldSpec()) as world, pytest.raises(RankFailure, match=r"has left|reset"):
        world.run(leave_before_the_probe, deadline_s=5.0)


def test_who_must_wait_too_long_for_its_turn_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(measure, "TURN_DEADLINE_S", 0.1)
    told = rf"another run of perfgate has measured.*{tmp_path}/perfgate-\w+\.lock"
    with measure.undisturbed(WorldSpec()), pytest.raises(LaunchError, match=told):
        measure.undisturbed(WorldSpec()).__enter__()
    with measure.undisturbed(WorldSpec()):
        pass  # and its turn comes


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_have_cores_of_their_own_as_far_as_there_are_any(size):
    cores = os.sched_getaffinity(0)
    shares = [share_of_cores(rank, size) for rank in range(size)]
    assert all(share and share <= cores for share in shares)
    if size <= len(cores):
        assert sum(len(share) for share in shares) == len(set().union(*shares))
    with World.start(WorldSpec(size=size), scheduling=permitted()) as world:
        assert world.run(os.sched_getaffinity, 0) == shares
