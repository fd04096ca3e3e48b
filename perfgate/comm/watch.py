"""Who sees asynchronous calls end that nobody waits for: one thread that looks now and then.

It looks, and does not block in torch nor ask to be called back: a thread of torch's that comes
back to an interpreter which has gone aborts the process, and a program may end with calls in
flight. It looks the more rarely the longer a call takes, so that an end is seen at most a
twentieth of the call's time late; whoever waits for a call sees its end at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

_LATE = 1 / 20
_SHORTEST_PAUSE_S = 50e-6


class Followed(NamedTuple):
    """A call's future, what is to be called once it is done, and since when it runs."""

    future: Any
    done: Callable[[], None]
    since_s: float

    def has_ended(self) -> bool:
        """Look, and tell if it is done; a call that failed is told by its own handle."""
        if not self.future.done():
            return False
        try:
            self.future.value()
        except RuntimeError:
            return True
        self.done()
        return True


class Watch:
    """Looks after futures until they are done."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Followed] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def follow(self, future: Any, done: Callable[[], None]) -> None:
        """Call ``done`` once the future is done, unless it failed."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="perfgate-comm", daemon=True)
                self._thread.start()
        self._queue.put(Followed(future, done, time.monotonic()))

    def _run(self) -> None:
        running: list[Followed] = []
        while True:
            while not running or not self._queue.empty():
                running.append(self._queue.get())
            running = [followed for followed in running if not followed.has_ended()]
            if running:
                age_s = time.monotonic() - running[-1].since_s
                time.sleep(max(_SHORTEST_PAUSE_S, age_s * _LATE))


watch = Watch()
"""The watch of this process."""

os.register_at_fork(after_in_child=watch.__init__)  # type: ignore[misc]  # its thread is not there
