"""The formulas against bytes counted on the wire, in a network namespace with nothing else on it.

busbw's factor times the size is what one link carries. An op that loads every rank's link alike
puts ``n`` times that on the wire, a gather or scatter only what the root's one link carries.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfgate.comm.bandwidth import factor

EVERY_LINK = (
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor",
    "all_gather_coalesced", "all_to_all_single", "send_recv",
)  # fmt: skip
ROOTS_LINK = ("gather", "scatter")
OVERHEAD = 1.06  # headers, acknowledgements and the barriers around


@pytest.fixture(scope="module", params=[2, 3], ids="x{}".format)
def wire(request):
    """Bytes on the wire over bytes of size, by op."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-n", "true"], capture_output=True).returncode:
        pytest.skip("this machine does not allow a network namespace of one's own (unshare -n)")
    script = Path(__file__).with_name("wire_bytes.py")
    command = [unshare, "-n", sys.executable, str(script), str(request.param)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert run.returncode == 0, run.stderr
    return request.param, json.loads(run.stdout)


@pytest.mark.parametrize("op", EVERY_LINK)
def test_every_link_carries_the_factor(wire, op):
    world_size, counted = wire
    expected = world_size * factor(op, world_size)
    assert expected <= counted[op] <= expected * OVERHEAD


@pytest.mark.parametrize("op", ROOTS_LINK)
def test_the_roots_link_carries_the_factor(wire, op):
    world_size, counted = wire
    expected = factor(op, world_size)
    assert expected <= counted[op] <= expected * OVERHEAD


def test_a_broadcast_reaches_every_other_rank_once(wire):
    world_size, counted = wire
    assert world_size - 1 <= counted["broadcast"] <= (world_size - 1) * OVERHEAD


def test_pairs_carry_the_size_each_way_that_is_used(wire):
    world_size, counted = wire
    pairs = world_size // 2
    assert pairs <= counted["pt2pt"] <= pairs * OVERHEAD
    assert 2 * pairs <= counted["pt2pt_bidirectional"] <= 2 * pairs * OVERHEAD


def test_an_uneven_exchange_keeps_one_share_at_home(wire):
    world_size, counted = wire
    shares = world_size * (world_size + 1) / 2
    expected = world_size * (shares - 1) / shares
    assert expected <= counted["all_to_all_single_uneven"] <= expected * OVERHEAD


# gloo makes an all_reduce of them, and busbw tells: the formula is what is necessary, not what a
# backend spends.
@pytest.mark.parametrize("op", ["reduce_scatter", "reduce_scatter_tensor", "reduce"])
def test_no_backend_moves_less_than_the_formula(wire, op):
    world_size, counted = wire
    necessary = (world_size - 1) if op != "reduce" else (world_size - 1) / world_size
    assert counted[op] >= necessary
