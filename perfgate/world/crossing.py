"""What crosses between controller and ranks: functions, arguments and results, as bytes.

Functions of test modules travel by value (``cloudpickle.register_pickle_by_value``), so that a
rank runs what pytest collected, rewritten asserts included.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any, ClassVar

import cloudpickle

from perfgate.errors import UsageError
from perfgate.world.parcel import LARGE_BYTES, reduce_tensor

_NAMELESS = "<dynamic-code>"


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """Reduce code as cloudpickle does, but keep its file name: tracebacks need it."""
    kind, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return kind, tuple(code.co_filename if arg == _NAMELESS else arg for arg in args)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Mapping[Any, Any]] = ChainMap(
        {CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )

    def reducer_override(self, obj: Any) -> Any:
        """Send modules of a class of their own by name: torch.distributed.config is one."""
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            return importlib.import_module, (obj.__name__,)
        if type(obj).__module__ == "torch" and type(obj).__name__ == "Tensor":
            return reduce_tensor(obj)
        return super().reducer_override(obj)


class _Submodules:
    """The imported submodules that a function can address, found without a walk of all modules.

    cloudpickle looks through ``sys.modules`` for every module that a function names: half a
    millisecond each time for one that names torch. This keeps an index, renewed when a module
    is added; what it finds is the same (tests/world/test_crossing.py).
    """

    def __init__(self) -> None:
        self._count = 0
        self._index: dict[tuple[str, str], list[tuple[frozenset[str], str]]] = {}

    def __call__(self, code: CodeType, dependencies: Iterable[Any]) -> list[ModuleType]:
        """Return the submodules of ``dependencies`` whose names the code holds."""
        names = frozenset(code.co_names)
        return [
            sys.modules[name]
            for package in dependencies
            if isinstance(package, ModuleType) and getattr(package, "__package__", None)
            for first in names
            for tokens, name in self._below(package.__name__, first)
            if tokens <= names
        ]

    def _below(self, package: str, first: str) -> list[tuple[frozenset[str], str]]:
        if self._count != len(sys.modules):
            self._index = _index_modules(list(sys.modules))
            self._count = len(sys.modules)
        return self._index.get((package, first), [])


def _index_modules(names: list[str]) -> dict[tuple[str, str], list[tuple[frozenset[str], str]]]:
    index: dict[tuple[str, str], list[tuple[frozenset[str], str]]] = {}
    for name in names:
        parts = name.split(".")
        for cut in range(1, len(parts)):
            below = index.setdefault((".".join(parts[:cut]), parts[cut]), [])
            below.append((frozenset(parts[cut:]), name))
    return index


if hasattr(cloudpickle.cloudpickle, "_find_imported_submodules"):
    cloudpickle.cloudpickle._find_imported_submodules = _Submodules()


def pack(value: object, buffers: list[pickle.PickleBuffer] | None = None) -> bytes:
    """Return a value as bytes that :func:`unpack` reads on the other side.

    :param buffers: takes what is large, which then is not among the bytes.
    :raises Exception: whatever the value's own reduction raises.
    """
    keep_large = None if buffers is None else functools.partial(_keep_large, buffers)
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=keep_large).dump(value)
    return file.getvalue()


def unpack(data: bytes, buffers: Iterable[memoryview] = ()) -> Any:
    """Return the value that :func:`pack` made bytes, and perhaps buffers, of."""
    return pickle.loads(data, buffers=buffers)


def _keep_large(buffers: list[pickle.PickleBuffer], buffer: pickle.PickleBuffer) -> bool:
    """Keep a large buffer; of another, say that it goes with the bytes."""
    if buffer.raw().nbytes < LARGE_BYTES:
        return True
    buffers.append(buffer)
    return False


def pack_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bytes:
    """Return a call as bytes.

    :raises UsageError: naming the function or the argument that cannot cross.
    """
    try:
        return pack((function, args, dict(kwargs)))
    except Exception as error:
        parts = {f"the function {getattr(function, '__name__', function)!r}": function}
        parts |= {f"argument {place}": value for place, value in enumerate(args)}
        parts |= {f"argument {name!r}": value for name, value in kwargs.items()}
        culprit = next((name for name, part in parts.items() if not _crosses(part)), "the call")
        raise UsageError(
            f"{culprit} cannot be sent to the ranks: {type(error).__name__}: {error}; "
            "make it inside the function, on the rank"
        ) from error


@dataclass(frozen=True, slots=True)
class OnRank:
    """A function that is imported on the rank only, so that the controller need not load it."""

    module: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Import it, here on the rank, and call it."""
        return getattr(importlib.import_module(self.module), self.name)(*args, **kwargs)


def ship_by_value(module: ModuleType) -> None:
    """Let what a module defines travel by value from now on."""
    cloudpickle.register_pickle_by_value(module)


def _crosses(value: object) -> bool:
    try:
        pack(value)
    except Exception:  # noqa: BLE001 - a value's own __reduce__ may raise anything
        return False
    return True
