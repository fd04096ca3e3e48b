"""Functions of torch.distributed made anew: their own signatures, passing the comms logger.

Arguments, defaults and the errors they raise are those of the torch that is installed; ``prof``
and ``log_name`` come after torch's parameters. While the logger is disabled, a call costs one
more Python frame.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch.distributed
from torch.distributed import distributed_c10d

from perfgate.comm.calls import CALLS, Call
from perfgate.comm.logged import Target, logged
from perfgate.comm.process import comms_logger

_FUNCTION = """
def {name}({parameters}, prof=False, log_name=None):
    if not _logger.armed:
        return _module.{name}({arguments})
    return _logged(_target, _module.{name}, ({arguments},), prof, log_name)
"""
_OUR_PARAMETERS = (
    inspect.Parameter("prof", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False),
    inspect.Parameter("log_name", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
)


def drop_in(call: Call, module: Any = torch.distributed) -> Callable[..., Any]:
    """Return a function that calls the module's, whatever stands there, and passes the logger.

    Its signature is that of torch's definition.
    """
    signature = inspect.signature(getattr(distributed_c10d, call.name))
    parameters = list(signature.parameters.values())
    names = [parameter.name for parameter in parameters]
    namespace: dict[str, Any] = {
        "_logger": comms_logger,
        "_logged": logged,
        "_module": module,
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
        namespace[call.name], getattr(module, call.name), assigned=("__doc__", "__annotations__")
    )
    made.__module__ = "perfgate.comm"
    made.passes_logger = True  # type: ignore[attr-defined]
    made.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters, *_OUR_PARAMETERS]
    )
    return made


def call_module(function: Callable[..., Any], module: Any) -> None:
    """Let a function made by :func:`drop_in` call what stands in another module from now on."""
    function.__globals__["_module"] = module


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {name: drop_in(call) for name, call in CALLS.items() if hasattr(torch.distributed, name)}
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
    if getattr(op, "passes_logger", False):
        return getattr(distributed_c10d, op.__name__)  # type: ignore[no-any-return]
    return op
