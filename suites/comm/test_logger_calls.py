"""Which calls a comms logger logs, and that logging changes nothing about them."""

import inspect
import re
import threading
import uuid
from collections import Counter

import logger_ranks as on_ranks
import pytest
import torch
import torch.distributed
from faults import FATAL, PROPERTY, deepspeed_fault
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.world(size=2), pytest.mark.filterwarnings("ignore")]
ELEMENTS = st.sampled_from([1, 2, 3, 8, 1000])


NO_FORMULA = ["all_gather_object", "monitored_barrier"]


@pytest.mark.parametrize("op", sorted(on_ranks.CALLS))
@deepspeed_fault("ends the process, as it has no formula for the op", op=NO_FORMULA)
@deepspeed_fault("logs a coalesced all_reduce as a plain one", op=["all_reduce_coalesced"])
def test_every_call_is_logged_once_under_its_name(world, logger_of, op):
    for rank, raw in enumerate(world.run(on_ranks.log_calls, logger_of, [(op, 8)])):
        counts = {name: [entry[0] for entry in sizes.values()] for name, sizes in raw.items()}
        assert counts == {on_ranks.logged_as(op, rank): [1]}


PLAIN = sorted(on_ranks.CALLS.keys() - {*NO_FORMULA, "all_reduce_coalesced"})


@PROPERTY
@given(calls=st.lists(st.tuples(st.sampled_from(PLAIN), ELEMENTS), max_size=10))
def test_calls_in_any_order_are_each_logged_once(world, logger_of, calls):
    for rank, raw in enumerate(world.run(on_ranks.log_calls, logger_of, calls)):
        counts = {name: sum(entry[0] for entry in sizes.values()) for name, sizes in raw.items()}
        names = [on_ranks.logged_as(op, rank) for op, _ in calls]
        assert counts == Counter(names)
        assert list(counts) == list(dict.fromkeys(names))


@pytest.mark.parametrize("op", sorted(on_ranks.CALLS))
@deepspeed_fault("ends the process, as it has no formula for the op", op=NO_FORMULA)
@settings(FATAL, max_examples=5)
@given(elements=ELEMENTS, dtype=st.sampled_from([torch.float32, torch.int64, torch.bfloat16]))
def test_a_call_does_the_same_logged_or_not(world, logger_of, op, elements, dtype):
    for torchs, unlogged, logged in world.run(on_ranks.results, logger_of, op, elements, dtype):
        assert unlogged == torchs
        assert logged == torchs


def _wrong_calls(comm, group_without_1):
    """Calls that torch refuses before it communicates, on the rank that runs this."""
    x, n = torch.ones(6), torch.distributed.get_world_size()
    calls = {
        "not a tensor": lambda: comm.all_reduce("x"),
        "a tuple of tensors": lambda: comm.all_gather((x, x), x),
        "nothing at all": lambda: comm.all_reduce(),
        "an unknown argument": lambda: comm.all_reduce(x, axis=0),
        "shards that do not divide": lambda: comm.reduce_scatter_tensor(torch.ones(4), x),
        "too few outputs": lambda: comm.all_gather([x] * (n - 1), x),
        "dtypes that differ": lambda: comm.all_gather([x.double()] * n, x),
        "no source": lambda: comm.broadcast(x),
        "a root outside": lambda: comm.broadcast(x, n + 5),
        "splits that do not fit": lambda: comm.all_to_all_single(x, x, [1] * n, [1] * n),
        "a tensor of no device": lambda: comm.all_reduce(torch.ones(6, device="meta")),
        "not contiguous": lambda: comm.all_reduce(torch.ones(6, 6).t()[:, ::2]),
        "an empty batch": lambda: comm.batch_isend_irecv([]),
        "a batch of nothing": lambda: comm.batch_isend_irecv([None]),
        "send to itself": lambda: comm.send(x, torch.distributed.get_rank()),
    }
    if torch.distributed.get_rank() == 1:
        calls["a group it is not in"] = lambda: comm.all_reduce(x, group=group_without_1)
    return calls


def _outcomes(comm, group):
    said = {}
    for name, call in _wrong_calls(comm, group).items():
        try:
            said[name] = repr(call())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
            stamped = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            said[name] = re.sub(r"F\d+ [\d:.]+ ", "", stamped)
    return said


def _wrong_calls_off_and_on(provider):
    layer = on_ranks.layer_of(provider)
    group = torch.distributed.new_group([0])
    logged = _outcomes(layer.comm, group)
    count = layer.logger.get_total_operations()
    layer.restart(enabled=False)
    return _outcomes(torch.distributed, group), _outcomes(layer.comm, group), logged, count


@deepspeed_fault("looks at the arguments before torch does, and fails on its own")
def test_what_is_wrong_is_said_alike_logged_or_not(world, logger_of):
    for _, unlogged, logged, _ in world.run(_wrong_calls_off_and_on, logger_of):
        assert logged == unlogged


@deepspeed_fault("its signatures and checks are not torch's")
def test_what_is_wrong_is_said_as_torch_says_it(world, logger_of):
    for torchs, unlogged, _, _ in world.run(_wrong_calls_off_and_on, logger_of):
        assert unlogged == torchs


VALUES = {"async_op": False, "group": None, "src": 0, "dst": 0, "prof": True, "log_name": "mine"}


def _arguments(layer, op):
    """A value for each parameter of a function, those that do not matter left at their default."""
    values = {
        **VALUES,
        "tensor": torch.ones(8),
        "tensor_list": [torch.ones(8) for _ in range(torch.distributed.get_world_size())],
        "op": torch.distributed.ReduceOp.SUM,
    }
    parameters = layer.signature(op).parameters.values()
    return {p.name: values.get(p.name, p.default) for p in parameters}


def _call_in_style(provider, op, positional, turn):
    layer = on_ranks.layer_of(provider, prof_all=False)
    arguments = list(_arguments(layer, op).items())
    named = arguments[positional:]
    keywords = dict(named[turn % len(named) :] + named[: turn % len(named)] if named else [])
    getattr(layer.comm, op)(*[value for _, value in arguments[:positional]], **keywords)
    return layer.logger.get_raw_data()


@deepspeed_fault("looks for the tensor at a position that a call by keyword does not have")
@FATAL
@given(
    op=st.sampled_from(["all_reduce", "all_gather", "broadcast", "reduce", "barrier"]),
    positional=st.integers(0, 8),
    turn=st.integers(0, 8),
)
def test_a_call_is_logged_alike_in_any_argument_style(world, logger_of, op, positional, turn):
    for raw in world.run(_call_in_style, logger_of, op, positional, turn):
        assert {name: len(sizes) for name, sizes in raw.items()} == {"mine": 1}


def _names_and_parameters(provider):
    layer = on_ranks.layer_of(provider)
    functions = {op: getattr(layer.comm, op) for op in ("all_reduce", "broadcast", "barrier")}
    return {
        op: (f.__name__, next(iter(inspect.signature(f).parameters))) for op, f in functions.items()
    }


@deepspeed_fault("its functions are all called log_wrapper and take *args")
def test_functions_tell_their_names_and_parameters(world, logger_of):
    expected = {
        "all_reduce": ("all_reduce", "tensor"),
        "broadcast": ("broadcast", "tensor"),
        "barrier": ("barrier", "group"),
    }
    assert world.run(_names_and_parameters, logger_of) == [expected] * 2


OPS = ("all_reduce", "broadcast", "barrier")
NAMES = st.lists(st.sampled_from(OPS), unique=True)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["start", "stop"]), st.none() | NAMES),
        st.tuples(st.just("call"), st.sampled_from(OPS)),
    ),
    max_size=12,
)


def _toggle_and_call(provider, steps):
    layer = on_ranks.layer_of(provider)
    for what, names in steps:
        if what == "call":
            on_ranks.call(layer.comm, names, 8)
        elif names is None:
            getattr(layer.logger, f"{what}_profiling_comms")()
        else:
            getattr(layer.logger, f"{what}_profiling_op")(names)
    raw = layer.logger.get_raw_data()
    return {name: sum(entry[0] for entry in sizes.values()) for name, sizes in raw.items()}


def _expected_counts(steps):
    on, counts = dict.fromkeys(OPS, True), {}
    for what, names in steps:
        if what == "call":
            counts[names] = counts.get(names, 0) + on[names]
        else:
            on |= dict.fromkeys(OPS if names is None else names, what == "start")
    return {name: count for name, count in counts.items() if count}


@deepspeed_fault("stopping an op does nothing while prof_all is on, nor stopping all for named ops")
@PROPERTY
@given(steps=STEPS)
def test_the_last_switch_counts(world, logger_of, steps):
    assert world.run(_toggle_and_call, logger_of, steps) == [_expected_counts(steps)] * 2


def test_stop_profiling_really_stops(world, logger_of):
    steps = [("call", "all_reduce"), ("stop", None), *[("call", op) for op in OPS]]
    assert world.run(_toggle_and_call, logger_of, steps) == [{"all_reduce": 1}] * 2


def _named_op_only(provider):
    layer = on_ranks.layer_of(provider, prof_all=False, prof_ops=["all_reduce"])
    for op in OPS:
        on_ranks.call(layer.comm, op, 8)
    layer.comm.broadcast(torch.ones(8), 0, log_name="all_reduce")
    layer.comm.all_reduce(torch.ones(8), log_name="another")
    return layer.logger.get_operation_names(), layer.logger.get_total_operations()


def test_prof_ops_selects_by_log_name(world, logger_of):
    assert world.run(_named_op_only, logger_of) == [(["all_reduce"], 2)] * 2


@deepspeed_fault("a call is logged although it was stopped while it ran")
def test_a_call_that_is_stopped_while_it_runs_is_not_logged(world, logger_of):
    stopped, at_the_end = world.run(on_ranks.stop_while_running, logger_of, uuid.uuid4().hex)[0]
    assert stopped == at_the_end


def _off(provider):
    layer = on_ranks.layer_of(provider, enabled=False)
    for op in on_ranks.CALLS:
        on_ranks.call(layer.comm, op, 8)
    layer.comm.all_reduce(torch.ones(8), prof=True)
    return layer.logger.get_total_operations()


def test_a_disabled_logger_logs_nothing(world, logger_of):
    assert world.run(_off, logger_of) == [0, 0]


def _from_threads(provider, threads, calls):
    layer = on_ranks.layer_of(provider)
    groups = [torch.distributed.new_group([0]) for _ in range(threads)]
    failures = []

    def work(group):
        try:
            for _ in range(calls):
                on_ranks.call(layer.comm, "all_reduce", 8, group)
        except Exception as error:  # noqa: BLE001 - told by the test
            failures.append(repr(error))

    running = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return failures, layer.logger.get_total_operations()


@pytest.mark.world(size=1)
@deepspeed_fault("threads share one timer for each name, whose assertion one of them meets")
def test_threads_may_call_at_once(world, logger_of):
    assert world.run(_from_threads, logger_of, 4, 200) == [([], 800)]


def _caller(provider):
    layer = on_ranks.layer_of(provider, debug=True)

    def a_function_of_mine():
        layer.comm.all_reduce(torch.ones(8))

    a_function_of_mine()
    return layer.logger.get_operation_names()


def test_debug_names_the_function_that_called(world, logger_of):
    assert world.run(_caller, logger_of) == [["all_reduce | [Caller Func: a_function_of_mine]"]] * 2


def _fresh_after_reset(provider):
    layer = on_ranks.layer_of(provider)
    on_ranks.call(layer.comm, "all_reduce", 8)
    before = layer.logger.has_data(), layer.logger.get_total_operations()
    layer.logger.reset_data()
    return before, layer.logger.has_data(), layer.logger.get_total_operations()


def test_reset_forgets_everything(world, logger_of):
    assert world.run(_fresh_after_reset, logger_of) == [((True, 1), False, 0)] * 2
