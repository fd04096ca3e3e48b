"""ZeRO's properties, drawn by Hypothesis: ``--hypothesis-profile=thorough`` draws many more."""

import cloudpickle
import zero_ranks
from hypothesis import HealthCheck, settings

cloudpickle.register_pickle_by_value(zero_ranks)

_COMMON = {
    "deadline": None,  # ranks have deadlines of their own
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}
settings.register_profile("default", max_examples=20, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=1000, **_COMMON)
