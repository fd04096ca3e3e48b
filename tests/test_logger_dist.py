"""``import perfgate.comm as dist``: a drop-in for torch.distributed, on real ranks."""

import csv
import datetime
import inspect
import json
import math
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
import torch.distributed

import perfgate.comm as dist
from perfgate.comm.drop_in import FUNCTIONS
from perfgate.comm.work import LoggedWork
from perfgate.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def logging_all(**switches):
    """On a rank: log everything, from nothing on."""
    warnings.simplefilter("ignore")
    dist.configure({"enabled": True, **switches})
    dist.reset_log()
    return dist.comms_logger


def soon(condition):
    """Wait for what another thread is about to do."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def only_record():
    """The figures of the one call that was logged, with its name and size."""
    snapshot = dist.comms_logger.snapshot()
    assert len(snapshot.rows) == 1
    row = snapshot.rows[0]
    key, size_bytes = snapshot.key_and_size(int(row["size_key"]))
    return key, size_bytes, row


# signatures


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_has_torchs_signature_and_two_parameters_more(name):
    torchs = inspect.signature(getattr(torch.distributed, name))
    ours = inspect.signature(getattr(dist, name))
    assert list(ours.parameters.values())[:-2] == list(torchs.parameters.values())
    assert list(ours.parameters)[-2:] == ["prof", "log_name"]
    assert ours.return_annotation == torchs.return_annotation
    assert getattr(dist, name).__name__ == name
    assert getattr(dist, name).__doc__ == getattr(torch.distributed, name).__doc__


def communicates(name, function):
    parameters = inspect.signature(function).parameters
    return "async_op" in parameters or "object" in name or "barrier" in name or "p2p" in str(
        parameters
    ) or name in ("send", "recv", "isend", "irecv")  # fmt: skip


def test_no_call_of_torch_is_left_out():
    public = {
        name: function
        for name, function in inspect.getmembers(torch.distributed, inspect.isfunction)
        if not name.startswith("_")
    }
    calls = {name for name, function in public.items() if communicates(name, function)}
    assert len(calls) >= 26  # of torch 2.4; later ones have more names
    assert calls <= FUNCTIONS.keys()


def test_everything_else_is_torchs_own():
    for name in ("get_rank", "new_group", "ReduceOp", "group", "init_process_group", "Work"):
        assert getattr(dist, name) is getattr(torch.distributed, name)
    assert {"all_reduce", "get_rank", "log_summary", "ReduceOp"} <= set(dir(dist))
    with pytest.raises(AttributeError, match="all_reduces"):
        _ = dist.all_reduces


def test_no_module_of_ours_hides_one_of_torchs():
    import perfgate.comm

    own = perfgate.comm._ROOMS
    assert [name for name in own if hasattr(torch.distributed, name)] == []


def test_functions_travel_by_reference():
    assert pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce
    assert dist.all_reduce.__module__ == "perfgate.comm"


# calls


OBJECTS = {
    "all_gather_object": lambda c, r, n, out: c.all_gather_object(out, {"rank": r}),
    "broadcast_object_list": lambda c, r, n, out: c.broadcast_object_list(out, src=0),
    "gather_object": lambda c, r, n, out: c.gather_object(r, out if r == 0 else None, dst=0),
    "scatter_object_list": lambda c, r, n, out: c.scatter_object_list(
        out, [f"for {i}" for i in range(n)] if r == 0 else None, src=0
    ),
}


@pytest.mark.parametrize("name", sorted(OBJECTS))
@pytest.mark.ranks(3)
def test_object_forms_are_logged_without_a_size(rank, name):
    results = []
    for comm in (torch.distributed, dist):
        logging_all()
        out = [f"from {rank.index}"] * (1 if name.startswith("scatter") else rank.size)
        OBJECTS[name](comm, rank.index, rank.size, out)
        results.append(out)
    assert results[0] == results[1]
    key, size_bytes, row = only_record()
    assert (key.name, size_bytes) == (name, 0)
    assert row["latency_s"] > 0


SHARDED = {
    "all_gather_into_tensor": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_all_gather_base": "all_gather_into_tensor",
    "reduce_scatter_tensor": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}
"""Names that releases of torch have given to two ops, and the formula that each follows."""


def sharded(name):
    """On one of two ranks: what calls an op on 8 elements by one of its names."""
    if not hasattr(torch.distributed, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    whole, shard = torch.ones(8), torch.ones(4)
    buffers = (whole, shard) if "gather" in name else (shard, whole)
    return lambda **switches: getattr(dist, name)(*buffers, **switches)


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.ranks(2)
def test_every_name_of_an_op_follows_its_formula(rank, name):
    call = sharded(name)
    logging_all()
    call()
    key, size_bytes, _ = only_record()
    assert (key.name, key.op, size_bytes) == (name, SHARDED[name], 8 * 4)


@pytest.mark.ranks(2)
def test_objects_sent_and_received_are_logged(rank):
    logger = logging_all()
    if rank.index == 0:
        dist.send_object_list(["a", {"b": 1}], dst=1)
    else:
        received = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == ["a", {"b": 1}]
    assert logger.get_operation_names() == [["send", "recv"][rank.index] + "_object_list"]


@pytest.mark.ranks(3)
def test_all_gather_coalesced(rank):
    logging_all()
    outputs = [[torch.empty(4), torch.empty(2)] for _ in range(rank.size)]
    mine = [torch.full((4,), float(rank.index)), torch.full((2,), -float(rank.index))]
    dist.all_gather_coalesced(outputs, mine)
    assert [out[1].tolist() for out in outputs] == [[0.0, 0.0], [-1.0, -1.0], [-2.0, -2.0]]
    key, size_bytes, _ = only_record()
    assert (key.op, size_bytes) == ("all_gather_coalesced", 3 * 6 * 4)


@pytest.mark.ranks(1)
def test_one_rank_moves_nothing_and_is_logged():
    logger, x = logging_all(), torch.ones(8)
    dist.all_reduce(x)
    dist.all_gather([torch.empty(8)], x)
    dist.broadcast(x, 0)
    dist.barrier()
    busbws = {name: sizes[max(sizes)][3] for name, sizes in logger.get_raw_data().items()}
    assert busbws["all_reduce"] == busbws["all_gather"] == busbws["barrier"] == [0.0]
    assert busbws["broadcast"][0] > 0


@pytest.mark.ranks(3)
def test_a_call_on_a_group_that_a_rank_is_not_in_is_torchs_warning_and_no_record(rank):
    group = dist.new_group([0, 1])
    logger = logging_all()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = dist.all_reduce(torch.ones(8), group=group, async_op=True)
    if rank.index < 2:
        result.wait()
        key, _, _ = only_record()
        assert key.world_size == 2
    else:
        assert result is None
        assert "does not belong to" in str(caught[0].message)
        assert not logger.has_data()


@pytest.mark.ranks(2)
def test_what_fails_is_not_logged(rank):
    logger = logging_all()
    for wrong in (
        lambda: dist.reduce_scatter_tensor(torch.ones(4), "no tensor"),
        lambda: dist.all_gather([torch.ones(4)], torch.ones(4)),
        lambda: dist.send(torch.ones(4), rank.index),
        lambda: dist.all_reduce(torch.ones(4), group="no group"),
    ):
        with pytest.raises((RuntimeError, ValueError, TypeError, AttributeError)):
            wrong()
    assert not logger.has_data()
    x = torch.ones(4)
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 4


@pytest.mark.ranks(2)
def test_a_function_put_in_torchs_place_is_called(rank):
    called = []
    torchs = torch.distributed.all_reduce
    torch.distributed.all_reduce = lambda *args: called.append(1) or torchs(*args)
    try:
        logging_all()
        dist.all_reduce(torch.ones(4))
        dist.configure(enabled=False)
        dist.all_reduce(torch.ones(4))
    finally:
        torch.distributed.all_reduce = torchs
    assert len(called) == 2


@pytest.mark.ranks(2)
def test_code_that_says_torch_distributed_can_be_logged_too(rank):
    before = dict(vars(torch.distributed))
    logger = logging_all()
    with dist.log_torch_calls(), dist.log_torch_calls():
        torch.distributed.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4))
        operation = torch.distributed.P2POp
        peer, x = 1 - rank.index, torch.ones(4)
        for work in torch.distributed.batch_isend_irecv(
            [
                operation(torch.distributed.isend, x, peer),
                operation(torch.distributed.irecv, x, peer),
            ]
        ):
            work.wait()
        objects = [None, None]
        torch.distributed.all_gather_object(objects, rank.index)
        dist.log_summary(show_straggler=True)
    assert objects == [0, 1]
    counts = {name: sum(e[0] for e in s.values()) for name, s in logger.get_raw_data().items()}
    assert counts == {"all_reduce": 2, "batch_isend_irecv": 1, "all_gather_object": 1}
    assert dict(vars(torch.distributed)) == before
    torch.distributed.all_reduce(torch.ones(4))
    assert logger.get_total_operations() == 4


# handles


@pytest.mark.ranks(2)
def test_a_handle_is_timed_as_enqueue_wait_and_done(rank):
    logging_all()
    x = torch.full((1 << 18,), float(rank.index + 1))
    begin = time.monotonic()
    handle = dist.all_reduce(x, async_op=True)
    assert isinstance(handle, torch.distributed.Work)
    assert handle.wait() is True
    took = time.monotonic() - begin
    assert x[0] == 3.0
    assert handle.is_completed()
    assert handle.is_success()
    assert [t.shape for t in handle.result()] == [x.shape]
    handle.get_future().wait()
    _, size_bytes, row = only_record()
    assert size_bytes == 1 << 20
    assert 0 < row["enqueue_ms"] / 1e3 <= took
    assert 0 < row["wait_s"] <= took
    assert 0 < row["latency_s"] <= took


@pytest.mark.ranks(2)
def test_a_handle_nobody_waits_for_is_done_all_the_same(rank):
    logger = logging_all()
    handle = dist.all_reduce(torch.ones(8), async_op=True)
    soon(logger.has_data)
    _, _, row = only_record()
    assert row["latency_s"] > 0
    assert math.isnan(row["wait_s"])
    handle.wait()
    handle.wait()
    _, _, row = only_record()
    assert row["wait_s"] >= 0


@pytest.mark.ranks(2)
def test_point_to_point_handles_are_done_when_they_were_waited_for(rank):
    logger, x = logging_all(), torch.full((8,), float(rank.index))
    handle = dist.isend(x, 1) if rank.index == 0 else dist.irecv(x, 0)
    assert not logger.has_data()
    handle.wait()
    assert x[0] == 0.0
    key, size_bytes, _ = only_record()
    assert (key.name, size_bytes) == (["isend", "irecv"][rank.index], 32)


@pytest.mark.ranks(2)
def test_a_handle_whose_call_fails_is_not_logged(rank):
    hasty = dist.new_group([0, 1], timeout=datetime.timedelta(milliseconds=200))
    logger = logging_all()
    if rank.index == 0:
        handle = dist.all_reduce(torch.ones(8), group=hasty, async_op=True)
        with pytest.raises(RuntimeError, match=r"[Tt]imed? ?out"):
            handle.wait()
        assert not handle.is_success()
    assert not logger.has_data()


LEAVES_EARLY = """
import ctypes, sys, torch, torch.distributed as torchs, perfgate.comm as dist
rank, path = int(sys.argv[1]), sys.argv[2]
torchs.init_process_group("gloo", store=torchs.FileStore(path, 2), rank=rank, world_size=2)
dist.configure({"enabled": True})
tensors = [torch.ones(8_000_000) for _ in range(3)]
for tensor in tensors:  # for ever: torch aborts if a thread of its own is the last to hold one
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
handles = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
"""


def test_a_program_may_end_with_calls_in_flight(tmp_path):
    command = [sys.executable, "-c", LEAVES_EARLY]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], env=environment)
        for rank in range(2)
    ]
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]


@pytest.mark.ranks(3)
def test_a_batch_is_one_call_that_ends_with_its_last_handle(rank):
    logger, out = logging_all(), torch.empty(4)
    ring = [(rank.index + 1) % 3, (rank.index - 1) % 3]
    operations = [
        dist.P2POp(dist.isend, torch.full((4,), float(rank.index)), ring[0]),
        dist.P2POp(torch.distributed.irecv, out, ring[1]),
    ]
    assert all(isinstance(operation, torch.distributed.P2POp) for operation in operations)
    first, last = dist.batch_isend_irecv(operations)
    first.wait()
    assert not logger.has_data()
    last.wait()
    assert out.tolist() == [float(ring[1])] * 4
    key, size_bytes, _ = only_record()
    assert (key.name, size_bytes) == ("batch_isend_irecv", 16)


@pytest.mark.ranks(2)
def test_a_coalesced_future_is_timed(rank):
    logging_all()
    x = [torch.ones(4), torch.ones(2)]
    dist.all_reduce_coalesced(x, async_op=True).wait()
    assert x[1].tolist() == [2.0, 2.0]
    soon(dist.has_comm_data)  # the future is torch's own, whose wait nobody sees
    key, size_bytes, row = only_record()
    assert (key.name, size_bytes) == ("all_reduce_coalesced", 24)
    assert row["enqueue_ms"] > 0


def test_a_handle_answers_as_torchs_does():
    torchs = {name for name in dir(torch.distributed.Work) if not name.startswith("_pybind")}
    assert torchs <= set(dir(LoggedWork))
    unchanged = {name for name in torchs if name not in vars(LoggedWork) and name[:2] != "__"}
    assert unchanged == {"unbox"}


# coalescing managers


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asynchronous"])
@pytest.mark.ranks(2)
def test_what_a_manager_coalesces_is_one_call(rank, asynchronous):
    logging_all()
    xs = [torch.full((n,), 1.0) for n in (4, 6)]
    with dist._coalescing_manager(async_ops=asynchronous) as manager:
        for x in xs:
            dist.all_reduce(x)
    if asynchronous:
        manager.wait()
    assert [x[0].item() for x in xs] == [2.0, 2.0]
    key, size_bytes, row = only_record()
    assert (key.name, key.op, size_bytes) == ("all_reduce_coalesced", "all_reduce_coalesced", 40)
    assert math.isnan(row["enqueue_ms"]) is not asynchronous


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.ranks(2)
def test_other_ops_coalesce_too(rank, name):
    call = sharded(name)
    logging_all()
    with dist._coalescing_manager():
        for _ in range(2):
            call(log_name="weights")
    key, size_bytes, _ = only_record()
    op = "all_gather_coalesced" if "gather" in name else "reduce_scatter_coalesced"
    assert (key.name, key.op, size_bytes) == ("weights", op, 2 * 8 * 4)


@pytest.mark.ranks(2)
def test_torchs_own_manager_works_and_only_what_moved_is_logged(rank):
    logger, x = logging_all(), torch.ones(4)
    with torch.distributed._coalescing_manager():
        dist.all_reduce(x)
        assert x[0] == 1.0
    assert x[0] == 2.0
    assert not logger.has_data()


@pytest.mark.ranks(2)
def test_ops_that_are_not_selected_are_not_coalesced_into_the_log(rank):
    logger = logging_all(prof_all=False, prof_ops=["broadcast"])
    with dist._coalescing_manager():
        dist.all_reduce(torch.ones(4))
    assert not logger.has_data()


# what happens while a call runs


@pytest.mark.ranks(2)
@pytest.mark.parametrize("event", ["stop", "start", "reset", "disable"])
def test_a_call_is_logged_only_if_nothing_was_said_while_it_ran(rank, event):
    logger = logging_all(prof_all=event != "start")
    store = torch.distributed.distributed_c10d._get_default_store()
    key = f"{event} while it runs"
    if rank.index == 1:
        store.wait([key])
        dist.all_reduce(torch.ones(4))
    else:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(4),))
        thread.start()
        soon(lambda: is_in_torch(thread))
        {
            "stop": logger.stop_profiling_comms,
            "start": logger.start_profiling_comms,
            "reset": logger.reset_data,
            "disable": lambda: dist.configure(enabled=False),
        }[event]()
        store.set(key, "go")
        thread.join()
        store.delete_key(key)
        assert logger.get_total_operations() == 0


def is_in_torch(thread):
    frame = sys._current_frames().get(thread.ident)
    while frame is not None and not frame.f_code.co_filename.endswith("distributed_c10d.py"):
        frame = frame.f_back
    return frame is not None


@pytest.mark.ranks(2)
def test_debug_names_the_caller(rank):
    logger = logging_all(debug=True)

    def train_step():
        dist.all_reduce(torch.ones(4), log_name="gradients")

    train_step()
    assert logger.get_operation_names() == ["gradients | [Caller Func: train_step]"]


@pytest.mark.ranks(2)
def test_a_wrong_configuration_leaves_the_logger_as_it_was(rank):
    logger = logging_all(prof_all=False, prof_ops=["all_reduce"])
    with pytest.raises(UsageError, match="did you mean 'broadcast'"):
        dist.configure(enabled=False, prof_ops=["brodcast"])
    assert logger.enabled
    assert logger.prof_ops == ["all_reduce"]


# summaries


@pytest.mark.ranks(3)
def test_a_late_rank_is_found_among_calls_that_only_some_ranks_logged(rank):
    logger, x = logging_all(), torch.ones(16)
    for number in range(6):
        torch.distributed.barrier()
        if rank.index == 1:
            time.sleep(0.03)
        if rank.index == 2 and number == 0:
            logger.stop_profiling_comms()
        dist.all_reduce(x)
        logger.start_profiling_comms()
        if rank.index == 0:  # gloo numbers point-to-point calls too
            dist.send(x, 1)
        if rank.index == 1:
            dist.recv(x, 0)
    stats = dist.log_summary(show_straggler=True, return_dict=True)
    row = stats["straggler_analysis"]["all_reduce"][64]
    assert row["count"] == 5
    assert row["unmatched"] == 2
    assert row["skew"]["late_rank"] == 1
    assert stats["metadata"]["unequal"][0] == {
        "name": "all_reduce", "msg_size_bytes": 64, "count_by_rank": {0: 6, 1: 6, 2: 5},
    }  # fmt: skip
    assert stats["summary"]["recv"][64]["count"] == 6, "rank 1's view, as rank 0 has none"


@pytest.mark.ranks(2)
def test_names_that_nothing_was_called_by_are_told(rank):
    logging_all(prof_all=False, prof_ops=["all_reduce", "my phase"])
    dist.all_reduce(torch.ones(4))
    stats = dist.log_summary(return_dict=True)
    assert stats["metadata"]["never_called"] == ["my phase"]
    assert dist.log_summary() is None


def test_a_summary_needs_no_process_group(capsys):
    dist.comms_logger.append("all_reduce", "all_reduce", 1.5, 2048)
    try:
        stats = dist.log_summary(show_straggler=True, return_dict=True)
    finally:
        dist.reset_log()
    assert stats["summary"]["all_reduce"][2048]["avg_latency_ms"] == pytest.approx(1.5)
    assert stats["metadata"]["world_size"] == 1
    assert "2 KiB" in capsys.readouterr().out


# files


@pytest.mark.ranks(2)
def test_exports_hold_every_call(rank, tmp_path):
    logging_all()
    x = torch.ones(256)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True, log_name="overlapped").wait()
    dist.barrier()

    with dist.write_csv(tmp_path / f"calls{rank.index}.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["name"] for line in lines] == ["all_reduce", "overlapped", "barrier"]
    assert [line["size_bytes"] for line in lines] == ["1024", "1024", "0"]
    assert lines[0]["enqueue_us"] == "" != lines[1]["enqueue_us"]
    assert float(lines[0]["busbw_gbps"]) == pytest.approx(
        1024 * 8 / float(lines[0]["latency_us"]) / 1e3, rel=1e-3
    )

    content = json.loads(dist.write_json(tmp_path / f"calls{rank.index}.json").read_text())
    assert content["metadata"] == {"rank": rank.index, "world_size": 2}
    assert content["records"]["name"] == ["all_reduce", "overlapped", "barrier"]
    assert content["records"]["wait_us"][0] is None
    assert [row["name"] for row in content["summary"]] == ["all_reduce", "overlapped", "barrier"]


@pytest.mark.ranks(2)
def test_a_trace_says_which_rank_it_is(rank, tmp_path):
    logging_all()
    before_us = time.monotonic_ns() / 1e3
    dist.all_reduce(torch.ones(8))
    dist.all_reduce(torch.ones(8), async_op=True).wait()
    trace = json.loads(dist.write_chrome_trace(tmp_path).read_text())
    assert (tmp_path / f"rank{rank.index}.json").exists()
    assert trace["distributedInfo"]["rank"] == rank.index
    name, blocking, begin, end = trace["traceEvents"]
    assert (name["ph"], blocking["ph"], begin["ph"], end["ph"]) == ("M", "X", "b", "e")
    assert before_us <= blocking["ts"] <= blocking["ts"] + blocking["dur"] <= begin["ts"]
    assert begin["id"] == end["id"]
    assert blocking["args"]["size_bytes"] == 32


def test_an_empty_log_makes_empty_files(tmp_path):
    assert dist.write_csv(tmp_path / "calls.csv").read_text().count("\n") == 1
    content = json.loads(dist.write_json(tmp_path / "deep" / "calls.json").read_text())
    assert content["records"]["name"] == []
    assert len(json.loads(dist.write_chrome_trace(tmp_path).read_text())["traceEvents"]) == 1


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_kept(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(UsageError, match="cannot be written"):
        dist.write_csv(taken / "calls.csv")
    assert taken.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [taken]


def export_two_steps(folder):
    """On a rank: export to TensorBoard twice; return the two summaries, and the run's folder."""
    logging_all()
    summaries = []
    for step in (10, 20):
        for numel in (2**18, 2**18 + 1):  # both of them about 1 MiB
            dist.all_reduce(torch.ones(numel))
        dist.comms_logger.append("broadcast", "took no time", 0.0, 64)
        content = dist.write_json(folder / f"rank{dist.get_rank()}.json").read_text()
        summaries.append(json.loads(content)["summary"])
        run = dist.write_tensorboard(folder, step)
    return summaries, run


def read_back(run):
    """All scalars of a TensorBoard run: by tag, the values by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run)).Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


@pytest.mark.world(size=2)
def test_tensorboard_reads_what_each_rank_logged(world, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    for index, ((first, second), run) in enumerate(world.run(export_two_steps, tmp_path)):
        assert run == tmp_path / f"rank{index}"
        scalars = read_back(run)
        for early, late in zip(first, second, strict=True):
            size = {2**20: "1MiB", 2**20 + 4: "1048580B", 64: "64B"}[early["msg_size_bytes"]]
            tag = f"comm/{early['name']}/{size}"
            assert scalars.pop(f"{tag}/count") == [(10, 1.0), (20, 2.0)]
            for figure in ("avg_latency_ms", "tput_avg_gbps", "busbw_avg_gbps"):
                if early[figure] is None:
                    continue
                steps, values = zip(*scalars.pop(f"{tag}/{figure}"), strict=True)
                assert steps == (10, 20)
                assert values == pytest.approx((early[figure], late[figure]), rel=1e-6)
        assert scalars == {}


def test_a_tensorboard_folder_that_cannot_be_made_is_named(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    taken = tmp_path / "taken"
    taken.touch()
    with pytest.raises(UsageError, match="taken/rank0 cannot be written: Not a directory"):
        dist.write_tensorboard(taken, step=3)


def test_without_tensorboard_the_way_to_install_it_is_told(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not there
    with pytest.raises(UsageError, match=r"pip install 'pytest-perfgate\[tensorboard\]'"):
        dist.write_tensorboard(tmp_path, step=3)
    assert list(tmp_path.iterdir()) == []
