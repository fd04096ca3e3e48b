"""The controller reads what ranks are still writing, and disturbs none of it."""

from __future__ import annotations

import threading
import time

from perfgate import World, WorldSpec

LINES = 20_000


def write_on() -> None:
    """Write numbered lines from a thread, while calls go on."""

    def write() -> None:
        for number in range(LINES):
            print(f"line {number:06}")

    threading.Thread(target=write).start()


def test_output_is_whole_however_often_it_is_read() -> None:
    with World.start(WorldSpec(size=1)) as world:
        world.run(write_on)
        text, until = "", time.monotonic() + 60
        while f"line {LINES - 1:06}\n" not in text[-20:] and time.monotonic() < until:
            text += world.output(0)
    assert text == "".join(f"line {number:06}\n" for number in range(LINES))
