"""Files replaced whole, and the fact told where the system refuses."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import Timeout

from perfgate.errors import BaselineError


def replace_whole(path: Path, text: str) -> None:
    """Write ``text`` so that a reader, or a crash, finds the old file or the new one.

    :raises BaselineError: when the directory cannot be written; the old file is untouched.
    """
    with facts(path, "write"):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with open(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


@contextlib.contextmanager
def facts(path: Path, verb: str) -> Iterator[None]:
    """Turn what the system refuses within into a :class:`BaselineError` that says so."""
    try:
        yield
    except Timeout:
        raise
    except OSError as error:
        raise BaselineError(told(path, verb, error)) from error


def told(path: Path, verb: str, error: OSError) -> str:
    """Return what could not be done to which file, and why."""
    where = error.filename if isinstance(error.filename, str) else path
    return f"{path}: cannot {verb} the baseline: {where}: {error.strerror or error}"
