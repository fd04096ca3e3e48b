"""Logging for code that says ``torch.distributed`` itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace, TracebackType
from typing import Any

import torch.distributed

from perfgate.comm.calls import CALLS
from perfgate.comm.coalescing import coalescing_manager
from perfgate.comm.drop_in import FUNCTIONS, P2POp, call_module, drop_in


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
        whole = SimpleNamespace(**torchs)
        ours = {name: drop_in(CALLS[name], whole) for name in FUNCTIONS}
        self._put(ours | {"P2POp": P2POp, "_coalescing_manager": coalescing_manager}, whole)

    @staticmethod
    def _put(functions: Mapping[str, Any], called_by_ours: Any) -> None:
        for name, function in functions.items():
            setattr(torch.distributed, name, function)
            if name in FUNCTIONS:  # which would be logged twice
                call_module(FUNCTIONS[name], called_by_ours)

    def remove(self) -> None:
        """Put torch.distributed's own functions back."""
        self._put(self._replaced, torch.distributed)

    def __enter__(self) -> TorchCalls:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.remove()
