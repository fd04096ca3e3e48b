"""What the comms logger keeps: one packed record a call, 30 bytes, in chunks.

A record is written by one ``struct.pack_into``, which is several times cheaper than assigning to
numpy columns, and read as a numpy structured array over the same memory.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RECORD = np.dtype(
    [
        ("enter_ns", "<i8"),
        ("size_key", "<u8"),
        ("sequence", "<u4"),
        ("latency_s", "<f4"),
        ("wait_s", "<f4"),
        ("enqueue_ms", "<f2"),
    ]
)
"""One call.

``enter_ns`` is CLOCK_MONOTONIC, one clock for all ranks of a host; ``size_key`` holds the message
size above 16 bits of key; ``sequence`` numbers the group's collectives, equally on all its ranks,
and is 0 where there is none (point-to-point). ``latency_s`` runs from enter to done. A call that
returned a handle has ``enqueue_ms``, the time until it returned, and once it was waited for
``wait_s``, the time that the wait blocked; both are NaN otherwise.
"""

_PACK = struct.Struct("<qQIffe")
_PACK_WAIT = struct.Struct("<f")
_WAIT_OFFSET = 24
_pack_into = _PACK.pack_into
_RECORD_BYTES = _PACK.size
_CHUNK_RECORDS = 4096
_CHUNK_BYTES = _CHUNK_RECORDS * _RECORD_BYTES
_KEY_BITS = 16
_LAST_KEY = (1 << _KEY_BITS) - 1
_LAST_SEQUENCE = 2**32 - 1
_MOST_ENQUEUE_MS = 65504.0  # the largest float16


class Key(NamedTuple):
    """What calls are told apart by, besides their size.

    :param name: what the call is logged as.
    :param op: the entry of the formula table that it follows.
    :param group: torch's name of the process group.
    :param world_size: ranks in that group.
    :param device: whether the latency was measured on a GPU's clock.
    """

    name: str
    op: str
    group: str
    world_size: int
    device: bool


PlainKey = tuple[str, str, str, int, bool]
"""A :class:`Key` that was cheaper to make."""

OTHER = Key("(other)", "barrier", "", 1, False)
"""Where calls go once 65 535 keys are in use, as with a new log_name for every step."""


class Records:
    """Records in the order in which calls were done, in memory that grows by chunks.

    Not for several threads: the logger that owns them holds its lock around each method.
    """

    __slots__ = ("_chunk", "_chunks", "_count", "_key_ids", "_keys", "_offset")

    def __init__(self) -> None:
        self._chunks: list[bytearray] = []
        self._chunk = bytearray()
        self._offset = _CHUNK_BYTES  # within the last chunk
        self._count = 0
        self._keys: list[Key] = []
        self._key_ids: dict[PlainKey, int] = {}

    def __len__(self) -> int:
        return self._count

    def append(
        self,
        key: PlainKey,
        size_bytes: int,
        enter_ns: int,
        sequence: int,
        latency_s: float,
        enqueue_s: float = math.nan,
        wait_s: float = math.nan,
    ) -> int:
        """Write one record and return its index."""
        key_id = self._key_ids.get(key)
        if key_id is None:
            key_id = self._intern(key)
        if self._offset == _CHUNK_BYTES:
            self._chunk = bytearray(_CHUNK_BYTES)
            self._chunks.append(self._chunk)
            self._offset = 0
        enqueue_ms = enqueue_s * 1e3
        if enqueue_ms > _MOST_ENQUEUE_MS:
            enqueue_ms = _MOST_ENQUEUE_MS
        _pack_into(
            self._chunk, self._offset, enter_ns, size_bytes << _KEY_BITS | key_id,
            sequence & _LAST_SEQUENCE, latency_s, wait_s, enqueue_ms,
        )  # fmt: skip
        self._offset += _RECORD_BYTES
        self._count = count = self._count + 1
        return count - 1

    def set_wait(self, index: int, wait_s: float) -> None:
        """Add to a record how long the wait for it blocked."""
        chunk, place = divmod(index, _CHUNK_RECORDS)
        _PACK_WAIT.pack_into(self._chunks[chunk], place * _RECORD_BYTES + _WAIT_OFFSET, wait_s)

    def _intern(self, key: PlainKey) -> int:
        if len(self._keys) >= _LAST_KEY:
            if len(self._keys) == _LAST_KEY:
                self._keys.append(OTHER)
            return _LAST_KEY
        self._keys.append(Key(*key))
        self._key_ids[key] = key_id = len(self._keys) - 1
        return key_id

    def view(self) -> View:
        """Return what is written so far, not yet copied: rows before its end change no more."""
        return View(tuple(self._keys), tuple(self._chunks), self._count)

    @property
    def nbytes(self) -> int:
        """Bytes held for records, room for coming ones included."""
        return len(self._chunks) * _CHUNK_BYTES


class View(NamedTuple):
    """The records at one moment, to be copied without holding up those who write."""

    keys: tuple[Key, ...]
    chunks: tuple[bytearray, ...]
    length: int

    def copy(self) -> Snapshot:
        """Return a copy that shares no memory with the records."""
        memory = bytearray().join(self.chunks)  # several times faster than numpy would copy
        return Snapshot(self.keys, np.frombuffer(memory, RECORD, count=self.length))


class Snapshot(NamedTuple):
    """A copy of the records: ``rows`` is a :data:`RECORD` array, ``keys`` is by its key ids."""

    keys: tuple[Key, ...]
    rows: NDArray[np.void]

    @property
    def key_ids(self) -> NDArray[np.int64]:
        """The index into ``keys`` of each row."""
        return (self.rows["size_key"] & np.uint64(_LAST_KEY)).astype(np.int64)

    @property
    def sizes_bytes(self) -> NDArray[np.int64]:
        """The message size of each row."""
        return (self.rows["size_key"] >> np.uint64(_KEY_BITS)).astype(np.int64)

    def key_and_size(self, size_key: int) -> tuple[Key, int]:
        """Return the key, and the size in bytes, of a row's ``size_key``."""
        return self.keys[size_key & _LAST_KEY], size_key >> _KEY_BITS
