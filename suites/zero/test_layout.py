"""The layout covers every element once, and buckets carry every slice once."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from perfgate.zero import Layout
from perfgate.zero.bucket import plan_buckets
from perfgate.zero.partition import dealt

numels = st.lists(st.integers(0, 40), max_size=12)
partitions = st.integers(1, 9)


@st.composite
def layouts(draw):
    return Layout.plan(
        draw(numels),
        draw(partitions),
        alignment=draw(st.integers(1, 4)),
        parameter_alignment=draw(st.integers(1, 8)),
        round_robin=draw(st.booleans()),
    )


@given(layout=layouts())
def test_slices_cover_each_parameter_once_and_in_order(layout):
    for param, numel in enumerate(layout.numels):
        covered = [
            element
            for piece in layout.slices(param)
            for element in range(piece.start, piece.start + piece.numel)
        ]
        assert covered == list(range(numel))


@given(layout=layouts())
def test_no_two_slices_share_a_place(layout):
    places = [
        place
        for rank in range(layout.partitions)
        for piece in layout.owned(rank)
        for place in range(piece.flat, piece.flat + piece.numel)
    ]
    assert places == sorted(set(places))
    assert all(place < layout.numel for place in places)


@given(layout=layouts())
def test_each_slice_lies_in_its_owners_partition(layout):
    for rank in range(layout.partitions):
        part = layout.range_of(rank)
        for piece in layout.owned(rank):
            assert part.start <= piece.flat
            assert piece.flat + piece.numel <= part.stop


@given(numels=numels, partitions=partitions, alignment=st.integers(1, 4))
def test_padding_is_no_longer_than_alignment_asks_for(numels, partitions, alignment):
    layout = Layout.plan(numels, partitions, alignment=alignment)
    assert layout.partition_numel % alignment == 0
    assert 0 <= layout.numel - sum(numels) < partitions * alignment


@given(count=st.integers(0, 30), hands=partitions)
def test_dealing_can_be_undone(count, hands):
    order = dealt(count, hands)
    assert sorted(order) == list(range(count))
    assert [item % hands for item in order] == sorted(item % hands for item in range(count))


@given(numels=numels, partitions=partitions, parameter_alignment=st.integers(1, 8))
def test_parameters_start_where_they_are_aligned(numels, partitions, parameter_alignment):
    layout = Layout.plan(numels, partitions, parameter_alignment=parameter_alignment)
    assert all(offset % parameter_alignment == 0 for offset in layout.offsets)


@given(data=st.data(), some=st.lists(layouts(), min_size=1, max_size=3), limit=st.integers(1, 60))
def test_buckets_carry_each_slice_once_and_keep_groups_apart(data, some, limit):
    keys = [(g, p) for g, layout in enumerate(some) for p in range(len(layout.numels))]
    order = data.draw(st.permutations(keys))
    buckets = plan_buckets(some, order, limit)
    carried = sorted((b.group, s.param, s.start, s.numel) for b in buckets for s in b.slices)
    right = sorted((g, s.param, s.start, s.numel) for g, p in keys for s in some[g].slices(p))
    assert carried == right
    assert sorted((b.group, p) for b in buckets for p in b.params) == keys
    for bucket in buckets:
        assert (
            bucket.numel <= limit
            or len([p for p in bucket.params if some[bucket.group].numels[p]]) == 1
        )
    ready = [max(order.index((b.group, p)) for p in b.params) for b in buckets]
    assert ready == sorted(ready)


@given(data=st.data(), layout=layouts())
def test_merged_runs_say_the_same_as_slices(data, layout):
    """Where each element of the owner's part lands, slice by slice and run by run."""
    params = data.draw(st.permutations(range(len(layout.numels))))
    for bucket in plan_buckets([layout], [(0, param) for param in params], 30):
        for rank in range(layout.partitions):
            runs = bucket.runs(rank)
            by_run = [run.flat + i for run in runs for i in range(run.numel)]
            by_slice = [
                s.flat + i for s in bucket.slices if s.owner == rank for i in range(s.numel)
            ]
            assert by_run == by_slice
            assert [run.position for run in runs] == [
                sum(before.numel for before in runs[:place]) for place in range(len(runs))
            ]
            assert all(a.flat + a.numel < b.flat for a, b in pairwise(runs))
