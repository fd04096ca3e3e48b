import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.comm.dtypes import DTYPES, dtype_name, exact_limit, parse_dtype
from perfgate.comm.pattern import PERIOD, Pattern, Segment
from perfgate.errors import UsageError

CPU = torch.device("cpu")
DTYPE_NAMES = [n for n in DTYPES if not n.startswith("float8") and n != "bool"]
WORLD_SIZES = st.integers(2, 8)


@functools.cache
def pattern_of(name, world_size):
    return Pattern(DTYPES[name], CPU, world_size, sums=True)


def sent(pattern, rank, call, length):
    buffer = torch.zeros(length, dtype=pattern.dtype)
    pattern.fill(buffer, rank, call)
    return buffer


@pytest.mark.parametrize("name", DTYPE_NAMES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_sums_are_exact_in_any_order(name, world_size):
    pattern = pattern_of(name, world_size)
    buffers = [sent(pattern, rank, 7, 1000) for rank in range(world_size)]
    exact = sum(b.to(torch.complex128 if b.is_complex() else torch.float64) for b in buffers)
    whole = Segment(tuple(range(world_size)), 0, 1000)
    for order in (buffers, buffers[::-1]):
        total = order[0].clone()
        for buffer in order[1:]:
            total += buffer
        assert torch.equal(total.to(exact.dtype), exact)
        assert pattern.first_wrong(total, whole, 7) is None


@settings(deadline=None)
@given(
    name=st.sampled_from(DTYPE_NAMES), world_size=WORLD_SIZES, call=st.integers(0, 10**6),
    length=st.integers(1, 40), index=st.integers(0, 10**6), data=st.data(),
)  # fmt: skip
def test_ranks_and_calls_differ_at_every_index(name, world_size, call, length, index, data):
    pattern = pattern_of(name, world_size)
    one, other = data.draw(st.sampled_from([(a, b) for a in range(world_size) for b in range(a)]))
    here = pattern.row(Segment((one,), index, length), call)
    assert not (here == pattern.row(Segment((other,), index, length), call)).any()
    everyone = tuple(range(world_size))
    for ranks in ((one,), everyone):
        now = pattern.row(Segment(ranks, index, length), call)
        assert not (now == pattern.row(Segment(ranks, index, length), call + 1)).any()
    assert (here != 0).all()


@settings(deadline=None)
@given(
    name=st.sampled_from(["float32", "bfloat16", "int8"]),
    length=st.integers(64, 3000),
    shift=st.integers(1, 10**7).filter(lambda distance: distance % PERIOD),
)
def test_shifted_data_differ(name, length, shift):
    pattern = pattern_of(name, 8)
    here = pattern.row(Segment((3,), 0, length), 0)
    assert not torch.equal(here, pattern.row(Segment((3,), shift, length), 0))


@pytest.mark.parametrize("length", [1, PERIOD - 1, PERIOD, PERIOD + 1, 3 * PERIOD + 17])
@pytest.mark.parametrize("start", [0, 5, PERIOD - 1, 2 * PERIOD + 3])
def test_a_stretch_is_what_a_whole_buffer_holds_there(length, start):
    pattern = pattern_of("float32", 2)
    whole = sent(pattern, 1, 4, start + length)
    assert pattern.first_wrong(whole[start:], Segment((1,), start, length), 4) is None


@pytest.mark.parametrize("at", [0, 1, PERIOD - 1, PERIOD, 2 * PERIOD + 5])
def test_the_first_wrong_element_is_told_with_both_values(at):
    pattern = pattern_of("float32", 2)
    segment = Segment((0,), 0, 2 * PERIOD + 6)
    buffer = sent(pattern, 0, 0, segment.length)
    right = int(buffer[at])
    buffer[at] = -1
    wrong = pattern.first_wrong(buffer, segment, 0)
    assert wrong == f"element {at} is -1, expected {right} (1 of {segment.length} wrong)"


def test_nan_is_wrong():
    pattern = pattern_of("float32", 2)
    buffer = torch.full((4,), float("nan"))
    assert "nan" in pattern.first_wrong(buffer, Segment((0,), 0, 4), 0)


@pytest.mark.parametrize(("dtype", "ranks"), [(torch.bool, 2), (torch.int8, 12)], ids=str)
def test_a_dtype_too_narrow_for_the_group_is_refused(dtype, ranks):
    with pytest.raises(UsageError, match=f"too few to tell {ranks} ranks apart"):
        Pattern(dtype, CPU, ranks, sums=True)


@pytest.mark.parametrize("name", DTYPES)
def test_every_whole_number_up_to_the_limit_is_exact(name):
    dtype, limit = DTYPES[name], exact_limit(DTYPES[name])
    last = range(max(0, limit - 3000), limit + 1)
    assert [int(x.real) for x in torch.tensor(list(last)).to(dtype).tolist()] == list(last)
    if dtype.is_floating_point:
        assert torch.tensor([limit + 1]).to(dtype).tolist() != [limit + 1]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float32", torch.float32),
        ("torch.bfloat16", torch.bfloat16),
        ("fp16", torch.float16),
        ("Float", torch.float32),
        (torch.int8, torch.int8),
    ],
)
def test_parse_dtype(name, dtype):
    assert parse_dtype(name) is dtype
    assert parse_dtype(dtype_name(dtype)) is dtype


def test_unknown_dtype_names_the_nearest():
    with pytest.raises(UsageError, match="'flaot32' is not known; did you mean 'float32'"):
        parse_dtype("flaot32")
