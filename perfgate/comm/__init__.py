"""The communication layer.

``import perfgate.comm as dist`` is a drop-in for torch.distributed whose calls pass the comms
logger: the collectives and point-to-point calls are :mod:`perfgate.comm.dist`'s, every other name
is torch.distributed's own. Both are imported on first use, so that the formulas in
:mod:`perfgate.comm.bandwidth` need no torch.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

_ROOMS = frozenset(module.name for module in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    dist = importlib.import_module(f"{__name__}.dist")
    globals().update(dist.PUBLIC)  # from now on without this detour
    return getattr(dist, name)


def __dir__() -> list[str]:
    return dir(importlib.import_module(f"{__name__}.dist"))
