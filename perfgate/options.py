"""What the user set, on the command line or in the ini file, parsed once: :class:`Settings`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from perfgate.errors import PerfgateError
from perfgate.model import BACKENDS, PROVIDERS, Policy, WorldSpec
from perfgate.units import parse_duration, parse_fraction

_CATCH_LIMITS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One pytest run's settings.

    :param gated: whether to measure and decide (``--perfgate``) or only to verify.
    :param refresh: whether this run is stored as a session.
    :param strict: whether a verdict without an answer fails.
    :param budget_s: the time that all measured cases may take together.
    :param launches: fresh worlds a case, on average; a case that varies more gets more.
    :param base: the Python whose packages are compared with, in place of stored baselines.
    :param base_name: what to call it.
    """

    gated: bool
    refresh: bool
    strict: bool
    world: WorldSpec
    baselines: Path
    report: Path
    max_regression: float
    must_catch: float
    budget_s: float
    launches: int
    base: str = ""
    base_name: str = ""

    def policy(self, alpha: float, max_regression: object, must_catch: object) -> Policy:
        """Return the policy of one decision; what a test does not say comes from the settings.

        :raises UsageError: for a limit that is not above zero, or a must-catch size below it.
        """
        limit = _fraction(max_regression, "max_regression", self.max_regression)
        at_least = max(self.must_catch, _CATCH_LIMITS * limit)
        if max_regression is not None:
            at_least = _CATCH_LIMITS * limit
        return Policy(
            max_regression=limit,
            must_catch=_fraction(must_catch, "must_catch", at_least),
            alpha=alpha,
        )


def _fraction(value: object, name: str, default: float) -> float:
    return default if value is None else parse_fraction(value, name=name)  # type: ignore[arg-type]


_OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("baselines", "DIR", "folder of the stored baselines (default: baselines beside the ini file)"),
    ("world-size", "N", "ranks of a world where a test does not say (default: 2)"),
    ("backend", "NAME", f"{' or '.join(BACKENDS)} where a test does not say (default: gloo)"),
    ("provider", "NAME", f"whose collectives are called: {', '.join(PROVIDERS)} (default: torch)"),
    ("max-regression", "PERCENT", "the limit: slower by more than this fails (default: 10)"),
    ("must-catch", "PERCENT", "the slowdown that a PASS excludes (default: 2.5 times the limit)"),
    ("budget", "SECONDS", "time for all measured cases together (default: 60)"),
    ("launches", "N", "fresh worlds a case on average, each one replicate (default: 16)"),
    (
        "base",
        "PYTHON",
        "another commit's Python: compare with what is installed there, not with baselines",
    ),
    ("base-name", "NAME", "what to call it (default: its path)"),
    ("report", "DIR", "folder for the run's record, table and ranks' output (default: .perfgate)"),
)
_SWITCHES: tuple[tuple[str, str], ...] = (
    ("refresh", "store this run as a baseline session; a regression is not taken in"),
    ("strict", "a verdict without an answer (INCONCLUSIVE, NO_BASELINE) fails"),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option, and every ini key beside it."""
    group = parser.getgroup("perfgate", "performance gate for distributed training")
    group.addoption(
        "--perfgate", action="store_true", help="measure, and gate against the stored baselines"
    )
    for name, text in _SWITCHES:
        group.addoption(f"--perfgate-{name}", action="store_true", default=None, help=text)
        parser.addini(_ini(name), text, type="bool", default=False)
    for name, metavar, text in _OPTIONS:
        group.addoption(f"--perfgate-{name}", metavar=metavar, default=None, help=text)
        parser.addini(_ini(name), text, default=None)
    parser.addini("perfgate_deadline", "seconds that a test on ranks may take (default: 60)")


def read_settings(config: pytest.Config) -> Settings:
    """Return the settings.

    :raises pytest.UsageError: naming the option or key that cannot be.
    """
    try:
        return _read(config)
    except PerfgateError as error:
        raise pytest.UsageError(f"perfgate: {error}") from error


def _read(config: pytest.Config) -> Settings:
    home = config.inipath.parent if config.inipath else config.rootpath
    backend = _text(config, "backend", "gloo")
    limit = parse_fraction(_text(config, "max-regression", "10"), name="--perfgate-max-regression")
    catch = _text(config, "must-catch", f"{_CATCH_LIMITS * limit * 100}")
    settings = Settings(
        gated=bool(config.getoption("--perfgate")),
        refresh=_switch(config, "refresh"),
        strict=_switch(config, "strict"),
        world=WorldSpec(
            size=_count(config, "world-size", 2, least=1),
            backend=backend,
            device="cuda" if backend == "nccl" else "cpu",
            provider=_text(config, "provider", "torch"),
            deadline_s=parse_duration(config.getini("perfgate_deadline") or "60"),
        ),
        baselines=home / _text(config, "baselines", "baselines"),
        report=home / _text(config, "report", ".perfgate"),
        max_regression=limit,
        must_catch=parse_fraction(catch, name="--perfgate-must-catch"),
        budget_s=parse_duration(_text(config, "budget", "60")),
        launches=_count(config, "launches", 16, least=2),
        base=_text(config, "base", ""),
        base_name=_text(config, "base-name", "") or _text(config, "base", ""),
    )
    settings.policy(0.01, None, None)
    if settings.refresh and not settings.gated:
        raise pytest.UsageError("--perfgate-refresh stores what --perfgate measures; give both")
    if config.getoption("--perfgate-base") and not settings.gated:
        raise pytest.UsageError("--perfgate-base compares what --perfgate measures; give both")
    if settings.refresh and settings.base:
        raise pytest.UsageError(
            "--perfgate-refresh stores a session and --perfgate-base compares without stored "
            "ones; give one of them"
        )
    return settings


def _text(config: pytest.Config, name: str, default: str) -> str:
    given = config.getoption(f"--perfgate-{name}")
    return str(given or config.getini(_ini(name)) or default)


def _switch(config: pytest.Config, name: str) -> bool:
    return bool(config.getoption(f"--perfgate-{name}") or config.getini(_ini(name)))


def _count(config: pytest.Config, name: str, default: int, *, least: int) -> int:
    text = _text(config, name, str(default))
    if not text.strip().lstrip("-").isdigit() or int(text) < least:
        raise pytest.UsageError(
            f"--perfgate-{name}={text} must be a whole number of {least} or more"
        )
    return int(text)


def _ini(name: str) -> str:
    return f"perfgate_{name.replace('-', '_')}"
