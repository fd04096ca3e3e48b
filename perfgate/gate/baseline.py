"""Stored baselines: ``<root>/<environment key>/<suite>.json``.

A file is replaced as a whole or not at all, under a lock, after it was read again inside the
lock: two refreshes at once lose nothing. What cannot be read is named with its line and left
alone. The format is :mod:`perfgate.gate.schema`'s.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from perfgate.errors import BaselineError, UsageError
from perfgate.gate.environment import Environment, differences
from perfgate.gate.files import facts, replace_whole, told
from perfgate.gate.schema import BaselineFile, StoredCase, StoredSession, parse
from perfgate.gate.stats import Figure
from perfgate.model import Baseline, Session

KEPT_SESSIONS = 30
LOCK_TIMEOUT_S = 60.0
FROZEN = ("p10_s", "p25_s", "p50_s")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")


@dataclass(frozen=True)
class BaselineStore:
    """The baselines below one directory, which need not exist yet.

    Every method raises :class:`BaselineError` with the file, the line and the fact when what is
    there cannot be read or written, and :class:`UsageError` for a suite that is no file name.
    """

    root: Path
    kept_sessions: int = KEPT_SESSIONS
    lock_timeout_s: float = LOCK_TIMEOUT_S

    def path(self, environment: Environment, suite: str) -> Path:
        """Return where the baselines of a suite in an environment are kept."""
        return self.root / environment.key / f"{_safe(suite)}.json"

    def load(self, environment: Environment, suite: str) -> dict[str, Baseline]:
        """Return the stored baselines by case id; empty where none was ever stored."""
        content = self._read(self.path(environment, suite))
        if content is None:
            return {}
        return {
            name: _baseline(name, environment, case, content.scale)
            for name, case in content.cases.items()
        }

    def load_pinned(self, environment: Environment, suite: str) -> dict[str, Baseline]:
        """Return the sessions of the pinned commit alone, by the ids of the cases that have one.

        Against these a slow creep shows that no single step of it did.
        """
        content = self._read(self.path(environment, suite))
        if content is None:
            return {}
        pinned = {name: _only_pinned(case) for name, case in content.cases.items()}
        return {
            name: _baseline(name, environment, case, content.scale)
            for name, case in pinned.items()
            if case.sessions
        }

    def add(self, environment: Environment, suite: str, sessions: Mapping[str, Session]) -> Path:
        """Store one more session for each case id, and return the file that holds them.

        The oldest sessions beyond ``kept_sessions`` are dropped, the pinned one never.
        """

        def append(content: BaselineFile) -> BaselineFile:
            cases = dict(content.cases)
            for name, session in sessions.items():
                cases[name] = self._appended(
                    cases.get(name), StoredSession.of(session, content.scale)
                )
            return content.model_copy(update={"cases": cases})

        return self._update(environment, suite, append)

    def restart(
        self, environment: Environment, suite: str, sessions: Mapping[str, Session]
    ) -> Path:
        """Begin each case anew with one session: what was stored of it no longer counts."""

        def begun(content: BaselineFile) -> BaselineFile:
            fresh = {
                name: StoredCase(sessions=[StoredSession.of(session)])
                for name, session in sessions.items()
            }
            return content.model_copy(update={"cases": {**content.cases, **fresh}})

        return self._update(environment, suite, begun)

    def pin(self, environment: Environment, suite: str, commit: str) -> Path:
        """Keep the sessions of ``commit`` (a release) for good, so that slow creep shows.

        :raises BaselineError: when no case has a session of that commit.
        """

        def pinned(content: BaselineFile) -> BaselineFile:
            cases = {
                name: case.model_copy(update={"pinned": commit})
                for name, case in content.cases.items()
                if any(session.commit == commit for session in case.sessions)
            }
            if not cases:
                path = self.path(environment, suite)
                raise BaselineError(f"{path}: no session of commit {commit} to pin")
            return content.model_copy(update={"cases": {**content.cases, **cases}})

        return self._update(environment, suite, pinned)

    def calibrate(
        self, environment: Environment, suite: str, figures: Mapping[str, Figure]
    ) -> Path:
        """Freeze what is compared, by case id: a quantile of :data:`FROZEN`, how it follows pace.

        :raises BaselineError: for a case that is not stored, or a figure that cannot be.
        """
        path = self.path(environment, suite)

        def frozen(content: BaselineFile) -> BaselineFile:
            cases = dict(content.cases)
            for name, figure in figures.items():
                if name not in cases or figure.quantile not in FROZEN:
                    raise BaselineError(f"{path}: cannot compare {name!r} by {figure}")
                update = {"figure": figure.quantile, "follows": figure.follows}
                cases[name] = cases[name].model_copy(update=update)
            return content.model_copy(update={"cases": cases})

        return self._update(environment, suite, frozen)

    def environments(self) -> list[Environment]:
        """Return the environments that have baselines, in the order of their directories."""
        found = {}
        for path in self._files():
            if path.parent.name not in found:
                content = self._read(path)
                if content is not None:
                    found[path.parent.name] = content.identity
        return list(found.values())

    def suites(self) -> list[tuple[Environment, str]]:
        """Return every stored suite with its environment, in the order of their files."""
        contents = [(path, self._read(path)) for path in self._files()]
        return [(content.identity, path.stem) for path, content in contents if content is not None]

    def near_misses(self, environment: Environment) -> tuple[str, ...]:
        """Return the hard keys in which the closest stored environment differs, one a line.

        Empty when the environment itself is stored, or nothing is.
        """
        misses = [differences(environment, other) for other in self.environments()]
        return min(misses, key=len, default=())

    def _appended(self, case: StoredCase | None, session: StoredSession) -> StoredCase:
        if case is None:
            return StoredCase(sessions=[session])
        known = [*case.sessions, session]
        recent = known[-self.kept_sessions :]
        dropped = known[: -self.kept_sessions]
        kept = [old for old in dropped if old.commit == case.pinned]
        return case.model_copy(update={"sessions": [*kept, *recent]})

    def _files(self) -> list[Path]:
        with facts(self.root, "read"):
            if not self.root.exists():
                return []
            folders = [folder for folder in sorted(self.root.iterdir()) if folder.is_dir()]
            return [path for folder in folders for path in sorted(folder.glob("*.json"))]

    def _read(self, path: Path) -> BaselineFile | None:
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise BaselineError(f"{path}:{line}: not UTF-8 text; it is left as it is") from error
        except OSError as error:
            raise BaselineError(told(path, "read", error)) from error
        content = parse(text, str(path))
        if content.identity.key != path.parent.name:
            raise BaselineError(
                f"{path}:2: its environment belongs in the directory {content.identity.key}; "
                "it was edited or moved"
            )
        return content

    def _update(
        self,
        environment: Environment,
        suite: str,
        change: Callable[[BaselineFile], BaselineFile],
    ) -> Path:
        path = self.path(environment, suite)
        with self._locked(path):
            content = self._read(path) or BaselineFile.empty(environment)
            replace_whole(path, change(content).render())
        return path

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        with facts(path, "write"):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / ".lock", timeout=self.lock_timeout_s)
        try:
            with facts(path, "lock"):
                lock.acquire()
        except Timeout as error:
            raise BaselineError(
                f"{self.root / '.lock'}: another perfgate has held the lock for "
                f"{self.lock_timeout_s:g} s; nothing was written"
            ) from error
        try:
            yield
        finally:
            lock.release()


def _only_pinned(case: StoredCase) -> StoredCase:
    kept = [session for session in case.sessions if session.commit == case.pinned]
    return case.model_copy(update={"sessions": kept})


def _baseline(name: str, environment: Environment, case: StoredCase, scale: float) -> Baseline:
    return Baseline(
        case_id=name,
        environment=environment.key,
        sessions=tuple(session.session(scale) for session in case.sessions),
        figure=case.figure,
        follows=case.follows,
    )


def _safe(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"suite {name!r} is no plain file name; use letters, digits and . _ + - "
            "and start with a letter or digit"
        )
    return name
