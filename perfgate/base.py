"""Base: the other commit, which is compared with, and whose faults are told as its own."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from perfgate.errors import UsageError, WorldError
from perfgate.measure import LAYOUTS
from perfgate.world.controller import RankFailure
from perfgate.world.interpreter import Interpreter
from perfgate.world.local import host


class NotInBase(WorldError):
    """The base lacks what a test measures: it is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What the head is compared with.

    :param name: what reports call it.
    :param checkout: the head's, from which the base must import nothing but ``tests``, folders
        of test code.
    :param seed: of every random order.
    """

    interpreter: Interpreter
    name: str
    checkout: str
    tests: tuple[str, ...] = ()
    seed: int = field(default_factory=lambda: random.SystemRandom().randrange(1 << 32))

    def preload(self) -> None:
        """Start what its ranks are forked from, in the background."""
        for place in range(LAYOUTS):
            host(place, self.interpreter)


def blamed_on(base: Base, failure: RankFailure) -> Exception:
    """Return what to raise in place of a failure of the base's ranks."""
    cause = failure.__cause__
    if isinstance(cause, ModuleNotFoundError) and "." not in (cause.name or ""):
        return UsageError(
            f"the base {base.name} has no module {cause.name!r}: it imports nothing from the "
            f"head's checkout {base.checkout}; install its own into {base.interpreter.python}"
        )
    if isinstance(cause, (ImportError, AttributeError)):
        return NotInBase(f"the base {base.name} cannot run it: {type(cause).__name__}: {cause}")
    return WorldError(f"the base {base.name} failed, not the head: {failure}")


def is_its_own(file: str, base: Base) -> bool:
    """Say whether a file below the head's checkout is no code of the head's under test.

    It is the base's where its environment lies there, or a checkout of its own; and test code is
    the head's on both sides.
    """
    lent = [folder for name, folder in base.interpreter.lent if name == "perfgate"]
    for folder in (base.interpreter.prefix, *base.tests, *lent):
        if file.startswith(os.path.realpath(folder) + os.sep):
            return True
    top = Path(os.path.realpath(base.checkout))
    between = Path(file).relative_to(top).parents
    return any((top / folder / ".git").exists() for folder in [*between][:-1])
