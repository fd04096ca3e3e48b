"""Buffers that are kept and used again."""

from __future__ import annotations

import torch


class Scratch:
    """Named buffers that grow to the largest size asked for and stay."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], torch.Tensor] = {}

    def take(self, name: str, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return ``numel`` elements, 1-D, holding whatever was last written there.

        Taking the same name and dtype again gives the same memory.
        """
        key = (name, dtype, device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < numel:
            buffer = self._buffers[key] = torch.empty(numel, dtype=dtype, device=device)
        return buffer[:numel]

    @property
    def size_bytes(self) -> int:
        """Bytes held."""
        return sum(b.numel() * b.element_size() for b in self._buffers.values())
