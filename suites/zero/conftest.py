"""Run functions of this folder on ranks, and count what they call."""

import pickle
import sys
from pathlib import Path

import pytest

_HERE = str(Path(__file__).parent)


def _call(folder, payload):
    """Run on the rank: import what pytest imported from this folder, instead of being sent it."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    function, args = pickle.loads(payload)
    return function(*args)


@pytest.fixture
def on_ranks(world):
    """Run a function of ``zero_ranks`` on every rank; several times faster than by value."""

    def run(function, *args):
        return world.run(_call, _HERE, pickle.dumps((function, args)))

    return run


class Counted:
    """torch.distributed with each call counted by its name, with the bytes of its tensors."""

    def __init__(self):
        import collections

        self.calls = collections.Counter()
        self.sent_bytes = collections.Counter()

    def __getattr__(self, name):
        import functools

        import torch
        import torch.distributed as dist

        original = getattr(dist, name)

        @functools.wraps(original)
        def call(*args, **kwargs):
            self.calls[name] += 1
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            self.sent_bytes[name] += max((t.nbytes for t in tensors), default=0)
            return original(*args, **kwargs)

        return call


@pytest.fixture
def counted():
    """Make a counter of calls, on the rank."""
    return Counted
