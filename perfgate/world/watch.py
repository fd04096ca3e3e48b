"""Note each collective that a rank begins, so that a failure can tell what the ranks were at.

Costs two or three microseconds a call; worlds that measure leave it off (``Seat.watched``).
"""

from __future__ import annotations

import functools
import inspect
import mmap
import threading
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from perfgate.comm.calls import CALLS
from perfgate.world.record import (
    BEGUN,
    HEADER,
    RAISED,
    RETURNED,
    SEPARATOR,
    SIZE_BYTES,
    SLOT,
    SLOT_BYTES,
    SLOTS,
    TEXT_BYTES,
)

#: By op, the parameter whose elements are noted; every rank of the group must call the op.
COLLECTIVES: dict[str, str | None] = {
    "_all_gather_base": "input_tensor",
    "_reduce_scatter_base": "input",
    "all_gather": "tensor",
    "all_gather_coalesced": None,
    "all_gather_into_tensor": "input_tensor",
    "all_gather_object": None,
    "all_gather_single": "input_tensor",
    "all_reduce": "tensor",
    "all_reduce_coalesced": None,
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "barrier": None,
    "broadcast": "tensor",
    "broadcast_object_list": None,
    "gather": "tensor",
    "gather_object": None,
    "monitored_barrier": None,
    "reduce": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_single": "input",
    "reduce_scatter_tensor": "input",
    "scatter": "tensor",
    "scatter_object_list": None,
}
#: Ops between two ranks: noted, never compared.
POINT_TO_POINT: dict[str, str | None] = {
    "batch_isend_irecv": None,
    "irecv": "tensor",
    "isend": "tensor",
    "recv": "tensor",
    "recv_object_list": None,
    "send": "tensor",
    "send_object_list": None,
}
#: Ops whose tensors may differ in size between the ranks.
_UNEVEN = {"all_to_all", "all_to_all_single", "all_gather", "reduce_scatter", *POINT_TO_POINT}
_DETAILS = ("op", "src", "dst")


class Watch:
    """The rank's side of its record."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE_BYTES)
        self._texts: dict[Any, tuple[bytes, bytes]] = {}
        self._inside = threading.local()
        self.reset()

    def install(self) -> None:
        """Wrap the collectives of torch.distributed."""
        for name, read in _READERS.items():
            wrapped = self._wrap(name, read, getattr(c10d, name))
            for module in (c10d, dist):
                setattr(module, name, wrapped)

    @property
    def steps(self) -> tuple[int, int]:
        """How many collectives on the whole world this call began, and their checksum."""
        return self._on_world, self._checksum

    def reset(self) -> None:
        """Begin a new call: counting starts again."""
        self._total = self._on_world = self._checksum = 0
        self._in_groups: dict[str, int] = {}
        self._head()

    def _head(self) -> None:
        HEADER.pack_into(self._memory, 0, self._total)

    def _wrap(
        self, name: str, read: Callable[..., Any], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "one", False):
                return original(*args, **kwargs)
            self._inside.one = True
            undo = self._begin(name, *read(args, kwargs))
            try:
                result = original(*args, **kwargs)
            except BaseException:
                self._take_back(*undo)
                raise
            else:
                self._memory[undo[0]] = RETURNED
                return result
            finally:
                self._inside.one = False

        return watched

    def _begin(self, name: str, group: Any, tensor: Any, details: Any) -> tuple[int, int, int]:
        """Write a slot; return where it is and what the header and the group were before."""
        label = _label(group)
        if isinstance(tensor, torch.Tensor):
            what = (name, label, tensor.shape, tensor.dtype, *details)
        else:
            what = (name, label, None, type(tensor), *details)
        texts = self._texts.get(what)
        if texts is None:
            texts = self._texts[what] = _texts(name, label, tensor, details)
        text, key = texts
        offset = HEADER.size + self._total % SLOTS * SLOT_BYTES
        before = (offset, self._on_world, self._checksum)
        compared = name in COLLECTIVES
        if label or not compared:
            number = self._in_groups[label] = self._in_groups.get(label, 0) + 1
        else:
            number = self._on_world = self._on_world + 1
            self._checksum = zlib.crc32(key, self._checksum)
        SLOT.pack_into(self._memory, offset, BEGUN, number, len(text))
        start = offset + SLOT.size
        self._memory[start : start + len(text)] = text
        self._total += 1
        self._head()
        return before

    def _take_back(self, offset: int, on_world: int, checksum: int) -> None:
        """Note that a collective raised: what never happened is not compared."""
        self._memory[offset] = RAISED
        self._on_world, self._checksum = on_world, checksum


def _reader(original: Callable[..., Any], parameter: str | None) -> Callable[..., Any]:
    """Return a function that picks group, tensor and details out of a call's arguments."""
    places = {name: place for place, name in enumerate(inspect.signature(original).parameters)}
    wanted = [name for name in _DETAILS if name in places]
    defaults = inspect.signature(original).parameters

    def pick(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        place = places.get(name, len(args))
        if place < len(args):
            return args[place]
        return kwargs.get(name, defaults[name].default if name in defaults else None)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, tuple[Any, ...]]:
        tensor = pick(parameter, args, kwargs) if parameter else None
        details = tuple((name, pick(name, args, kwargs)) for name in wanted)
        return pick("group", args, kwargs), tensor, details

    return read


def _label(group: Any) -> str:
    """Return the group's ranks, or nothing for the whole world."""
    if group is None or group is dist.GroupMember.WORLD:
        return ""
    try:
        return ", ".join(map(str, dist.get_process_group_ranks(group)))
    except (RuntimeError, ValueError, KeyError):
        return "?"


def _texts(name: str, label: str, tensor: Any, details: Any) -> tuple[bytes, bytes]:
    said = [_said(key, value) for key, value in details if value is not None]
    op = CALLS[name].op  # the same for all names that torch has given it
    if isinstance(tensor, torch.Tensor):
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = "" if name in _UNEVEN else str(tensor.numel())
        shown = " ".join([name, str(tuple(tensor.shape)), dtype, *said])
        key = " ".join([op, size, dtype, *said])
    else:
        shown = " ".join([name, *said])
        key = " ".join([op, *said])
    if name in POINT_TO_POINT:
        key = ""
    shown = shown[: TEXT_BYTES // 3]
    whole = SEPARATOR.join([label[: TEXT_BYTES // 4], shown, key[: TEXT_BYTES // 3]]).encode()
    return whole, key.encode()


def _said(key: str, value: Any) -> str:
    if key == "op":
        return str(value).rpartition(".")[2]
    return f"{key}={value}"


#: Made once, where torch is imported: signatures are slow to read.
_READERS = {
    name: _reader(getattr(c10d, name), parameter)
    for name, parameter in (COLLECTIVES | POINT_TO_POINT).items()
    if hasattr(c10d, name)
}
