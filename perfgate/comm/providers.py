"""The modules whose collectives can be measured, by name."""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

import torch
import torch.distributed

from perfgate.errors import UsageError
from perfgate.model import PROVIDERS


def provider(name: str) -> ModuleType:
    """Return the provider's module, set up on the process group that is already there.

    ``torch`` is torch.distributed, ``perfgate`` the logged layer perfgate.comm and ``deepspeed``
    the installed deepspeed.comm.

    :raises UsageError: for an unknown name, or a provider that is not installed.
    """
    if name == "torch":
        return torch.distributed
    if name == "perfgate":
        return importlib.import_module("perfgate.comm")
    if name == "deepspeed":
        return _deepspeed()
    raise UsageError(f"provider {name!r} is not known; choose one of {', '.join(PROVIDERS)}")


def _deepspeed() -> ModuleType:
    if importlib.util.find_spec("deepspeed") is None:
        raise UsageError(
            "provider 'deepspeed' needs DeepSpeed; next: pip install 'pytest-perfgate[deepspeed]'"
        )
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed = importlib.import_module("deepspeed")
    # It would compile a shared-memory op for most of a minute, which only inference uses.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    comm: ModuleType = importlib.import_module("deepspeed.comm")
    if torch.distributed.is_initialized() and not comm.is_initialized():
        comm.init_distributed(torch.distributed.get_backend(), auto_mpi_discovery=False)
    return comm
