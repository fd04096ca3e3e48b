"""What fits, and that no rank enters a collective that another has no memory for."""

import resource
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from perfgate import World, WorldSpec
from perfgate.bench import memory
from perfgate.bench.memory import HEADROOM, bind_or_agree, free_bytes, largest_size, needed_bytes
from perfgate.comm.dtypes import parse_dtype
from perfgate.comm.ops import OPS, get_op
from perfgate.comm.plans import Member
from perfgate.errors import UsageError

GIB = 2**30
WHOLE = st.integers(1, 64)
SHARDED = [name for name, op in OPS.items() if op.shares(2) == 2]


@pytest.mark.parametrize(
    ("name", "world_size", "expected"),
    [
        # Nothing beside the one buffer: twice the factor, not rounded to a power of two.
        ("all_reduce", 2, int(10 * GIB * 0.6) // 4 * 4),
        ("broadcast", 2, int(10 * GIB * 0.6) // 4 * 4),
        ("pt2pt", 2, int(10 * GIB * 0.6) // 4 * 4),
        # A fifth more than the factor, then shards of a power of two: 5 GiB to 4 GiB.
        ("all_gather_into_tensor", 2, 4 * GIB),
        ("all_gather_into_tensor", 3, 3 * GIB),
        # The factor: 3 GiB to 2 GiB; among three ranks, three shards of 1 GiB.
        ("all_to_all_single", 2, 2 * GIB),
        ("all_to_all_single", 3, 3 * GIB),
        ("all_gather", 2, 2 * GIB),
    ],
)
def test_one_size_by_the_rules_of_ds_bench(name, world_size, expected):
    assert largest_size(get_op(name), 10 * GIB, 0.3, 4, world_size) == expected


@given(
    name=st.sampled_from(sorted(OPS)), free=st.integers(2**20, 2**42), world_size=WHOLE,
    factor=st.floats(0.01, 1.0), itemsize=st.sampled_from([1, 2, 4, 8]),
)  # fmt: skip
def test_the_largest_size_always_divides_and_fits(name, free, world_size, factor, itemsize):
    op = get_op(name)
    size_bytes = largest_size(op, free, factor, itemsize, world_size)
    assert size_bytes % op.unit_bytes(itemsize, world_size) == 0
    assert 0 < size_bytes <= free * HEADROOM
    shard = size_bytes // itemsize // op.shares(world_size)
    assert op.shares(world_size) == 1 or shard & (shard - 1) == 0


@given(name=st.sampled_from(sorted(OPS)), smaller=st.floats(0.01, 1), larger=st.floats(0.01, 1))
def test_a_smaller_factor_never_means_a_larger_message(name, smaller, larger):
    smaller, larger = sorted((smaller, larger))
    sizes = [largest_size(get_op(name), GIB, factor, 4, 2) for factor in (smaller, larger)]
    assert sizes == sorted(sizes)


def test_no_room_at_all_is_told():
    with pytest.raises(UsageError, match=r"all_to_all_single has no room: 0.3 of 16B free"):
        largest_size(get_op("all_to_all_single"), 16, 0.3, 4, 2)


def test_a_containers_limit_counts(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert memory._cgroup_free(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._cgroup_free(tmp_path) > 2**60
    assert memory._cgroup_free(Path("/nowhere")) > 2**60


def test_ranks_of_a_host_share_its_memory():
    alone, shared = (free_bytes(torch.device("cpu"), ranks) for ranks in (1, 4))
    assert alone / 8 < shared < alone / 2


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("index", [0, 1])
def test_the_reckoned_need_is_what_binding_allocates(name, index):
    op, size_bytes = get_op(name), 12288
    member = Member(dist, None, (0, 1), index)

    class Counting:
        count, dtype, in_place = size_bytes // 4, torch.float32, False
        allocated = 0

        def new(self, count):
            self.allocated += count * 4
            return torch.zeros(count)

    counting = Counting()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "get_backend", lambda group=None: "gloo")
        op.plan(member, counting)
        placement = op.placements[0]
        assert needed_bytes(op, size_bytes, torch.float32, member, placement) == counting.allocated


def bind_with_little_memory_on_rank_1(size_bytes):
    if dist.get_rank() == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + size_bytes // 2, hard))
    try:
        bind_or_agree(
            get_op("all_reduce"), size_bytes, parse_dtype("float32"), torch.device("cpu"), 2,
            comm=dist,
        )  # fmt: skip
    except UsageError as error:
        told = str(error)
    finally:
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    one = torch.ones(1)
    dist.all_reduce(one)  # the world still works
    return told, one.item()


def test_a_rank_without_memory_keeps_the_others_out_of_the_collective():
    with World.start(WorldSpec(size=2, deadline_s=20)) as world:
        found = world.run(bind_with_little_memory_on_rank_1, 2**28)
    assert found[0] == ("out of memory on rank 1", 2.0)
    assert found[1][0].startswith("out of memory on rank 1: ")
    assert "allocate memory" in found[1][0]
    assert found[1][1] == 2.0
