"""What crosses between controller and ranks: functions, arguments and results, as bytes.

Functions of test modules travel by value (``cloudpickle.register_pickle_by_value``), so that a
rank runs what pytest collected, rewritten asserts included.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any, ClassVar

import cloudpickle

from perfgate.errors import UsageError

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
        return super().reducer_override(obj)


def pack(value: object) -> bytes:
    """Return a value as bytes that :func:`unpack` reads on the other side.

    :raises Exception: whatever the value's own reduction raises.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """Return the value that :func:`pack` made bytes of."""
    return pickle.loads(data)


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
