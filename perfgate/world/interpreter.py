"""Another Python whose ranks run beside ours: what it has, and how it is started.

It imports from its own environment, never from ours: neither PYTHONPATH nor the working directory
reach it. Where it has no perfgate it is lent ours, that one package and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from perfgate.errors import UsageError
from perfgate.world.protocol import PROTOCOL

NEEDED = ("torch", "numpy", "cloudpickle", "psutil")
_GUEST = str(Path(__file__).with_name("guest.py"))
_OURSELVES = str(Path(__file__).parents[1])
_DEADLINE_S = 60.0
#: What would bring our packages into its ranks, or slow one side alone.
_KEPT_FROM = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "PERFGATE_PLANT",
    "PERFGATE_COVERAGE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """Another Python.

    :param python: its absolute path, symbolic links left as they are: a venv is known by one.
    :param prefix: the folder of its environment.
    :param paths: where its ranks import from.
    :param lent: packages by name and folder that it imports where it has none of that name.
    :param torch: its version of torch.
    """

    python: str
    prefix: str
    paths: tuple[str, ...]
    lent: tuple[tuple[str, str], ...] = ()
    torch: str = ""

    def with_tests(
        self, folders: Iterable[str], packages: Iterable[tuple[str, str]]
    ) -> Interpreter:
        """Return the same with test code: folders to import from last, packages to be lent."""
        return replace(self, paths=(*self.paths, *folders), lent=(*self.lent, *packages))

    def command(self, descriptor: int) -> list[str]:
        """Return the command that makes a zygote of it, which serves this descriptor."""
        return [self.python, "-s", _GUEST, "zygote", str(descriptor), json.dumps(dict(self.lent))]

    def environ(self, ours: Mapping[str, str]) -> dict[str, str]:
        """Return an environment without what is ours alone."""
        return {name: value for name, value in ours.items() if name not in _KEPT_FROM}


def describe(python: str) -> Interpreter:
    """Ask another Python what it has.

    :param python: a path, or a name on PATH.
    :raises UsageError: when it cannot be run, or its ranks could not understand ours.
    """
    path = _found(python)
    told = _ask(path)
    _check(path, told)
    lent = () if told["perfgate"] else (("perfgate", _OURSELVES),)
    return Interpreter(
        python=path,
        prefix=told["prefix"],
        paths=tuple(told["path"]),
        lent=lent,
        torch=told["packages"]["torch"],
    )


def _found(python: str) -> str:
    path = os.path.abspath(os.path.expanduser(python)) if os.sep in python else python
    found = shutil.which(path)
    if found is None:
        what = "cannot be run" if os.path.exists(path) else "is not there"
        raise UsageError(f"{python} {what}; give the path of a Python, as .venv/bin/python")
    return os.path.abspath(found)


def _ask(path: str) -> dict[str, Any]:
    said = _run([path, "-s", _GUEST, "describe", *NEEDED])
    try:
        told: dict[str, Any] = json.loads(said)
    except ValueError as error:
        last = said.strip().splitlines()[-1:] or ["it says nothing"]
        raise UsageError(
            f"{path} does not answer as a Python does: {last[0]}; "
            "give the path of a Python, as .venv/bin/python"
        ) from error
    return told


def _run(command: list[str]) -> str:
    """Return what a command writes; what it complains of, where it fails."""
    bare = Interpreter(python=command[0], prefix="", paths=()).environ(os.environ)
    try:
        done = subprocess.run(
            command,
            env=bare,
            cwd=os.sep,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr if done.returncode else done.stdout


def _check(path: str, told: Mapping[str, Any]) -> None:
    ours = (sys.implementation.name, *sys.version_info[:2])
    theirs = (told["implementation"], *told["python"])
    if ours != theirs:
        raise UsageError(
            f"{path} is {_named(theirs)} and this is {_named(ours)}, and functions cross as byte "
            f"code; make its environment with this one: {sys.executable} -m venv FOLDER"
        )
    missing = [name for name in NEEDED if told["packages"][name] is None]
    if missing:
        raise UsageError(
            f"{path} has no {', no '.join(missing)}; next: {path} -m pip install "
            f"{' '.join(missing)}"
        )
    _check_cloudpickle(path, told["packages"]["cloudpickle"])
    if told["perfgate"] and told["protocol"] != PROTOCOL:
        raise UsageError(
            f"{path} has perfgate {told['perfgate']}, whose ranks speak protocol "
            f"{told['protocol']} and not {PROTOCOL}; next: {path} -m pip uninstall "
            "pytest-perfgate, so that it is lent this one"
        )


def _check_cloudpickle(path: str, theirs: str) -> None:
    ours = metadata.version("cloudpickle")
    if ours.split(".")[0] != theirs.split(".")[0]:
        raise UsageError(
            f"{path} has cloudpickle {theirs} and this is {ours}, and neither reads what the "
            f"other writes; next: {path} -m pip install cloudpickle=={ours}"
        )


def _named(version: tuple[Any, ...]) -> str:
    name, *numbers = version
    return f"{name} {'.'.join(map(str, numbers))}"
