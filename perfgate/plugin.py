"""The pytest plugin: hooks and fixtures. Loading it imports neither torch nor scipy."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from perfgate.errors import BaselineError, PerfgateError
from perfgate.launched import join_launcher
from perfgate.options import Settings, add_options, read_settings
from perfgate.outcome import conclude, without_perfgate
from perfgate.preparation import (
    describe_base,
    modules_of_tests,
    plants,
    refuse_company,
    ship_modules,
)
from perfgate.scheduling import BATCH, PERMIT, permitted

if TYPE_CHECKING:
    from perfgate.base import Base
    from perfgate.fixture import Gate
    from perfgate.report.record import RunRecord
    from perfgate.run import Run
    from perfgate.world.interpreter import Interpreter
    from perfgate.world.pool import LastingWorld

SETTINGS = pytest.StashKey[Settings]()
RUN = pytest.StashKey["Run"]()
RECORD: pytest.StashKey[RunRecord] = pytest.StashKey()
GATE = pytest.StashKey["Gate"]()
BASE: pytest.StashKey[Interpreter] = pytest.StashKey()

_MARKERS = (
    "ranks(n, **world): run the test's body on every rank of a world of n ranks",
    "world(size, backend, device, provider, deadline): the world of the fixtures world and gate",
    "perfgate(max_regression, must_catch): limits of what the test measures",
)
_ON_RANKS = ("world", "rank", "gate")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the options; find out whether a launcher started several of us."""
    add_options(parser)
    join_launcher(pluginmanager)


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings; refuse what would spoil a measurement."""
    for line in _MARKERS:
        config.addinivalue_line("markers", line)
    config.stash[SETTINGS] = settings = read_settings(config)
    if settings.gated:
        refuse_company(config, settings)
        if settings.base:
            config.stash[BASE] = describe_base(settings.base)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is gated, and every planted slowdown."""
    settings = config.stash[SETTINGS]
    if not settings.gated:
        return []
    mode = "refresh" if settings.refresh else "gate"
    limit = f"limit {settings.max_regression:.0%}, must catch {settings.must_catch:.0%}"
    against = f"baselines in {settings.baselines}"
    if (base := config.stash.get(BASE, None)) is not None:
        against = f"against {settings.base_name} with torch {base.torch}"
    lines = [f"perfgate: {mode}, {limit}, {against}"]
    if permitted() == BATCH:
        lines.append(f"perfgate: real-time scheduling would be far less noisy; permit: {PERMIT}")
    return lines + [f"perfgate: PLANTED SLOWDOWN {plant}" for plant in plants()]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check every marker before anything runs, and put tests of one world side by side."""
    from perfgate.ranktest import check_rank_argument, gate_defaults, world_spec

    places: dict[tuple[str, object], int] = {}
    order: dict[pytest.Item, int] = {}
    try:
        for item in items:
            gate_defaults(item)
            check_rank_argument(item)
            spec = world_spec(item, config.stash[SETTINGS]) if _uses_ranks(item) else None
            order[item] = places.setdefault((item.nodeid.split("::")[0], spec), len(places))
    except PerfgateError as error:
        raise pytest.UsageError(str(error)) from error
    modules = {name: place for place, name in enumerate(dict.fromkeys(key[0] for key in places))}
    items.sort(key=lambda item: (modules[item.nodeid.split("::")[0]], order[item]))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start preloading torch where ranks will be needed; read the baselines."""
    items = [item for item in session.items if _uses_ranks(item)]
    if not items or session.config.option.collectonly:
        return
    run = _start_run(session)
    ship_modules(session)
    if BASE in session.config.stash:
        run.base = _start_base(session)
    measured = [item.nodeid for item in items if "gate" in item.fixturenames]  # type: ignore[attr-defined]
    run.planned = max(len(measured), 1)
    if run.settings.gated and measured:
        try:
            run.open_baselines(measured)
        except BaselineError as error:
            raise pytest.UsageError(f"perfgate: {error}") from error


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Make the world the one that this test's markers ask for."""
    from perfgate.ranktest import world_spec

    run = item.config.stash.get(RUN, None)
    if run is not None and _uses_ranks(item):
        run.world.spec = world_spec(item, run.settings)


# These two are of the session, and changed for each test, because Hypothesis refuses fixtures
# that it would have to renew for each example.
@pytest.fixture(scope="session")
def world(request: pytest.FixtureRequest) -> LastingWorld:
    """A living world of the size and kind that the test's markers ask for."""
    return request.config.stash[RUN].world


@pytest.fixture(scope="session")
def rank() -> Any:
    """The rank that a test marked ``ranks`` runs on: its index, size and device."""
    from perfgate.ranktest import RankToCome

    return RankToCome()


@pytest.fixture
def gate(request: pytest.FixtureRequest) -> Gate:
    """Measures collectives and functions on the test's world; the verdict is its outcome."""
    from perfgate.fixture import Gate
    from perfgate.ranktest import gate_defaults

    item = request.node
    run = item.session.config.stash[RUN]
    item.stash[GATE] = gate = Gate(run, item.nodeid, run.world.spec, gate_defaults(item))
    return gate


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Attach what ranks wrote; let a gate's verdict be the outcome."""
    __tracebackhide__ = True
    try:
        result = yield
    except PerfgateError as error:
        raise error.with_traceback(without_perfgate(error.__traceback__)) from error.__cause__
    finally:
        _tell_of_ranks(pyfuncitem)
    if (gate := pyfuncitem.stash.get(GATE, None)) is not None:
        conclude(pyfuncitem, gate)
    return result


class RanksCall:
    """Runs the body of tests marked ``ranks`` on ranks."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> object | None:
        """Take over from pytest where the marker is there."""
        __tracebackhide__ = True
        if pyfuncitem.get_closest_marker("ranks") is None:
            return None
        from perfgate.ranktest import run_on_ranks

        run_on_ranks(pyfuncitem, pyfuncitem.config.stash[RUN].world)
        return True


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """End every world, so that what ranks write at their end is there for pytest-cov."""
    try:
        return (yield)
    finally:
        if (run := session.config.stash.get(RUN, None)) is not None:
            run.worlds.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Store what was refreshed and end every world."""
    run = session.config.stash.get(RUN, None)
    if run is None:
        return
    from perfgate.report.sinks import deliver, usual_sinks

    run.worlds.close()
    if not run.verdicts:
        return
    if run.settings.refresh:
        try:
            run.take_in()
        except BaselineError as error:
            run.failed_reports.append(f"NOT STORED: {error}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    session.config.stash[RECORD] = record = run.record(plants())
    run.failed_reports += deliver(record, usual_sinks(run.settings.report))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, and what to do next."""
    stash = terminalreporter.config.stash
    if (record := stash.get(RECORD, None)) is None:
        return
    from perfgate.report.terminal import summarise

    summarise(terminalreporter, record, stash[RUN].failed_reports)


def _start_run(session: pytest.Session) -> Run:
    from perfgate.measure import LAYOUTS
    from perfgate.report.progress import Progress
    from perfgate.run import Run
    from perfgate.world.local import host
    from perfgate.world.pool import Worlds

    config = session.config
    settings = config.stash[SETTINGS]
    for place in range(LAYOUTS if settings.gated else 1):
        host(place)  # preloads while the rest goes on
    config.pluginmanager.register(RanksCall(), "perfgate-ranks")
    worlds = Worlds(
        settings.report / "ranks",
        passthrough=config.getoption("capture") == "no",
        post_mortem=config.getoption("usepdb", False),
    )
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    run = Run(settings, config.rootpath, worlds, Progress(reporter).tell)
    config.stash[RUN] = run
    return run


def _start_base(session: pytest.Session) -> Base:
    """Return what is compared with; its ranks' preloading begins."""
    from perfgate.beside import base_of

    config = session.config
    interpreter, name = config.stash[BASE], config.stash[SETTINGS].base_name
    try:
        base = base_of(interpreter, name, config.rootpath, modules_of_tests(session))
    except PerfgateError as error:
        raise pytest.UsageError(f"perfgate: {error}") from error
    base.preload()
    return base


def _tell_of_ranks(item: pytest.Item) -> None:
    from perfgate.ranktest import pass_warnings_on, show_output

    run = item.config.stash.get(RUN, None)
    if run is not None and _uses_ranks(item):
        show_output(item, run.world)
        pass_warnings_on(run.world)


def _uses_ranks(item: pytest.Item) -> bool:
    if item.get_closest_marker("ranks") is not None:
        return True
    return any(name in getattr(item, "fixturenames", ()) for name in _ON_RANKS)
