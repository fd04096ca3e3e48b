"""How much Hypothesis draws: ``--hypothesis-profile=thorough`` is for nights."""

from hypothesis import HealthCheck, Phase, settings

_COMMON = {
    "deadline": None,  # ranks have deadlines of their own
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}
for name in ("default", "ci"):  # Hypothesis chooses the second itself where CI is set
    settings.register_profile(name, max_examples=15, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=500, **_COMMON)
settings.register_profile(
    "first-failure",
    settings.get_profile("default"),
    phases=[Phase.explicit, Phase.generate],  # where that a test fails says enough
)
