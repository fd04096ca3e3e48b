"""When a gradient is divided, and by what."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from perfgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Scaling:
    """Divide by ``before`` on each rank and by ``after`` on the sum.

    The schedule, for a mean over ``d`` (ranks over the sequence-parallel size; 1 for a sum):

    ==========================  ==========  =========
    configuration               before      after
    ==========================  ==========  =========
    the default                 1           d
    prescale_gradients          d           1
    gradient_predivide_factor f f           d / f
    ==========================  ==========  =========

    ``before`` divides in the wider of the gradient's and the communication dtype and rounds to
    the latter once. ``after`` divides the owner's sum in fp32, fp64 where the gradients are. With
    the default a sum that passes the largest number of the communication dtype overflows under
    strategies that add in that dtype, and a small gradient keeps its bits; prescaling does the
    opposite. The ``exchange`` strategy adds in fp32 or wider and needs neither.

    DeepSpeed 0.19.8 divides first whenever ``reduce_scatter`` is on, whatever is configured.
    """

    before: float = 1.0
    after: float = 1.0

    @classmethod
    def plan(
        cls,
        *,
        ranks: int,
        sequence_parallel_size: int = 1,
        mean: bool = True,
        prescale: bool = False,
        predivide_factor: float = 1.0,
    ) -> Scaling:
        """Return the schedule for gradients of ``ranks`` ranks.

        Ranks of one sequence-parallel group work on the same samples, so that their gradients
        add up to one sample's: the mean is over ``ranks / sequence_parallel_size``.

        :raises UsageError: when the ranks do not divide, or two schedules are asked for at once.
        """
        if sequence_parallel_size < 1 or ranks % sequence_parallel_size:
            raise UsageError(
                f"sequence_parallel_size={sequence_parallel_size} does not divide {ranks} ranks"
            )
        if predivide_factor <= 0:
            raise UsageError(f"gradient_predivide_factor={predivide_factor:g} must be above zero")
        if prescale and predivide_factor != 1.0:
            raise UsageError(
                f"prescale_gradients divides by everything at once and leaves nothing to "
                f"gradient_predivide_factor={predivide_factor:g}; set one of them"
            )
        divisor = ranks / sequence_parallel_size if mean else 1.0
        before = divisor if prescale else predivide_factor
        return cls(before, divisor / before)

    def pack(self, gradient: torch.Tensor, place: torch.Tensor) -> None:
        """Write ``gradient``, divided by ``before``, to ``place``: both 1-D of equal length."""
        wider = torch.promote_types(gradient.dtype, place.dtype)
        if self.before == 1.0:
            place.copy_(gradient)
        elif place.dtype == wider:
            place.copy_(gradient).div_(self.before)
        else:
            torch.div(gradient.to(wider), self.before, out=place)

    def finish(self, total: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return a sum divided by ``after``: in ``out``, or in place where that is None."""
        if self.after == 1.0:
            return total if out is None else out.copy_(total)
        return torch.div(total, self.after, out=total if out is None else out)
