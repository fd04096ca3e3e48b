"""The public face of ``perfgate.comm``: a drop-in for torch.distributed with a comms logger."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch.distributed

from perfgate.comm.coalescing import coalescing_manager
from perfgate.comm.collect import log_summary
from perfgate.comm.configuration import CommsConfig, read_config
from perfgate.comm.drop_in import FUNCTIONS, P2POp
from perfgate.comm.export import write_chrome_trace, write_csv, write_json, write_tensorboard
from perfgate.comm.process import comms_logger
from perfgate.comm.summary import trim_mean
from perfgate.comm.torch_calls import TorchCalls


def configure(
    config: CommsConfig | Mapping[str, object] | str | os.PathLike[str] | None = None,
    enabled: bool | None = None,
    prof_all: bool | None = None,
    prof_ops: Iterable[str] | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
) -> None:
    """Set the logger up from a dict, a JSON file, single keys, or keys on top of either.

    What is not given stays as it is. See :class:`perfgate.comm.configuration.CommsConfig`.

    :raises UsageError: when anything is wrong; then nothing has changed.
    """
    base = comms_logger.config if config is None else read_config(config)
    given = {
        "enabled": enabled,
        "prof_all": prof_all,
        "prof_ops": prof_ops,
        "verbose": verbose,
        "debug": debug,
    }
    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    comms_logger.configure(replace(base, **changed))


def reset_log() -> None:
    """Forget all records of this rank."""
    comms_logger.reset_data()


def has_comm_data() -> bool:
    """Return whether this rank logged any call."""
    return comms_logger.has_data()


def get_comm_operation_count() -> int:
    """Return how many calls this rank logged."""
    return comms_logger.get_total_operations()


def get_logged_comm_ops() -> list[str]:
    """Return the names that this rank logged."""
    return comms_logger.get_operation_names()


def log_torch_calls() -> TorchCalls:
    """Let calls of torch.distributed's own functions pass the logger as well.

    What is called through ``perfgate.comm`` is still logged once. Keep what this returns to end
    it with ``remove()``, or use it in a ``with``.
    """
    return TorchCalls()


PUBLIC: Mapping[str, Any] = MappingProxyType(
    {
        **FUNCTIONS,
        "P2POp": P2POp,
        "_coalescing_manager": coalescing_manager,
        "comms_logger": comms_logger,
        "configure": configure,
        "log_summary": log_summary,
        "reset_log": reset_log,
        "has_comm_data": has_comm_data,
        "get_comm_operation_count": get_comm_operation_count,
        "get_logged_comm_ops": get_logged_comm_ops,
        "log_torch_calls": log_torch_calls,
        "trim_mean": trim_mean,
        "write_csv": write_csv,
        "write_json": write_json,
        "write_chrome_trace": write_chrome_trace,
        "write_tensorboard": write_tensorboard,
    }
)
"""What ``perfgate.comm`` offers of its own; everything else there is torch.distributed's."""


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return PUBLIC[name]
    return getattr(torch.distributed, name)


def __dir__() -> list[str]:
    return sorted({*PUBLIC, *dir(torch.distributed)})
