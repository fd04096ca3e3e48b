"""ZeRO's properties, drawn by Hypothesis: ``--hypothesis-profile=thorough`` draws many more."""

import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

_HERE = str(Path(__file__).parent)
_COMMON = {
    "deadline": None,  # ranks have deadlines of their own
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}
settings.register_profile("default", max_examples=15, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=500, **_COMMON)
settings.register_profile(
    "first-failure",
    settings.get_profile("default"),
    phases=[Phase.explicit, Phase.generate],  # where that a test fails says enough
)


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
