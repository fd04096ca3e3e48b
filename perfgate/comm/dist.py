"""A drop-in for torch.distributed whose calls pass the comms logger.

The functions are made from torch's own signatures, so that arguments, defaults and the errors
that they raise are those of the torch that is installed; each takes ``prof`` and ``log_name``
after torch's parameters. While the logger is disabled, a call costs one more Python frame.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch.distributed

from perfgate.comm.calls import CALLS, Call
from perfgate.comm.coalescing import coalescing_manager
from perfgate.comm.collect import log_summary
from perfgate.comm.configuration import CommsConfig, read_config
from perfgate.comm.export import write_chrome_trace, write_csv, write_json, write_tensorboard
from perfgate.comm.logged import Target, logged
from perfgate.comm.process import comms_logger
from perfgate.comm.summary import trim_mean

_FUNCTION = """
def {name}({parameters}, prof=False, log_name=None):
    if not _logger.enabled:
        return _module.{name}({arguments})
    return _logged(_target, _module.{name}, ({arguments},), prof, log_name)
"""
_OUR_PARAMETERS = (
    inspect.Parameter("prof", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False),
    inspect.Parameter("log_name", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
)


def _drop_in(call: Call) -> Callable[..., Any]:
    """Return torch's function with its own signature, passing the logger."""
    function = getattr(torch.distributed, call.name)
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    names = [parameter.name for parameter in parameters]
    namespace: dict[str, Any] = {
        "_logger": comms_logger,
        "_logged": logged,
        "_module": torch.distributed,
        "_target": Target.of(call, names),
        "__name__": __name__,
    }
    declared = []
    for parameter in parameters:
        if parameter.default is parameter.empty:
            declared.append(parameter.name)
        else:
            namespace[f"_default_{parameter.name}"] = parameter.default
            declared.append(f"{parameter.name}=_default_{parameter.name}")
    source = _FUNCTION.format(
        name=call.name, parameters=", ".join(declared), arguments=", ".join(names)
    )
    exec(compile(source, f"<perfgate.comm.{call.name}>", "exec"), namespace)
    made: Callable[..., Any] = functools.update_wrapper(
        namespace[call.name], function, assigned=("__doc__", "__annotations__")
    )
    made.__module__ = "perfgate.comm"
    made.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters, *_OUR_PARAMETERS]
    )
    return made


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {name: _drop_in(call) for name, call in CALLS.items() if hasattr(torch.distributed, name)}
)
"""The logged collectives and point-to-point calls, by name."""


class P2POp(torch.distributed.P2POp):
    """torch's P2POp, which also takes this module's ``isend`` and ``irecv``."""

    __signature__ = inspect.signature(torch.distributed.P2POp)

    def __new__(cls, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - torch's
        return super().__new__(cls, _torchs_own(op), *args, **kwargs)

    def __init__(self, op: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(_torchs_own(op), *args, **kwargs)


def _torchs_own(op: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(op, "__wrapped__", op) if op in FUNCTIONS.values() else op


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
