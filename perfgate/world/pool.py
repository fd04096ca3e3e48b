"""Worlds: living groups of ranks, kept from one test to the next."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from perfgate.model import WorldSpec
from perfgate.scheduling import ORDINARY
from perfgate.world.controller import World
from perfgate.world.machine import Machine

#: More living worlds than this would crowd the machine; the one used longest ago goes first.
CAPACITY = 4


class Worlds:
    """Living worlds by what they are, so that a test need not wait for a launch.

    :param output: a folder; each world's ranks write to a folder of their own below it.
    :param passthrough: let ranks write to this process's own output.
    :param post_mortem: enter the debugger on a rank whose function raises.
    """

    def __init__(
        self, output: Path | None = None, passthrough: bool = False, post_mortem: bool = False
    ) -> None:
        self._output = output
        self._passthrough = passthrough
        self._post_mortem = post_mortem
        self._started = 0
        self._living: OrderedDict[WorldSpec, World] = OrderedDict()

    def get(self, spec: WorldSpec) -> World:
        """Return a living world of this kind; one that has ended is replaced.

        :raises LaunchError: when ranks cannot be started.
        :raises RankFailure: when a rank fails while joining.
        """
        world = self._living.pop(spec, None)
        if world is None or not world.alive:
            if world is not None:
                world.close()
            self._make_room()
            world = self.fresh(spec, watched=True)
        world.spec = spec  # equal worlds may differ in their deadline
        self._living[spec] = world
        return world

    def fresh(
        self,
        spec: WorldSpec,
        *,
        watched: bool = False,
        scheduling: str = ORDINARY,
        place: int = 0,
        machine: Machine | None = None,
    ) -> World:
        """Launch a world that only the caller holds, and is to close.

        :param watched: whether to note its collectives; off, because it is for measuring.
        :param scheduling: the class of :mod:`perfgate.scheduling` that its ranks run in.
        :param place: the zygote to launch from; each has a memory layout of its own.
        :param machine: where to launch, if not where worlds usually are.
        :raises LaunchError: when ranks cannot be started.
        :raises RankFailure: when a rank fails while joining.
        """
        self._started += 1
        output = self._output and self._output / f"world{self._started}"
        return World.start(
            spec,
            output=output,
            passthrough=self._passthrough,
            watched=watched,
            scheduling=scheduling,
            post_mortem=self._post_mortem,
            place=place,
            machine=machine,
        )

    def lasting(self, spec: WorldSpec) -> LastingWorld:
        """Return what stands for a living world of this kind, whatever befalls its ranks."""
        return LastingWorld(self, spec)

    def close(self) -> None:
        """End every world that is kept."""
        with contextlib.ExitStack() as stack:
            while self._living:
                stack.callback(self._living.popitem()[1].close)

    def _make_room(self) -> None:
        while len(self._living) >= CAPACITY:
            self._living.popitem(last=False)[1].close()

    def __enter__(self) -> Worlds:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


class LastingWorld:
    """A world as a test holds it: each run goes to living ranks, launched anew where needed.

    A failure ends the ranks, not this: Hypothesis goes on to shrink in fresh ones.
    """

    def __init__(self, worlds: Worlds, spec: WorldSpec) -> None:
        self.spec = spec
        self.warnings: list[tuple[int, tuple[str, str, str, int]]] = []
        self._worlds = worlds
        self._world: World | None = None

    @property
    def alive(self) -> bool:
        """Always true: the next run finds ranks."""
        return True

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_s: float | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Run a function on every rank, as :meth:`World.run` does."""
        __tracebackhide__ = True
        return self.run_with_rank(None, function, *args, deadline_s=deadline_s, **kwargs)

    def run_with_rank(
        self,
        rank_argument: str | None,
        function: Callable[..., Any],
        *args: Any,
        deadline_s: float | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Run a function on every rank, as :meth:`World.run_with_rank` does."""
        __tracebackhide__ = True
        self._world = None
        world = self._world = self._worlds.get(self.spec)
        try:
            return world.run_with_rank(
                rank_argument, function, *args, deadline_s=deadline_s, **kwargs
            )
        finally:
            self.warnings += world.warnings
            world.warnings.clear()

    def output(self, rank: int) -> str:
        """Return what a rank of the world that ran last has written since this was last asked."""
        if self._world is None or rank >= self._world.spec.size:  # a smaller world ran before
            return ""
        return self._world.output(rank)

    def close(self) -> None:
        """Leave the ranks to the next test; :meth:`Worlds.close` ends them."""
