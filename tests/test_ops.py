"""Ops on real gloo ranks: right answers pass, and every kind of wrong answer is told."""

import sys
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgate import World, WorldSpec
from perfgate.comm.ops import IN_PLACE, OPS, OUT_OF_PLACE, get_op
from perfgate.comm.pattern import PERIOD
from perfgate.comm.providers import provider
from perfgate.errors import UsageError

PAIRS = ("send_recv", "pt2pt", "pt2pt_bidirectional")
FORMS = [(op.name, placement) for op in OPS.values() for placement in op.placements]


@pytest.fixture(scope="module")
def worlds():
    living = {}

    def of(size):
        if size not in living or not living[size].alive:
            living[size] = World.start(WorldSpec(size=size, deadline_s=20))
        return living[size]

    yield of
    for world in living.values():
        world.close()


def called(name, placement, units, dtype, calls, *, members=None, comm="torch", asynchronous=False):
    """On each rank: bind, call and check; the first problem, if any."""
    group = None if members is None else dist.new_group(members)
    if members is not None and dist.get_rank() not in members:
        return None
    size = dist.get_world_size(group)
    size_bytes = get_op(name).unit_bytes(dtype.itemsize, size) * units
    bound = get_op(name).bind(size_bytes, dtype, "cpu", provider(comm), group, placement=placement)
    for call in range(calls):
        bound.fill(call)
        if asynchronous:
            for handle in bound.start():
                handle.wait()
        else:
            bound.run()
        problem = bound.check(call)
        if problem:
            return problem
    return None


SIZES = [(*form, size) for form in FORMS for size in (1, 2, 3, 5)]


@pytest.mark.parametrize(
    ("name", "placement", "size"), [case for case in SIZES if case[0] not in PAIRS or case[2] > 1]
)
def test_right_results_pass(worlds, name, placement, size):
    assert worlds(size).run(called, name, placement, 1000, torch.float32, 3) == [None] * size


@pytest.mark.parametrize(("name", "placement"), FORMS)
def test_asynchronous_calls_pass(worlds, name, placement):
    found = worlds(2).run(called, name, placement, 1000, torch.float32, 3, asynchronous=True)
    assert found == [None] * 2


@pytest.mark.parametrize("name", OPS)
def test_subgroups_whose_ranks_count_otherwise_than_the_world(worlds, name):
    placement = OPS[name].placements[0]
    found = worlds(4).run(called, name, placement, 7, torch.float32, 2, members=[1, 3])
    assert found == [None] * 4


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    form=st.sampled_from(FORMS),
    size=st.integers(2, 3),
    units=st.one_of(st.integers(1, 40), st.sampled_from([PERIOD - 1, PERIOD, PERIOD + 1, 99991])),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8]),
)
def test_any_size_and_dtype(worlds, form, size, units, dtype):
    assert worlds(size).run(called, *form, units, dtype, 2) == [None] * size


# What may go wrong, each as the change it makes to a rank's result.
def stale(result, earlier):
    result.copy_(earlier)


def never_written(result, _earlier):
    result.zero_()


def shifted(result, _earlier):
    result.copy_(result.roll(1))


def one_element_off(result, _earlier):
    result[-1] += 1


def doubled(result, _earlier):
    result.mul_(2)


def other_half(result, _earlier):
    result.copy_(result.roll(result.numel() // 2))


FAULTS = (stale, never_written, shifted, one_element_off, doubled, other_half)


def spoiled(name, placement, units, dtype):
    """On each rank that has a result: what the check says of each fault, by its name."""
    size_bytes = get_op(name).unit_bytes(dtype.itemsize, dist.get_world_size()) * units
    bound = get_op(name).bind(size_bytes, dtype, "cpu", dist, placement=placement)
    result, told = bound.plan.receive, {}
    for call, fault in enumerate(FAULTS, start=1):
        earlier = None if result is None else result.clone()
        bound.fill(call)
        bound.run()
        if result is not None:
            right = result.clone()
            fault(result, earlier)
            told[fault.__name__] = bound.check(call)
            result.copy_(right)
    return told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize(("name", "placement"), FORMS)
def test_a_spoiled_result_is_told(worlds, name, placement, dtype):
    found = [told for told in worlds(2).run(spoiled, name, placement, 64, dtype) if told]
    assert found
    for told in found:
        assert [fault for fault, problem in told.items() if problem is None] == []
        assert f"{name}, rank " in told["stale"]


class Wrong(ModuleType):
    """torch.distributed with one function that does something else."""

    def __init__(self, name, function):
        super().__init__("wrong")
        setattr(self, name, function)

    def __getattr__(self, name):
        return getattr(dist, name)


def keeps_its_own(tensor, group=None, async_op=False):
    """An all_reduce that forgets to communicate."""


def counts_rank_0_for_1(tensor, group=None, async_op=False):
    first = tensor.clone()
    dist.broadcast(first, src=0)
    dist.all_reduce(first if dist.get_rank() == 1 else tensor)
    if dist.get_rank() == 1:
        tensor.copy_(first)


def averages(tensor, group=None, async_op=False):
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)


def from_the_last_rank(tensor, src, group=None, async_op=False):
    dist.broadcast(tensor, src=dist.get_world_size() - 1)


def the_neighbours_shard(output, whole, group=None, async_op=False):
    dist.all_reduce(whole)
    shards = whole.chunk(dist.get_world_size())
    output.copy_(shards[(dist.get_rank() + 1) % len(shards)])


def backwards(output, own, group=None, async_op=False):
    pieces = list(output.chunk(dist.get_world_size()))
    dist.all_gather(pieces[::-1], own)


def to_the_next_rank(output, whole, group=None, async_op=False):
    shards = list(whole.chunk(dist.get_world_size()))
    dist.all_to_all_single(output, torch.cat(shards[1:] + shards[:1]))


def splits_swapped(output, whole, of, to, group=None, async_op=False):
    dist.all_to_all_single(output, whole, to, of)


def transposed(tensor, gather_list, dst, group=None, async_op=False):
    dist.gather(tensor, gather_list and gather_list[::-1], dst=dst)


def same_to_all(tensor, scatter_list, src, group=None, async_op=False):
    if scatter_list:
        tensor.copy_(scatter_list[0])
    dist.broadcast(tensor, src=src)


def misrouted(name, function):
    bound = get_op(name).bind(
        4096 * 3, torch.float32, "cpu", Wrong(name.removesuffix("_uneven"), function)
    )
    bound.fill(5)
    bound.run()
    return bound.check(5)


@pytest.mark.parametrize(
    ("name", "function", "wrong_on"),
    [
        ("all_reduce", keeps_its_own, {0, 1, 2}),
        ("all_reduce", counts_rank_0_for_1, {0, 1, 2}),
        ("all_reduce", averages, {0, 1, 2}),
        ("broadcast", from_the_last_rank, {0, 1, 2}),
        ("reduce_scatter_tensor", the_neighbours_shard, {0, 1, 2}),
        ("all_gather_into_tensor", backwards, {0, 1, 2}),
        ("all_to_all_single", to_the_next_rank, {0, 1, 2}),
        ("all_to_all_single_uneven", splits_swapped, {0, 1, 2}),
        ("gather", transposed, {0}),
        ("scatter", same_to_all, {1, 2}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_implementation_is_told_on_the_ranks_it_hurts(worlds, name, function, wrong_on):
    found = worlds(3).run(misrouted, name, function)
    assert {rank for rank, problem in enumerate(found) if problem} == wrong_on


def test_a_problem_names_op_rank_call_source_and_values(worlds):
    text = worlds(3).run(misrouted, "all_gather_into_tensor", backwards)[1]
    assert text.startswith(
        "all_gather_into_tensor, rank 1 of 3, call 5: of the result's [0:1024], from rank 0, "
        "element 0 is "
    )
    assert text.endswith("(1024 of 1024 wrong)")


def bind_error(name, size_bytes, dtype=torch.float32, comm=dist, members=None, **kwargs):
    group = None if members is None else dist.new_group(members)
    with pytest.raises(UsageError) as caught:
        get_op(name).bind(size_bytes, dtype, "cpu", comm, group, **kwargs)
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.parametrize(
    ("name", "size_bytes", "told"),
    [
        ("all_reduce", 4095, "of 4, 1 float32 on 3 ranks, and above 0; the nearest is 4096 (4KiB)"),
        ("all_gather", 4096, "of 12, 3 float32 on 3 ranks, and above 0; the nearest is 4092"),
        ("scatter", 4100, "the nearest is 4104"),
        ("broadcast", 0, "the nearest is 4 (4B)"),
        ("gather", 1, "the nearest is 12 (12B)"),
        ("all_to_all_single_uneven", 100, "the nearest is 96 (96B)"),
    ],
)  # fmt: skip
def test_a_size_that_does_not_divide_names_the_nearest(worlds, name, size_bytes, told):
    for _, text in worlds(3).run(bind_error, name, size_bytes):
        assert text.startswith(f"{name} cannot move {size_bytes} bytes: ")
        assert told in text


@given(
    op=st.sampled_from(list(OPS.values())), size_bytes=st.integers(0, 2**40),
    itemsize=st.sampled_from([1, 2, 4, 8]), world_size=st.integers(1, 64),
)  # fmt: skip
def test_round_size_is_the_nearest_that_divides(op, size_bytes, itemsize, world_size):
    rounded = op.round_size(size_bytes, itemsize, world_size)
    unit = op.unit_bytes(itemsize, world_size)
    assert rounded > 0
    assert rounded % unit == 0
    assert rounded == unit or abs(rounded - size_bytes) * 2 <= unit
    assert op.round_size(rounded, itemsize, world_size) == rounded


# gloo's sends and receives move bytes, whatever they mean.
@pytest.mark.parametrize("name", [name for name in OPS if name not in PAIRS])
def test_a_dtype_that_the_backend_lacks(worlds, name):
    found = worlds(2).run(bind_error, name, 12288, torch.float8_e4m3fn)
    for kind, text in found:
        assert kind == "UnsupportedOp"
        assert text.startswith(f"{name} of float8_e4m3fn does not work on gloo by way of ")


def test_an_op_that_the_provider_lacks(worlds):
    bare = ModuleType("bare")
    for kind, text in worlds(2).run(bind_error, "all_reduce", 4096, comm=bare):
        assert kind == "UnsupportedOp"
        assert "all_reduce of float32 does not work on gloo by way of bare" in text


def test_a_lost_peer_is_not_taken_for_a_dtype_that_is_lacking(worlds):
    def lost(tensor, group=None, async_op=False):
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")

    def bind():
        with pytest.raises(RuntimeError, match="closed by peer") as caught:
            get_op("all_reduce").bind(4, torch.float32, "cpu", Wrong("all_reduce", lost))
        return type(caught.value) is RuntimeError

    assert worlds(2).run(bind) == [True, True]


def test_a_form_that_the_op_lacks(worlds):
    for _, text in worlds(2).run(bind_error, "all_reduce", 4096, placement=OUT_OF_PLACE):
        assert text == "all_reduce has no form 'out_of_place'; did you mean 'in_place'?"
    assert OPS["all_gather"].placements == (OUT_OF_PLACE, IN_PLACE)


def test_a_rank_outside_of_the_group(worlds):
    def bind():
        group = dist.new_group([0])
        if dist.get_rank() == 0:
            return None
        with pytest.raises(UsageError) as caught:
            get_op("all_reduce").bind(4, torch.float32, "cpu", dist, group)
        return str(caught.value)

    assert "rank 1 is not in the group" in worlds(2).run(bind)[1]


@pytest.mark.parametrize("name", PAIRS)
def test_one_rank_cannot_send(worlds, name):
    [(_, text)] = worlds(1).run(bind_error, name, 4096)
    assert text == f"{name} needs 2 ranks or more: a rank cannot send to itself"


def test_unknown_names_the_nearest():
    with pytest.raises(UsageError, match="op 'allreduce' is not known; did you mean 'all_reduce'"):
        get_op("allreduce")
    with pytest.raises(UsageError, match="choose one of torch, perfgate, deepspeed"):
        provider("nccl")


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("name", [name for name in OPS if name != "all_gather_coalesced"])
def test_deepspeed_moves_the_data(worlds, name):
    found = worlds(2).run(called, name, None, 100, torch.float32, 2, comm="deepspeed")
    assert found == [None, None]


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_an_op_that_deepspeed_has_otherwise_is_refused_and_the_group_lives_on(worlds):
    def bind():
        refused = bind_error("all_gather_coalesced", 4096, comm=provider("deepspeed"))
        return refused, called("all_gather_into_tensor", None, 10, torch.float32, 2)

    for (kind, text), after in worlds(2).run(bind):
        assert kind == "UnsupportedOp"
        assert "it takes output_tensors where torch.distributed takes" in text
        assert after is None


def test_deepspeed_missing_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'pytest-perfgate\[deepspeed\]'"):
        provider("deepspeed")
