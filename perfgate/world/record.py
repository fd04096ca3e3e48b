"""A rank's last collectives, in memory that outlives it: even a dead rank can be read.

The memory is a header and a ring of slots. The header counts the collectives of the call under
way; a slot tells one of them.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass

SLOTS = 64
SLOT_BYTES = 256
HEADER = struct.Struct("<Q")
SLOT = struct.Struct("<BQH")
SIZE_BYTES = HEADER.size + SLOTS * SLOT_BYTES
TEXT_BYTES = SLOT_BYTES - SLOT.size
SEPARATOR = "\x1f"

#: A slot's states.
BEGUN, RETURNED, RAISED = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective that a rank began.

    :param number: its place among those of its group in this call, from 1.
    :param group: ``""`` for the whole world, else the group's ranks.
    :param text: op, shape, dtype and what else tells it apart.
    :param key: the part that every rank of the group must agree on.
    """

    number: int
    group: str
    text: str
    key: str
    state: int

    def __str__(self) -> str:
        where = f" in the group of ranks {self.group}" if self.group else ""
        return f"#{self.number} {self.text}{where}"


def anonymous_file(name: str) -> int:
    """Return the descriptor of a nameless file, in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Record:
    """The controller's view of one rank's record."""

    def __init__(self) -> None:
        self.descriptor = anonymous_file("perfgate-record")
        os.ftruncate(self.descriptor, SIZE_BYTES)
        self._memory = mmap.mmap(self.descriptor, SIZE_BYTES)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.descriptor)

    def read(self) -> bytes:
        """Return the whole record."""
        return self._memory[:]


def collectives(record: bytes) -> tuple[Collective, ...]:
    """Return the collectives that a record holds, oldest first."""
    (total,) = HEADER.unpack_from(record)
    return tuple(_slot(record, index % SLOTS) for index in range(max(0, total - SLOTS), total))


def _slot(record: bytes, place: int) -> Collective:
    offset = HEADER.size + place * SLOT_BYTES
    state, number, length = SLOT.unpack_from(record, offset)
    start = offset + SLOT.size
    text = record[start : start + length].decode(errors="replace")
    group, shown, key = text.split(SEPARATOR)
    return Collective(number, group, shown, key, state)
