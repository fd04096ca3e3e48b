"""Element types by name, and the integers that each holds exactly."""

from __future__ import annotations

from types import MappingProxyType

import torch

from perfgate.comm.bandwidth import nearest
from perfgate.errors import UsageError

_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
}


_KNOWN = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    *(torch.complex128, torch.complex64, torch.bool),
)
DTYPES = MappingProxyType({str(dtype).removeprefix("torch."): dtype for dtype in _KNOWN})
"""Every dtype that a message can have, by name."""


def parse_dtype(name: str | torch.dtype) -> torch.dtype:
    """Return the dtype of ``"float32"``, ``"fp16"``, ``"bf16"``, ``"torch.int64"`` and so on.

    :raises UsageError: for a name that is not among :data:`DTYPES`; names the nearest.
    """
    if isinstance(name, torch.dtype):
        return name
    plain = name.strip().lower().removeprefix("torch.")
    plain = _ALIASES.get(plain, plain)
    if plain not in DTYPES:
        raise UsageError(f"dtype {name!r} is not known; {nearest(plain, DTYPES)}")
    return DTYPES[plain]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name without ``torch.``: ``float32``."""
    return str(dtype).removeprefix("torch.")


def exact_limit(dtype: torch.dtype) -> int:
    """Return the largest N such that every integer from 0 to N is exact: 256 for bfloat16."""
    if dtype == torch.bool:
        return 1
    if dtype.is_floating_point or dtype.is_complex:
        return min(int(2 / torch.finfo(dtype).eps), int(torch.finfo(dtype).max))
    return torch.iinfo(dtype).max
