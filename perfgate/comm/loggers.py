"""Comms loggers by provider, behind the face that DeepSpeed's and ours share.

The suite in ``suites/comm`` asks nothing more of a logger than this, so that another one can be
put under it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perfgate.comm.providers import provider

RawData = dict[str, dict[int, list[Any]]]
"""``{name: {size_bytes: [count, [latency_ms], [algbw_gbps], [busbw_gbps]]}}``"""


class Logger(Protocol):
    """Switches and records of the calls of one process."""

    enabled: bool
    prof_all: bool
    prof_ops: Any
    verbose: bool
    debug: bool

    def start_profiling_comms(self) -> None:
        """Log all ops from now on."""

    def stop_profiling_comms(self) -> None:
        """Log none from now on."""

    def start_profiling_op(self, op_name_list: Iterable[str]) -> None:
        """Log these ops from now on."""

    def stop_profiling_op(self, op_name_list: Iterable[str]) -> None:
        """Log these ops no more."""

    def append(self, raw_name: str, record_name: str, latency: float, msg_size: int) -> None:
        """Log a call of so many milliseconds and bytes."""

    def get_raw_data(self) -> RawData:
        """Return all records."""

    def get_operation_summary(self, operation_name: str) -> dict[int, dict[str, Any]] | None:
        """Return one name's figures by size."""

    def get_operation_names(self) -> list[str]:
        """Return the names that were logged."""

    def get_total_operations(self) -> int:
        """Return the number of records."""

    def has_data(self) -> bool:
        """Return whether there are records."""

    def reset_data(self) -> None:
        """Forget all records."""


class LoggedComm(Protocol):
    """A drop-in for torch.distributed with a logger: its collectives, and this."""

    comms_logger: Any

    def configure(self, **switches: Any) -> None:
        """Set ``enabled``, ``prof_all``, ``prof_ops``, ``verbose`` and ``debug``."""

    def log_summary(self, show_straggler: bool, return_dict: bool) -> dict[str, Any] | None:
        """Print the figures of all ranks, and return them."""


@dataclass(frozen=True, slots=True)
class LoggedLayer:
    """A provider's logged collectives (``comm``), and the mean that its summaries use."""

    name: str
    version: str
    comm: Any
    trim_mean: Callable[[Sequence[float], float], float]

    @property
    def logger(self) -> Logger:
        """The logger of this process."""
        logger: Logger = self.comm.comms_logger
        return logger

    def signature(self, op: str) -> inspect.Signature:
        """Return the parameters of a function, ``prof`` and ``log_name`` included."""
        function = getattr(self.comm, op)
        hidden = inspect.getclosurevars(function).nonlocals.get("func_signature")
        return hidden if isinstance(hidden, inspect.Signature) else inspect.signature(function)

    def restart(self, **switches: Any) -> None:
        """Forget all records and log everything; ``switches`` say what differs from that."""
        usual = {"enabled": True, "prof_all": True, "prof_ops": [], "verbose": False}
        self.comm.configure(**{**usual, "debug": False, **switches})
        self.logger.reset_data()


def logged_layer(name: str) -> LoggedLayer:
    """Return the logged layer of a provider; torch has none, so that its name means perfgate.

    :raises UsageError: for an unknown provider, or one that is not installed.
    """
    if name == "torch":
        name = "perfgate"
    comm = provider(name)
    if name == "perfgate":
        return LoggedLayer(name, _version("pytest-perfgate"), comm, comm.trim_mean)
    timer = importlib.import_module("deepspeed.utils.timer")
    return LoggedLayer(name, _version("deepspeed"), comm, timer.trim_mean)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
