"""Each collective gives the right data, bit for bit, whatever the size, dtype, form and group.

The values tell rank, index and call apart and sum exactly in every dtype, so that a stale buffer,
a swapped rank or a shifted index cannot hide (``perfgate.comm.pattern``).
"""

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgate.comm.ops import OPS, get_op
from perfgate.comm.providers import provider
from perfgate.errors import UnsupportedOp

WORLDS = [pytest.param(n, marks=pytest.mark.world(size=n), id=f"x{n}") for n in (2, 3, 4)]
FORMS = [(op.name, placement) for op in OPS.values() for placement in op.placements]
PAIRS = ("send_recv", "pt2pt", "pt2pt_bidirectional")
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.uint8),
)
ON_LIVING_RANKS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def wrong(source, name, placement, units, dtype, group=None, *, calls=2, asynchronous=False):
    """On a rank: bind an op, call it, and return what is wrong with the data, if anything."""
    size_bytes = get_op(name).unit_bytes(dtype.itemsize, dist.get_world_size(group)) * units
    try:
        bound = get_op(name).bind(
            size_bytes, dtype, "cpu", provider(source), group, placement=placement
        )
    except UnsupportedOp as error:
        return f"unsupported: {error}"
    for call in range(calls):
        bound.fill(call)
        if asynchronous:
            for handle in bound.start():
                handle.wait()
        else:
            bound.run()
        if problem := bound.check(call):
            return problem
    return None


@pytest.mark.parametrize(
    ("name", "placement", "size"),
    [
        pytest.param(*form, n, marks=pytest.mark.world(size=n), id=f"{'-'.join(form)}-x{n}")
        for form in FORMS
        for n in range(1, 6)
        if n > 1 or form[0] not in PAIRS  # one rank has no other to send to
    ],
)
def test_every_op_and_form(world, name, placement, size):
    found = world.run(wrong, world.spec.provider, name, placement, 257, torch.float32)
    if all(text and text.startswith("unsupported") for text in found):
        pytest.skip(found[0])
    assert found == [None] * size


@pytest.mark.world(size=2)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_every_dtype(world, dtype):
    for name, placement in FORMS:
        found = world.run(wrong, world.spec.provider, name, placement, 33, dtype)
        assert all(text is None or text.startswith("unsupported") for text in found)
        assert len(set(found)) == 1, "ranks disagree on what is supported"


@pytest.mark.parametrize("size", WORLDS)
@ON_LIVING_RANKS
@given(
    form=st.sampled_from(FORMS), dtype=st.sampled_from(DTYPES), asynchronous=st.booleans(),
    units=st.one_of(st.integers(1, 9), st.integers(1, 100_000)),
)  # fmt: skip
def test_any_size(world, size, form, dtype, asynchronous, units):
    found = world.run(wrong, world.spec.provider, *form, units, dtype, asynchronous=asynchronous)
    assert found == [None] * size or all(text.startswith("unsupported") for text in found)


def wrong_in_groups(source, name, cuts):
    """On a rank: the same op in every group at once, the groups cut anyhow."""
    groups = [dist.new_group(cut) for cut in cuts]
    mine = next((i for i, cut in enumerate(cuts) if dist.get_rank() in cut), None)
    if mine is None or (len(cuts[mine]) == 1 and name in PAIRS):
        return None
    return wrong(source, name, get_op(name).placements[0], 65, torch.float32, groups[mine])


@pytest.mark.world(size=5)
@pytest.mark.parametrize(
    "cuts",
    [[[1, 3]], [[0, 1], [2, 3, 4]], [[0, 2, 4], [1, 3]], [[4], [0, 1, 2, 3]]],
    ids=["some", "neighbours", "strided", "one alone"],
)
def test_subgroups(world, cuts):
    for name in OPS:
        found = world.run(wrong_in_groups, world.spec.provider, name, cuts)
        assert [text for text in found if text and not text.startswith("unsupported")] == []


@pytest.mark.ranks(3)
def test_sums_and_moves_by_hand(rank):
    """The same without perfgate's values: what torch.distributed documents, written out."""
    n, me = rank.size, rank.index

    summed = torch.full((4,), float(me + 1))
    dist.all_reduce(summed)
    assert summed.tolist() == [6.0] * 4

    pieces = [torch.empty(2) for _ in range(n)]
    dist.all_gather(pieces, torch.tensor([me, 10.0 + me]))
    assert torch.stack(pieces).tolist() == [[r, 10.0 + r] for r in range(n)]

    exchanged = torch.empty(n)
    dist.all_to_all_single(exchanged, torch.tensor([10.0 * me + to for to in range(n)]))
    assert exchanged.tolist() == [10.0 * source + me for source in range(n)]

    sent = torch.tensor([100.0 + me])
    dist.broadcast(sent, src=2)
    assert sent.item() == 102.0

    mine = torch.empty(1)
    dist.scatter(mine, [torch.tensor([7.0 * r]) for r in range(n)] if me == 1 else None, src=1)
    assert mine.item() == 7.0 * me

    got = torch.empty(1)
    sending = dist.isend(torch.tensor([float(me)]), (me + 1) % n)
    dist.irecv(got, (me - 1) % n).wait()
    sending.wait()
    assert got.item() == float((me - 1) % n)
