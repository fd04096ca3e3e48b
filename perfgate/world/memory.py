"""The memory of ranks that are timed: what is freed is kept, not given back to the kernel.

Whether glibc gives a freed megabyte back depends on what else lies on the heap, so that one
launch has a thousand page faults in each call of 4 MiB and the next one none: up to half of the
time, decided by chance once a launch.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MOST_MMAP_THRESHOLD_BYTES = 32 << 20
_TOP_PAD_BYTES = 64 << 20


def keep_freed_memory() -> None:
    """Let this process's allocator keep what is freed, where it is glibc's."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD_BYTES)
        mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
