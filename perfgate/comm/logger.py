"""CommsLogger: which calls are logged, and what was."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from perfgate.comm.bandwidth import algbw_gbps, busbw_gbps
from perfgate.comm.calls import CALLS
from perfgate.comm.configuration import CommsConfig, op_names, read_config
from perfgate.comm.records import Key, PlainKey, Records, Snapshot
from perfgate.comm.summary import raw_data, readable_size, rows

DECIDED = "\0"
"""The selector of a call that was found to be wanted when it returned, and is read later."""


class Pending(Protocol):
    """A call whose time a device holds, to be read later."""

    def settle(self, block: bool) -> bool:
        """Log the call if it is done, waiting for that if ``block``; return whether it was."""


class CommsLogger:
    """Switches and records.

    The last word on an op counts: a start or stop of all ops speaks about every one, a later
    start or stop of one op about that one. Whoever stops an op is sure that nothing of it is
    logged afterwards, calls that are still running included.

    All methods may be called from any thread at any moment. What readers get is a copy.

    :param place: returns this process's rank and the world size.
    """

    def __init__(self, place: Callable[[], tuple[int, int]] = lambda: (0, 1)) -> None:
        self.armed = False  # enabled, for reading at every call
        self.verbose = False
        self.debug = False
        self.records = Records()
        self._place = place
        self._lock = threading.Lock()
        self._all = True
        self._named: frozenset[str] = frozenset()  # prof_ops, for when prof_all is turned off
        self._exceptions: frozenset[str] = frozenset()  # whose switch differs from _all
        self._pending: deque[Pending] = deque()

    # switches

    @property
    def enabled(self) -> bool:
        """Whether anything is logged at all."""
        return self.armed

    @enabled.setter
    def enabled(self, on: bool) -> None:
        with self._lock:
            self.armed = on

    @property
    def prof_all(self) -> bool:
        """Whether ops that nothing was said about are logged."""
        return self._all

    @prof_all.setter
    def prof_all(self, on: bool) -> None:
        with self._lock:
            self._select(on, self._named)

    @property
    def prof_ops(self) -> list[str]:
        """The ops that are logged by name, when not all are."""
        return sorted(self._named if self._all else self._exceptions)

    @prof_ops.setter
    def prof_ops(self, names: str | Iterable[str]) -> None:
        chosen = frozenset(op_names(names))
        with self._lock:
            self._select(self._all, chosen)

    def _select(self, every: bool, named: frozenset[str]) -> None:
        self._named = named
        self._all, self._exceptions = every, frozenset() if every else named

    def configure(
        self, config: CommsConfig | Mapping[str, object] | str | os.PathLike[str]
    ) -> None:
        """Take over a configuration, see :func:`perfgate.comm.configuration.read_config`.

        :raises UsageError: when it is wrong; then nothing has changed.
        """
        read = read_config(config)
        with self._lock:
            self._select(read.prof_all, frozenset(read.prof_ops))
            self.verbose, self.debug = read.verbose, read.debug
            self.armed = read.enabled

    def start_profiling_comms(self) -> None:
        """Log all ops from now on, if the logger is enabled."""
        self._switch(True, None)

    def stop_profiling_comms(self) -> None:
        """Log nothing from now on, save calls with ``prof=True``."""
        self._switch(False, None)

    def start_profiling_op(self, op_name_list: str | Iterable[str]) -> None:
        """Log these ops (or log_names) from now on, if the logger is enabled."""
        self._switch(True, op_names(op_name_list))

    def stop_profiling_op(self, op_name_list: str | Iterable[str]) -> None:
        """Log these ops (or log_names) no more."""
        self._switch(False, op_names(op_name_list))

    def _switch(self, on: bool, names: Iterable[str] | None) -> None:
        with self._lock:
            if names is None:
                self._all, self._exceptions = on, frozenset()
            elif on is self._all:
                self._exceptions = self._exceptions.difference(names)
            else:
                self._exceptions = self._exceptions.union(names)

    def selects(self, name: str) -> bool:
        """Whether calls of this op or log_name are logged."""
        return self.armed and (name in self._exceptions) is not self._all

    @property
    def config(self) -> CommsConfig:
        """The present state of all switches."""
        with self._lock:
            return CommsConfig(
                enabled=self.armed,
                verbose=self.verbose,
                debug=self.debug,
                prof_all=self._all,
                prof_ops=tuple(self.prof_ops),
            )

    # writing

    def add(
        self,
        records: Records,
        selector: str | None,
        key: PlainKey,
        size_bytes: int,
        enter_ns: int,
        sequence: int,
        latency_s: float,
        enqueue_s: float = math.nan,
        wait_s: float = math.nan,
    ) -> int | None:
        """Log a call that is done, unless it was stopped or reset while it ran.

        :param records: what :attr:`records` was when the call began.
        :param selector: the op or log_name that must still be selected; None for ``prof=True``,
            :data:`DECIDED` for a call that passed :meth:`later`.

        The rest is as in :data:`~perfgate.comm.records.RECORD`. Returns the record's index.
        """
        with self._lock:
            if not self._wants(records, selector):
                return None
            index = records.append(
                key, size_bytes, enter_ns, sequence, latency_s, enqueue_s, wait_s
            )
        if self.verbose:
            self._print(Key(*key), size_bytes, latency_s)
        return index

    def append(self, raw_name: str, record_name: str, latency: float, msg_size: int) -> None:
        """Log a call of the whole world that was timed elsewhere.

        :param raw_name: the op, which decides on the formula.
        :param latency: milliseconds.
        :param msg_size: nccl-tests' size in bytes.
        """
        op = CALLS[raw_name].op if raw_name in CALLS else raw_name
        _, world_size = self._place()
        busbw_gbps(op, msg_size, latency, world_size)  # refuses an unknown op
        key = Key(record_name, op, "", world_size, False)
        with self._lock:
            self.records.append(key, msg_size, 0, 0, latency / 1e3)

    def _wants(self, records: Records, selector: str | None) -> bool:
        if records is not self.records:
            return False
        if selector == DECIDED:
            return True
        return self.armed and (selector is None or (selector in self._exceptions) is not self._all)

    def later(self, records: Records, selector: str | None, pending: Pending) -> None:
        """Keep a call whose time is read when somebody asks, or once it is known anyway.

        What counts is whether it is wanted now, when the host has returned from it.
        """
        with self._lock:
            if not self._wants(records, selector):
                return
            self._pending.append(pending)
        if len(self._pending) % 256 == 0:
            self._settle(block=False)

    def _settle(self, block: bool) -> None:
        for _ in range(len(self._pending)):
            try:
                pending = self._pending.popleft()
            except IndexError:  # another thread settles too
                return
            if not pending.settle(block):
                self._pending.appendleft(pending)
                return

    def _print(self, key: Key, size_bytes: int, latency_s: float) -> None:
        rank, _ = self._place()
        if rank != 0:
            return
        now_s = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now_s))
        sys.stdout.write(
            f"[{stamp},{int(now_s % 1 * 1e3):03d}] [INFO] [Rank 0] rank{rank} | comm op: {key.name}"
            f" | time (ms): {latency_s * 1e3:.2f} | msg size: {readable_size(size_bytes)}"
            f" | algbw (Gbps): {algbw_gbps(size_bytes, latency_s):.2f}"
            f" | busbw (Gbps): {busbw_gbps(key.op, size_bytes, latency_s, key.world_size):.2f}\n"
        )
        sys.stdout.flush()

    # reading

    def snapshot(self) -> Snapshot:
        """Return a copy of all records, waiting for calls that a device has yet to finish."""
        self._settle(block=True)
        with self._lock:
            view = self.records.view()
        return view.copy()

    def get_raw_data(self) -> dict[str, dict[int, list[Any]]]:
        """Return ``{name: {size_bytes: [count, [latency_ms], [algbw_gbps], [busbw_gbps]]}}``."""
        return raw_data(self.snapshot())

    def get_operation_summary(self, operation_name: str) -> dict[int, dict[str, Any]] | None:
        """Return the figures of one name by message size, or None if it was never logged."""
        found = rows(self.snapshot(), operation_name)
        return {row.size_bytes: row.as_dict() for row in found} or None

    def get_operation_names(self) -> list[str]:
        """Return the names that were logged, in the order of their first call."""
        self._settle(block=True)
        with self._lock:
            keys = self.records.view().keys
        return list(dict.fromkeys(key.name for key in keys))

    def get_total_operations(self) -> int:
        """Return how many calls were logged."""
        self._settle(block=True)
        return len(self.records)

    def has_data(self) -> bool:
        """Return whether any call was logged."""
        return self.get_total_operations() > 0

    def reset_data(self) -> None:
        """Forget all records; calls that are running now are not logged either."""
        with self._lock:
            self._pending.clear()
            self.records = Records()
