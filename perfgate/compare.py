"""``perfgate compare BASE..HEAD``: two revisions, each in an environment of its own, side by side.

Each revision is checked out below ``.perfgate/compare`` and installed into a virtual environment
beside it. Then HEAD's tests run in HEAD's environment, with ``--perfgate-base`` as BASE's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import UsageError
from perfgate.revision import Recipe, Revision, git, own_paths_only, prepare, resolve

_EPILOG = """
BASE alone, or BASE.., compares with this working tree and this interpreter as they are; the
package under test must then be installed here.

An environment shares this one's packages, torch and all, except what is installed editable; the
revision itself goes on top. Whatever else --install needs, it is to install:

  {python}     the environment's interpreter
  {checkout}   the folder of the revision

It is run without a shell. For a project that builds with what is installed here already, as where
no package registry can be reached:

  --install "{python} -m pip install --no-deps --no-build-isolation {checkout}"

and for DeepSpeed:

  --install "env DS_BUILD_OPS=0 {python} -m pip install --no-deps --no-build-isolation {checkout}"

Environments are kept, and used again as long as revision and recipe are the same. To clear up:
rm -r .perfgate/compare && git worktree prune
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.usage = "perfgate compare [options] BASE..HEAD [-- PYTEST-ARGS]"
    parser.add_argument("revisions", metavar="BASE..HEAD", help="two revisions, as git names them")
    parser.add_argument("--install", metavar="CMD", default="", help="how to install a revision")
    parser.add_argument(
        "--own-dependencies",
        action="store_true",
        help="share no packages: install each revision with its own dependencies",
    )
    parser.add_argument(
        "--folder", metavar="DIR", help="where environments are kept (default: .perfgate/compare)"
    )
    parser.set_defaults(passed_on=[])


def run(args: argparse.Namespace) -> int:
    """Make the environments and compare; return pytest's exit status.

    :raises UsageError: for an unknown revision, or one that cannot be installed.
    """
    top = Path(git("rev-parse", "--show-toplevel"))
    base_name, _, head_name = args.revisions.partition("..")
    if not base_name or head_name.startswith("."):
        raise UsageError(f"{args.revisions!r} is no BASE..HEAD; give two revisions, as main..HEAD")
    base = resolve(base_name)
    head = resolve(head_name) if head_name else None
    folder = Path(args.folder or top / ".perfgate" / "compare").absolute()
    recipe = Recipe(install=args.install, own_dependencies=args.own_dependencies)
    python = prepare(base, folder, recipe, _tell)
    runner = _here() if head is None else _there(head, folder, recipe)
    _tell(f"comparing {base.short} with {head.short if head else 'this working tree'}")
    command = [
        *runner.command,
        "--perfgate",
        f"--perfgate-base={python}",
        f"--perfgate-base-name={base.short}",
        *args.passed_on,
    ]
    return subprocess.run(command, cwd=runner.cwd, env=runner.environ, check=False).returncode


@dataclass(frozen=True, slots=True)
class _Runner:
    """How pytest is run on the head."""

    command: tuple[str, ...]
    cwd: Path
    environ: dict[str, str]


def _here() -> _Runner:
    return _Runner((sys.executable, "-m", "pytest"), Path.cwd(), dict(os.environ))


def _there(head: Revision, folder: Path, recipe: Recipe) -> _Runner:
    """Return how to run pytest on a revision, where it imports what is installed, as the base does.

    ``python -m pytest`` would import from the checkout instead.
    """
    python = prepare(head, folder, recipe, _tell)
    code = "import sys; sys.path[:] = filter(None, sys.path); import pytest; "
    code += "sys.exit(pytest.console_main())"
    below = git("rev-parse", "--show-prefix")
    return _Runner((str(python), "-c", code), head.checkout(folder) / below, own_paths_only())


def _tell(text: str) -> None:
    sys.stdout.write(f"perfgate compare: {text}\n")
    sys.stdout.flush()
