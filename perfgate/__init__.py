"""perfgate: stop performance and correctness regressions in distributed training.

The public names are imported on first use, so that loading the pytest plugin imports neither
torch nor scipy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfgate.model import (
        Baseline,
        Case,
        Launch,
        Measurement,
        Outcome,
        Policy,
        Session,
        Verdict,
        WorldSpec,
    )
    from perfgate.world.controller import RankFailure, World
    from perfgate.world.worker import Rank

_HOME = {
    "Baseline": "perfgate.model",
    "Case": "perfgate.model",
    "Launch": "perfgate.model",
    "Measurement": "perfgate.model",
    "Outcome": "perfgate.model",
    "Policy": "perfgate.model",
    "Rank": "perfgate.world.worker",
    "RankFailure": "perfgate.world.controller",
    "Session": "perfgate.model",
    "Verdict": "perfgate.model",
    "World": "perfgate.world.controller",
    "WorldSpec": "perfgate.model",
}

__all__ = [
    "Baseline",
    "Case",
    "Launch",
    "Measurement",
    "Outcome",
    "Policy",
    "Rank",
    "RankFailure",
    "Session",
    "Verdict",
    "World",
    "WorldSpec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'perfgate' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
