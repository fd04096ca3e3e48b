"""Planted slowdowns: read as written, felt where planted, nowhere else."""

from __future__ import annotations

import pytest

from perfgate import World, WorldSpec
from perfgate.bench.inject import Plant, planted
from perfgate.bench.sample import Extent, slowest
from perfgate.errors import UsageError
from perfgate.world.crossing import OnRank

TIME = OnRank("perfgate.bench.timing", "time_function")
WORK = OnRank("perfgate.bench.inject", "work_steadily")


def test_plants_read_as_written():
    text = " all_reduce:256KiB:+50% ; broad*:+10%:rank=1; x:+100%:share=0.1 ; y:+5%:copy"
    assert planted({"PERFGATE_PLANT": text}) == (
        Plant(op="all_reduce", slowdown=0.5, size_bytes=2**18),
        Plant(op="broad*", slowdown=0.1, rank=1),
        Plant(op="x", slowdown=1.0, share=0.1),
        Plant(op="y", slowdown=0.05, copies=True),
    )
    assert planted({}) == ()


@pytest.mark.parametrize("text", ["all_reduce", ":+5%", "a:+x%", "a:+5%:rank=x", "a:+5%:4QB"])
def test_a_plant_that_does_not_parse_is_refused(text):
    with pytest.raises(UsageError, match="PERFGATE_PLANT"):
        planted({"PERFGATE_PLANT": text})


def median_us(plant: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return each rank's median time of work that takes 300 us."""
    monkeypatch.setenv("PERFGATE_PLANT", plant)
    with World.start(WorldSpec(size=2)) as world:
        ranks = world.run(TIME, WORK, None, Extent(calls=30))
    assert slowest(ranks).times_ns.shape == (30,)
    return [float(sorted(timed.times_ns)[8]) / 1e3 for timed in ranks]


@pytest.mark.parametrize(
    ("plant", "expected_us"),
    [
        ("other:+900%", (300, 300)),
        ("function:+100%", (600, 600)),
        ("func*:+300%:rank=1", (300, 1200)),
        ("function:+100%:copy", (600, 600)),
        ("function:+900%:share=0.3", (300, 300)),
    ],
)
def test_a_plant_slows_what_it_names(plant, expected_us, monkeypatch):
    times_us = median_us(plant, monkeypatch)
    assert times_us == [pytest.approx(expected, rel=0.2) for expected in expected_us]
