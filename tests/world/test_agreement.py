"""Whether ranks began the same collectives: by histories, and on real ranks."""

from __future__ import annotations

import inspect
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from perfgate import RankFailure, World, WorldSpec
from perfgate.comm.calls import CALLS
from perfgate.world.agreement import absence, disagreement, last, name_ranks, stuck
from perfgate.world.crossing import ship_by_value
from perfgate.world.record import BEGUN, RETURNED, SLOTS, Collective
from perfgate.world.watch import COLLECTIVES, POINT_TO_POINT

ship_by_value(sys.modules[__name__])


def history(*keys: str, under_way: bool = False) -> tuple[Collective, ...]:
    """A rank's collectives on the whole world; the last is under way if said so."""
    return tuple(
        Collective(n, "", key, key, BEGUN if under_way and n == len(keys) else RETURNED)
        for n, key in enumerate(keys, 1)
    )


@given(st.lists(st.sampled_from("abc"), max_size=5), st.integers(1, 5))
def test_ranks_that_do_alike_agree(keys: list[str], ranks: int) -> None:
    histories = dict.fromkeys(range(ranks), history(*keys))
    assert disagreement(histories) == {}
    assert absence(histories) == {}


@given(st.lists(st.sampled_from("abc"), max_size=5), st.integers(3, 6), st.data())
def test_the_one_that_does_otherwise_is_found(keys, ranks, data) -> None:
    guilty = data.draw(st.integers(0, ranks - 1))
    histories = {rank: history(*keys, "x" if rank == guilty else "y") for rank in range(ranks)}
    (blamed,) = disagreement(histories).items()
    others = name_ranks(set(range(ranks)) - {guilty})
    assert blamed == (guilty, f"#{len(keys) + 1} x where {others} called y")


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), st.integers(2, 6), st.data())
def test_the_one_that_stops_short_is_found(keys, ranks, data) -> None:
    guilty = data.draw(st.integers(0, ranks - 1))
    short = data.draw(st.integers(0, len(keys) - 1))
    histories = {
        rank: history(*keys[:short]) if rank == guilty else history(*keys, under_way=True)
        for rank in range(ranks)
    }
    assert disagreement(histories) == {}
    assert absence(histories) == {guilty: f"#{short + 1} {keys[short]}"}
    assert stuck(histories, returned={guilty})
    assert not stuck(histories, returned=set()), "it may yet come"


def test_no_side_is_larger() -> None:
    told = disagreement({0: history("a"), 1: history("b")})
    assert told == {0: "#1 a where rank 1 called b", 1: "#1 b where rank 0 called a"}


def test_ranks_are_named_shortly() -> None:
    assert name_ranks([4, 2, 3, 0]) == "ranks 0, 2-4"
    assert name_ranks([3]) == "rank 3"


def test_last_says_whether_it_is_under_way() -> None:
    assert last(()) == ""
    assert last(history("a", "b")) == "#2 b"
    assert last(history("a", "b", under_way=True)) == "#2 b (under way)"


@pytest.fixture(scope="module")
def world():
    with World.start(WorldSpec(size=3)) as world:
        yield world


def uneven() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    counts = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    sent, received = counts[rank], [counts[other][rank] for other in range(size)]
    dist.all_to_all_single(torch.empty(sum(received)), torch.ones(sum(sent)), received, sent)


def pairs() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.ones(2), dst=1)
    if rank == 1:
        dist.recv(torch.ones(2), src=0)
    dist.barrier()


def subgroup() -> None:
    group = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        dist.all_reduce(torch.ones(4), group=group)


def objects() -> None:
    out = [None] * dist.get_world_size()
    dist.all_gather_object(out, {"rank": dist.get_rank(), "pad": "x" * 10 * dist.get_rank()})
    held = [{"a": 1}] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(held, src=0)


def roots() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.reduce(torch.ones(4), dst=1)
    dist.gather(torch.ones(4), [torch.ones(4) for _ in range(size)] if rank == 0 else None, dst=0)
    dist.scatter(torch.ones(4), [torch.ones(4)] * size if rank == 2 else None, src=2)


def views() -> None:
    dist.broadcast(torch.ones(2, 4) if dist.get_rank() else torch.ones(8), src=0)


def bad_argument_on_one_rank() -> None:
    if dist.get_rank() == 1:
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            dist.all_reduce("no tensor")
    dist.all_reduce(torch.ones(4))


def many() -> None:
    for _ in range(3 * SLOTS):
        dist.barrier()


@pytest.mark.parametrize(
    "body",
    [uneven, pairs, subgroup, objects, roots, views, bad_argument_on_one_rank, many],
    ids=lambda body: body.__name__,
)
def test_what_ranks_may_do_differently_is_no_disagreement(world, body) -> None:
    assert world.run(body) == [None] * 3


ONE_OP = (
    ("all_gather_into_tensor", "all_gather_single", "_all_gather_base"),
    ("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"),
)
"""Names that releases of torch have given to one op; not every release has all of them."""


def call(name: str) -> None:
    """Call an op whose ranks hold shards of a tensor, or a list of tensors."""
    shard, whole = torch.ones(4), torch.ones(4 * dist.get_world_size())
    arguments = {
        "all_reduce_coalesced": ([shard],),
        "all_gather_coalesced": ([[part] for part in whole.split(4)], [shard]),
    }.get(name, (whole, shard) if "gather" in name else (shard, whole))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a name is outdated
        getattr(dist, name)(*arguments)


@pytest.mark.parametrize("names", ONE_OP, ids=lambda names: names[0])
def test_names_of_one_op_agree(world, names) -> None:
    known = [name for name in names if hasattr(dist, name)]
    for _ in range(2):
        world.run(lambda: call(known[dist.get_rank() % len(known)]))


@pytest.mark.parametrize("name", [*sum(ONE_OP, ()), "all_reduce_coalesced", "all_gather_coalesced"])
def test_another_op_on_one_rank_is_told_whatever_the_name(name) -> None:
    if not hasattr(dist, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    with World.start(WorldSpec(size=3)) as world, pytest.raises(RankFailure) as caught:
        world.run(lambda: dist.barrier() if dist.get_rank() == 1 else call(name), deadline_s=20)
    assert caught.value.line.startswith(
        f"rank 1 of 3 called #1 barrier where ranks 0, 2 called {name}"
    )


def test_every_call_of_torch_is_noted_and_its_tensor_found() -> None:
    watched = COLLECTIVES | POINT_TO_POINT
    assert watched.keys() == CALLS.keys()
    assert not COLLECTIVES.keys() & POINT_TO_POINT.keys()
    for name, parameter in watched.items():
        if parameter and hasattr(dist, name):
            assert parameter in inspect.signature(getattr(dist, name)).parameters, name


def subgroup_hangs() -> None:
    group = dist.new_group([0, 1])
    dist.barrier()
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4), group=group)


def test_group_is_named() -> None:
    with World.start(WorldSpec(size=3)) as world, pytest.raises(RankFailure) as caught:
        world.run(subgroup_hangs, deadline_s=1)
    assert "#1 all_reduce (4,) float32 SUM in the group of ranks 0, 1 (under way)" in str(
        caught.value
    )


def disagree_late() -> None:
    for _ in range(2 * SLOTS):
        dist.barrier()
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MIN if dist.get_rank() else dist.ReduceOp.MAX)


def test_disagreement_after_many_collectives() -> None:
    with World.start(WorldSpec(size=3)) as world, pytest.raises(RankFailure) as caught:
        world.run(disagree_late)
    assert caught.value.line == (
        f"rank 0 of 3 called #{2 * SLOTS + 1} all_reduce (4,) float32 MAX where ranks 1-2 called "
        "all_reduce (4,) float32 MIN"
    )


def disagree_long_ago() -> None:
    disagree_unseen()
    many()


def test_disagreement_that_is_no_longer_recorded_is_told_all_the_same() -> None:
    with World.start(WorldSpec(size=2)) as world, pytest.raises(RankFailure) as caught:
        world.run(disagree_long_ago)
    assert caught.value.line == (
        f"ranks 0-1 of 2 called other collectives than the rest, more than {SLOTS} before its last"
    )


def disagree_unseen() -> None:
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MIN if dist.get_rank() else dist.ReduceOp.MAX)


def test_unwatched_world_notes_nothing() -> None:
    with World.start(WorldSpec(size=2), watched=False) as world:
        world.run(disagree_unseen)
