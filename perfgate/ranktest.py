"""A test whose body runs on every rank: how it is sent there, and how its end reaches pytest."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perfgate.errors import UsageError
from perfgate.model import WorldSpec
from perfgate.options import Settings
from perfgate.units import parse_duration
from perfgate.world.failure import RankFailure, name_ranks
from perfgate.world.pool import LastingWorld

_WORLD_KEYWORDS = ("size", "backend", "device", "provider", "deadline")
_GATE_KEYWORDS = ("max_regression", "must_catch")
RANK_ARGUMENT = "rank"


class RankToCome:
    """What stands for a test's rank until the body runs on one."""

    def __repr__(self) -> str:
        return "<rank>"


def world_spec(item: pytest.Item, settings: Settings) -> WorldSpec:
    """Return the world that a test's markers and the settings ask for.

    :raises UsageError: for a marker with a misspelt keyword, or a world that cannot be.
    """
    spec = settings.world
    world, ranks = item.get_closest_marker("world"), item.get_closest_marker("ranks")
    if world is not None:
        _refuse_positional(item, world)
        spec = _changed(item, spec, world)
    if ranks is not None:
        if len(ranks.args) > 1 or (ranks.args and "size" in ranks.kwargs):
            raise UsageError(f"{item.nodeid}: @pytest.mark.ranks takes one number of ranks")
        spec = _changed(item, spec, ranks, *(("size", n) for n in ranks.args))
    return spec


def gate_defaults(item: pytest.Item) -> dict[str, Any]:
    """Return what the ``perfgate`` markers of a test say, the closest first.

    :raises UsageError: for a misspelt keyword.
    """
    defaults: dict[str, Any] = {}
    for mark in item.iter_markers("perfgate"):
        _refuse_positional(item, mark)
        _check_keywords(item, mark, _GATE_KEYWORDS)
        defaults = {**mark.kwargs, **defaults}
    return defaults


def check_rank_argument(item: pytest.Item) -> None:
    """Refuse a test that asks for its rank and runs on none.

    :raises UsageError: naming the marker that is missing.
    """
    asks = RANK_ARGUMENT in getattr(item, "fixturenames", ())
    if asks and item.get_closest_marker("ranks") is None:
        raise UsageError(
            f"{item.nodeid} asks for `rank` but runs on none; mark it @pytest.mark.ranks(n), "
            "or ask for `world` and run functions on it"
        )


def run_on_ranks(item: pytest.Function, world: LastingWorld) -> None:
    """Run a test's body on every rank of a world; a property (``@given``) once an example."""
    values = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    run = _run_property if hasattr(item.obj, "hypothesis") else _run_example
    failed: RankFailure | None = None
    try:
        run(item, world, values)
    except RankFailure as failure:
        failed = failure
    if failed is not None:
        notes = getattr(failed, "__notes__", [])  # Hypothesis tells its example there
        pytest.fail("\n".join([str(failed), *notes]), pytrace=False)


def _run_example(item: pytest.Function, world: LastingWorld, values: dict[str, Any]) -> None:
    __tracebackhide__ = True
    _run_body(item.obj, world, (), values)


def _run_property(item: pytest.Function, world: LastingWorld, values: dict[str, Any]) -> None:
    """Let Hypothesis draw here and run each example there."""
    __tracebackhide__ = True
    given = item.obj.hypothesis
    inner = given.inner_test

    @functools.wraps(inner)
    def on_ranks(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        _run_body(inner, world, args, kwargs)

    given.inner_test = on_ranks
    try:
        item.obj(**values)
    finally:
        given.inner_test = inner


def _run_body(
    body: Callable[..., Any], world: LastingWorld, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    __tracebackhide__ = True
    rank_argument = RANK_ARGUMENT if kwargs.pop(RANK_ARGUMENT, None) is not None else None
    try:
        world.run_with_rank(rank_argument, body, *args, **kwargs)
    except RankFailure as failure:
        _pass_on(failure)


def _pass_on(failure: RankFailure) -> None:
    """Turn a skip or an xfail that every rank agrees on into pytest's own."""
    __tracebackhide__ = True
    kinds = {f.kind for f in failure.failures}
    if len(failure.failures) == failure.world_size and kinds == {"skipped"}:
        pytest.skip(failure.culprit.message)
    if len(failure.failures) == failure.world_size and kinds == {"xfailed"}:
        pytest.xfail(failure.culprit.message)
    raise failure


def show_output(item: pytest.Item, world: LastingWorld) -> None:
    """Attach to a test's report what its ranks wrote."""
    texts = {rank: world.output(rank) for rank in range(world.spec.size)}
    for text in sorted({text for text in texts.values() if text}):
        ranks = name_ranks(rank for rank in texts if texts[rank] == text)
        item.add_report_section("call", ranks, text)


def pass_warnings_on(world: LastingWorld) -> None:
    """Warn here of what ranks warned of, once for all ranks that did alike."""
    told = dict.fromkeys(warning for _, warning in world.warnings)
    world.warnings.clear()
    for category, message, path, line in told:
        kind = getattr(__import__("builtins"), category, UserWarning)
        warnings.warn_explicit(message, kind, path, line)


def _changed(
    item: pytest.Item, spec: WorldSpec, mark: pytest.Mark, *more: tuple[str, Any]
) -> WorldSpec:
    _check_keywords(item, mark, _WORLD_KEYWORDS)
    wanted = {**mark.kwargs, **dict(more)}
    if "deadline" in wanted:
        wanted["deadline_s"] = parse_duration(wanted.pop("deadline"))
    if wanted.get("backend") == "nccl":
        wanted.setdefault("device", "cuda")
    try:
        return replace(spec, **wanted)
    except UsageError as error:
        raise UsageError(f"{item.nodeid}: {error}") from error


def _refuse_positional(item: pytest.Item, mark: pytest.Mark) -> None:
    if mark.args:
        raise UsageError(
            f"{item.nodeid}: @pytest.mark.{mark.name} takes keywords only, got {mark.args!r}"
        )


def _check_keywords(item: pytest.Item, mark: pytest.Mark, known: tuple[str, ...]) -> None:
    unknown = sorted(set(mark.kwargs) - set(known))
    if unknown:
        raise UsageError(
            f"{item.nodeid}: @pytest.mark.{mark.name} has no keyword {', '.join(unknown)}; "
            f"it takes {', '.join(known)}"
        )
