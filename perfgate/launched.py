"""pytest under torchrun, Slurm or an MPI: rank 0 collects and reports, the others serve it."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from perfgate.errors import PerfgateError
from perfgate.world.discovery import discover


def join_launcher(pluginmanager: pytest.PytestPluginManager) -> None:
    """Take this process's part, if a launcher started several.

    :raises pytest.UsageError: when what the launcher says contradicts itself.
    """
    try:
        place = discover(os.environ)
    except PerfgateError as error:
        raise pytest.UsageError(f"perfgate: {error}") from error
    if place is not None:
        plugin = _Controller() if place.rank == 0 else _Agent()
        pluginmanager.register(plugin, "perfgate-launched")


class _Agent:
    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self) -> int:
        """Serve rank 0 instead of running tests."""
        from perfgate.world.agent import serve

        place = discover(os.environ)
        assert place is not None
        try:
            return serve(place)
        except PerfgateError as error:
            raise pytest.UsageError(f"perfgate: {error}") from error


class _Controller:
    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_main(self) -> Generator[None, object, object]:
        """Launch worlds on the launcher's processes; send these home at the end."""
        from perfgate.world.external import Fleet
        from perfgate.world.machine import use

        place = discover(os.environ)
        assert place is not None
        try:
            fleet = Fleet(place)
        except PerfgateError as error:
            raise pytest.UsageError(f"perfgate: {error}") from error
        use(fleet)
        try:
            return (yield)
        finally:
            use(None)
            fleet.close()
