"""A revision of the repository that we stand in, and the environment that it is installed into."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from perfgate.errors import UsageError

_SHARING = "{python} -m pip install --quiet --no-deps {checkout}"
_OURSELVES = Path(__file__).parents[1]
_LINES = 20


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit, and what it was asked for by."""

    name: str
    commit: str

    @property
    def short(self) -> str:
        """The hash as people write it."""
        return self.commit[:12]

    def checkout(self, folder: Path) -> Path:
        """Where its files are."""
        return folder / self.short / "checkout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a revision is installed.

    :param install: a command with ``{python}`` and ``{checkout}``; empty for the usual one.
    :param own_dependencies: whether to share none of this environment's packages.
    """

    install: str = ""
    own_dependencies: bool = False

    def command(self, python: Path, checkout: Path) -> list[str]:
        """Return the command for an environment.

        :raises UsageError: when it cannot be split into words.
        """
        try:
            words = shlex.split(self.install or self._usual(checkout))
        except ValueError as error:
            raise UsageError(f"--install {self.install!r} is no command: {error}") from error
        places = (("{python}", str(python)), ("{checkout}", str(checkout)))
        for mark, place in places:
            words = [word.replace(mark, place) for word in words]
        return words

    def _usual(self, checkout: Path) -> str:
        if not self.own_dependencies:
            return _SHARING
        words = ["{python} -m pip install --quiet {checkout}"]
        if not (checkout / "perfgate" / "plugin.py").exists():
            words.append(shlex.quote(_requirement()))
        if (checkout / "constraints.txt").exists():
            words.append("-c {checkout}/constraints.txt")
        return " ".join(words)


def git(*words: str) -> str:
    """Return what git answers.

    :raises UsageError: with its complaint, when it fails.
    """
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"git cannot be run: {error}") from error
    if done.returncode:
        raise UsageError(f"git {' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def resolve(name: str) -> Revision:
    """Return the commit that a name stands for.

    :raises UsageError: when git knows none.
    """
    try:
        commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except UsageError:
        raise UsageError(
            f"{name!r} is no revision of this repository; next: git fetch, or git log --oneline"
        ) from None
    return Revision(name, commit.splitlines()[-1])


def prepare(revision: Revision, folder: Path, recipe: Recipe, tell: Callable[[str], None]) -> Path:
    """Return the interpreter of a revision's environment, made where it is not there yet.

    :param folder: where environments are kept.
    :raises UsageError: when the revision cannot be checked out or installed.
    """
    home = folder / revision.short
    home.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    checkout = revision.checkout(folder)
    python = home / "venv" / "bin" / "python"
    stamp = home / "stamp.json"
    with FileLock(home / ".lock"):
        _check_out(revision, checkout, tell)
        command = recipe.command(python, checkout)
        made_of = _ingredients(recipe, command)
        if stamp.exists() and stamp.read_text() == made_of:
            tell(f"{revision.short} ({revision.name}) is installed already")
            return python
        stamp.unlink(missing_ok=True)
        _make_environment(home / "venv", recipe)
        _install(revision, command, checkout, tell)
        stamp.write_text(made_of)  # last: what is cut short is made again
    return python


def _check_out(revision: Revision, checkout: Path, tell: Callable[[str], None]) -> None:
    if (checkout / ".git").exists():
        return
    tell(f"checking out {revision.short} ({revision.name})")
    git("worktree", "prune")  # of what was deleted by hand
    git("worktree", "add", "--detach", "--force", str(checkout), revision.commit)


def _make_environment(folder: Path, recipe: Recipe) -> None:
    alone = recipe.own_dependencies or importlib.util.find_spec("pip") is None
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=alone).create(folder)
    if not recipe.own_dependencies:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "perfgate-shared.pth").write_text("".join(f"{path}\n" for path in _shared()))


def _shared() -> list[str]:
    """Return the folders of this environment's packages, and of this perfgate.

    Python reads no ``.pth`` in a folder that a ``.pth`` has added, so that what is installed
    editable here is not seen there.
    """
    names = ("site-packages", "dist-packages")
    folders = [path for path in sys.path if os.path.basename(path) in names]
    return [*dict.fromkeys([*folders, str(_OURSELVES)])]


def _install(
    revision: Revision, command: list[str], checkout: Path, tell: Callable[[str], None]
) -> None:
    tell(f"installing {revision.short}: {shlex.join(command)}")
    environ = own_paths_only() | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=checkout,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise UsageError(f"--install: {command[0]} cannot be run: {error}") from error
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-_LINES:])
        raise UsageError(
            f"{revision.short} ({revision.name}) cannot be installed, the command ended with "
            f"{done.returncode}:\n{last}\nnext: cd {shlex.quote(str(checkout))} && "
            f"{shlex.join(command)}\nor give another --install, see perfgate compare --help"
        )


def own_paths_only() -> dict[str, str]:
    """Return our variables without those that let an environment import from elsewhere."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def _ingredients(recipe: Recipe, command: list[str]) -> str:
    """Return what an environment is made of, so that another recipe makes it anew."""
    facts = asdict(recipe) | {"command": command, "python": sys.version, "shared": _shared()}
    return json.dumps(facts, indent=1)


def _requirement() -> str:
    """Return what installs this very perfgate elsewhere, its folder where that is how it came."""
    try:
        distribution = metadata.distribution("pytest-perfgate")
    except metadata.PackageNotFoundError:
        return str(_OURSELVES)
    origin = json.loads(distribution.read_text("direct_url.json") or "{}").get("url", "")
    if origin.startswith("file:"):
        return unquote(urlsplit(origin).path)
    return f"pytest-perfgate=={distribution.version}"
