"""What another interpreter runs of ours before it has anything of ours: standard library alone.

Run as a script, ``describe`` prints what that interpreter has; ``zygote`` turns it into one.
Neither this file's folder nor the working directory are imported from.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType


def describe(packages: Sequence[str]) -> dict[str, object]:
    """Return this interpreter's version, where it imports from, and its versions of packages."""
    own = importlib.util.find_spec("perfgate") is not None
    return {
        "python": list(sys.version_info[:2]),
        "implementation": sys.implementation.name,
        "prefix": sys.prefix,
        "path": sys.path,
        "packages": {name: _version(name) for name in packages},
        "perfgate": _version("pytest-perfgate") or "unknown" if own else None,
        "protocol": _protocol() if own else None,
    }


class Lender(importlib.abc.MetaPathFinder):
    """Finds single packages in folders of another environment, after all that is here."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a lent package; what lies below it, Python then finds itself."""
        folder = self._folders.get(name)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown" if importlib.util.find_spec(package) else None


def _protocol() -> int:
    return getattr(importlib.import_module("perfgate.world.protocol"), "PROTOCOL", 0)


def main(task: str, *words: str) -> None:
    """Do what was asked for on the command line."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]
    if task == "describe":
        print(json.dumps(describe(words)))  # noqa: T201
        return
    descriptor, lent = words
    sys.meta_path.append(Lender(json.loads(lent)))
    importlib.import_module("perfgate.world.zygote").main(int(descriptor))


if __name__ == "__main__":
    main(*sys.argv[1:])
