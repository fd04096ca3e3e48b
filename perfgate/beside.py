"""What a pytest session compares its tree with: another interpreter, given the session's test code.

The test code is the head's on both sides; what differs is what the two environments hold.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from perfgate.base import Base
from perfgate.errors import UsageError
from perfgate.world.cover import coverage_environ
from perfgate.world.interpreter import Interpreter
from perfgate.world.machine import chosen


def base_of(
    interpreter: Interpreter, name: str, checkout: Path, modules: Iterable[ModuleType]
) -> Base:
    """Return what to compare with.

    :param name: what to call it.
    :param checkout: the session's root.
    :param modules: its test modules and conftests.
    :raises UsageError: where a launcher owns the ranks, or coverage slows one side down.
    """
    if chosen() is not None:
        raise UsageError(
            "--perfgate-base starts the ranks of two environments itself; run it without "
            "torchrun, srun or mpirun"
        )
    if coverage_environ():
        raise UsageError("coverage slows down the head and not the base; run without --cov")
    modules = [*modules]
    folders = _folders(modules, checkout)
    packages = _packages(modules, folders)
    return Base(
        interpreter=interpreter.with_tests(folders, packages.items()),
        name=name,
        checkout=str(checkout),
        tests=(*folders, *packages.values()),
    )


def _folders(modules: Iterable[ModuleType], checkout: Path) -> tuple[str, ...]:
    """Return where test code lies, but not where the package under test may lie too."""
    never = {os.path.realpath(checkout), os.path.realpath(os.curdir)}
    folders = (os.path.dirname(module.__file__) for module in modules if module.__file__)
    return tuple(dict.fromkeys(f for f in folders if os.path.realpath(f) not in never))


def _packages(modules: Iterable[ModuleType], folders: Iterable[str]) -> dict[str, str]:
    """Return packages that test modules are part of, whose helpers are imported by that name.

    Only such as hold test modules themselves: a package under test that has its tests inside is
    the base's own.
    """
    found = {}
    for module in modules:
        name = module.__name__.partition(".")[0]
        package = sys.modules.get(name)
        folder = os.path.dirname(getattr(package, "__file__", None) or "")
        if package is not module and folder in folders:
            found[name] = folder
    return found
