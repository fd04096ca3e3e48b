"""What comes before the first test: what is refused, what is shipped to ranks.

Loading this imports neither torch nor scipy.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from perfgate.errors import PerfgateError
from perfgate.options import Settings

if TYPE_CHECKING:
    from perfgate.world.interpreter import Interpreter


def refuse_company(config: pytest.Config, settings: Settings) -> None:
    """Refuse what would spoil a measurement.

    :raises pytest.UsageError: for xdist, and for planted slowdowns that would be stored.
    """
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        raise pytest.UsageError(
            "perfgate: measuring needs the machine to itself; run --perfgate without -n"
        )
    try:
        planted = plants()
    except PerfgateError as error:
        raise pytest.UsageError(f"perfgate: {error}") from error
    if settings.refresh and planted:
        raise pytest.UsageError(
            f"perfgate: a planted slowdown ({planted[0]}) must not become a baseline; "
            "unset PERFGATE_PLANT to refresh"
        )


def plants() -> tuple[object, ...]:
    """Return the planted slowdowns."""
    from perfgate.bench.inject import planted

    return planted()


def describe_base(python: str) -> Interpreter:
    """Return what there is to know of the interpreter that is compared with.

    :raises pytest.UsageError: when it cannot be compared with.
    """
    from perfgate.world.interpreter import describe

    try:
        return describe(python)
    except PerfgateError as error:
        raise pytest.UsageError(f"perfgate: --perfgate-base: {error}") from error


def ship_modules(session: pytest.Session) -> None:
    """Let test modules and conftests travel by value: ranks cannot import them."""
    from perfgate.world.crossing import ship_by_value

    for module in modules_of_tests(session):
        ship_by_value(module)


def modules_of_tests(session: pytest.Session) -> set[ModuleType]:
    """Return the modules that hold the collected tests, and every conftest."""
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    return modules | session.config.pluginmanager._conftest_plugins
