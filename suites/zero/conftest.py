"""ZeRO's properties, drawn by Hypothesis: ``--hypothesis-profile=thorough`` draws many more."""

import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_HERE = str(Path(__file__).parent)
_COMMON = {
    "deadline": None,  # ranks have deadlines of their own
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}
settings.register_profile("default", max_examples=15, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=500, **_COMMON)


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
