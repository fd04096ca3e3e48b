"""Calls on a GPU: timed by events that nobody waits for until the log is read."""

from functools import partial

import pytest
import torch
import torch.distributed

from perfgate.comm.device import DeviceCall, begin_if_on_gpu
from perfgate.comm.logger import DECIDED, CommsLogger
from perfgate.comm.records import Records
from perfgate.comm.work import timed

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Event:
    """An event that passes when the test says so; one millisecond between any two."""

    made: list

    def __init__(self, enable_timing):
        assert enable_timing
        self.passed = False
        self.place = len(self.made)
        self.made.append(self)

    def record(self):
        """Nothing to do: the place says when."""

    def query(self):
        return self.passed

    def synchronize(self):
        self.passed = True

    def elapsed_time(self, other):
        assert other.passed
        return float(other.place - self.place)


@pytest.fixture
def events(monkeypatch):
    Event.made = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return Event.made


@pytest.fixture
def logger():
    logger = CommsLogger()
    logger.configure({"enabled": True})
    return logger


def call(logger, result=None, name="all_reduce"):
    """One call on a GPU, as the drop-in makes it."""
    key = (name, "all_reduce", "0", 2, True)
    records = logger.records
    device = DeviceCall(partial(logger.later, records, name))

    def write(*figures):
        return logger.add(records, DECIDED, key, 64, 0, 1, *figures)

    return timed(result, records, write, (0, 1000), notified=True, device=device)


def test_a_call_is_read_once_somebody_asks(logger, events):
    call(logger)
    assert len(logger.records) == 0, "read before it had ended"
    assert not events[1].passed
    raw = logger.get_raw_data()
    assert raw["all_reduce"][64][:2] == [1, [pytest.approx(1.0)]]
    assert events[1].passed


def test_calls_that_have_ended_are_read_on_the_way(logger, events):
    for _ in range(255):
        call(logger)
    for event in events[:200]:
        event.passed = True
    call(logger)
    assert len(logger.records) == 100
    assert logger.get_total_operations() == 256


def test_a_reset_forgets_calls_that_were_not_read_yet(logger, events):
    call(logger)
    logger.reset_data()
    assert not logger.has_data()


def test_a_call_counts_if_the_host_had_returned_from_it_before_the_stop(logger, events):
    call(logger)
    logger.stop_profiling_comms()
    call(logger)
    logger.enabled = False
    call(logger)
    assert logger.get_total_operations() == 1


class _Work(torch.distributed.Work):
    def __init__(self):
        super().__init__()

    def wait(self, timeout=None):
        return True


def test_a_handles_call_ends_when_it_was_waited_for(logger, events):
    handle = call(logger, _Work())
    assert len(events) == 1
    handle.wait()
    assert len(events) == 2
    row = logger.snapshot().rows[0]
    assert row["latency_s"] == pytest.approx(1e-3)
    assert row["enqueue_ms"] == pytest.approx(1e-3, rel=1e-3)
    assert row["wait_s"] >= 0


@pytest.mark.parametrize(
    "arguments", [(), (None,), ([],), (torch.ones(2),), ([torch.ones(2)],), ("x", torch.ones(2))]
)
def test_what_is_not_on_a_gpu_is_timed_by_the_host(arguments):
    assert begin_if_on_gpu(arguments, Records(), None) is None


@NEEDS_GPU
@pytest.mark.ranks(1, backend="nccl")
def test_logging_does_not_make_the_host_wait_for_the_gpu(rank):
    import perfgate.comm as dist

    x = torch.ones(1 << 20, device=rank.device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    dist.configure({"enabled": True})
    dist.reset_log()
    torch.cuda._sleep(10**9)
    behind = torch.cuda.Event()
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    behind.record()
    assert not behind.query(), "the host waited"
    raw = dist.comms_logger.get_raw_data()
    assert raw["all_reduce"][4 << 20][0] == 2
    assert all(latency > 0 for latency in raw["all_reduce"][4 << 20][1])
