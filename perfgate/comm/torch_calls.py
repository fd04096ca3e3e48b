"""Logging for code that says ``torch.distributed`` itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace, TracebackType
from typing import Any

import torch.distributed

from perfgate.comm.calls import CALLS
from perfgate.comm.coalescing import coalescing_manager
from perfgate.comm.drop_in import FUNCTIONS, P2POp, drop_in


class TorchCalls:
    """Calls of torch.distributed's own functions pass the logger, until this is removed.

    Code that imported a function by name before, and torch's C++ (DistributedDataParallel's
    reducer, say), are not seen. A context manager, too. Where they pass it already, this does
    nothing, nor does removing it.
    """

    def __init__(self) -> None:
        names = (*FUNCTIONS, "P2POp", "_coalescing_manager")
        torchs = {name: getattr(torch.distributed, name) for name in names}
        if torchs["P2POp"] is P2POp:
            self._replaced: dict[str, Any] = {}
            return
        self._replaced = torchs
        ours = {name: drop_in(CALLS[name], SimpleNamespace(**torchs)) for name in FUNCTIONS}
        self._put(ours | {"P2POp": P2POp, "_coalescing_manager": coalescing_manager})

    @staticmethod
    def _put(functions: Mapping[str, Any]) -> None:
        for name, function in functions.items():
            setattr(torch.distributed, name, function)

    def remove(self) -> None:
        """Put torch.distributed's own functions back."""
        self._put(self._replaced)

    def __enter__(self) -> TorchCalls:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.remove()
