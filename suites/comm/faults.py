"""Faults that a provider's release is known to have, stated where the property is."""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, settings

PROPERTY = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
"""How much is drawn; ranks have deadlines of their own."""

FATAL = settings(
    PROPERTY, phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False, max_examples=10
)
"""For properties that a known fault breaks by ending the ranks: not worth shrinking."""


@dataclass(frozen=True)
class Fault:
    """A provider's fault, for the parameters of a test that meet it (all where none is named)."""

    provider: str
    reason: str
    met_by: dict = field(default_factory=dict)

    def applies(self, provider, parameters):
        """Whether a test with these parameters meets it."""
        return provider == self.provider and all(
            parameters.get(name) in values for name, values in self.met_by.items()
        )


def deepspeed_fault(reason, **met_by):
    """Mark a property that DeepSpeed 0.19.8 breaks."""

    def mark(test):
        fault = Fault("deepspeed", f"DeepSpeed 0.19.8: {reason}", met_by)
        test.known_faults = [*getattr(test, "known_faults", ()), fault]
        return test

    return mark
