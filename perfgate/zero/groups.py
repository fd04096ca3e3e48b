"""Parameters that are reduced together, and the ranks that hold them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from perfgate.errors import UsageError
from perfgate.zero.config import ZeroConfig
from perfgate.zero.message import wide
from perfgate.zero.partition import Layout
from perfgate.zero.scaling import Scaling

_ALIGNED_BYTES = 16
"""Where ``parameter_alignment`` makes each parameter start."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Which ranks hold which parameters.

    :param group: the ranks that hold the same dense parameters, sequence-parallel ranks
        included; None is all of them.
    :param sequence_parallel_size: how many of those ranks work on one sample.
    :param experts: an expert parameter's name to the ranks that hold the same expert. Its mean
        is over all ranks of ``group`` all the same: each of them sent its tokens here.
    """

    group: dist.ProcessGroup | None = None
    sequence_parallel_size: int = 1
    experts: Mapping[str, dist.ProcessGroup] = field(default_factory=dict)

    @property
    def data_parallel_size(self) -> int:
        """Ranks that work on samples of their own."""
        return dist.get_world_size(self.group) // self.sequence_parallel_size


@dataclass(frozen=True, eq=False, kw_only=True)
class ReduceGroup:
    """Parameters with one layout, one process group and one dtype.

    :param local_dtype: what this rank adds micro-batches up in before it sends them; None where
        ``param.grad`` does.
    :param owned: this rank's partition of the reduced gradient, ``layout.partition_numel``
        elements in the accumulation dtype; padding stays zero.
    """

    names: tuple[str, ...]
    params: tuple[torch.nn.Parameter, ...]
    layout: Layout
    process_group: dist.ProcessGroup | None
    rank: int
    scaling: Scaling
    comm_dtype: torch.dtype
    local_dtype: torch.dtype | None
    owned: torch.Tensor

    @functools.cached_property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The parameters' shapes when the layout was made."""
        return tuple(param.shape for param in self.params)

    @property
    def sum_dtype(self) -> torch.dtype:
        """The dtype in which the owner divides: the widest of what travels and what is kept."""
        return torch.promote_types(wide(self.comm_dtype), self.owned.dtype)

    def description(self) -> list[str]:
        """Return what all ranks of the group must have in common, one line a parameter."""
        return [
            f"{name!r} of shape {tuple(shape)}, {param.dtype} sent as {self.comm_dtype}"
            for name, shape, param in zip(self.names, self.shapes, self.params, strict=True)
        ]

    def check_gradient(self, param: int) -> None:
        """Check that a parameter's gradient can be packed.

        :raises UsageError: when it is missing, sparse, or has not the shape that the parameter
            had when the layout was made.
        """
        gradient, shape = self.params[param].grad, self.shapes[param]
        if gradient is None:
            raise UsageError(f"parameter {self.names[param]!r} is ready and has no gradient")
        if gradient.is_sparse:
            raise UsageError(
                f"the gradient of {self.names[param]!r} is sparse; only dense ones are reduced"
            )
        if gradient.shape != shape:
            raise UsageError(
                f"the gradient of {self.names[param]!r} has shape {tuple(gradient.shape)}; its "
                f"parameter had {tuple(shape)} when the layout was made. Make a new reducer when "
                "parameters change"
            )

    def global_rank(self, rank: int) -> int:
        """Return the global rank of a rank of the process group."""
        if self.process_group is None:
            return rank
        return dist.get_global_rank(self.process_group, rank)

    def owned_slices(self) -> Iterable[tuple[str, int, torch.Tensor]]:
        """Yield (parameter's name, first element, reduced gradient as a 1-D view)."""
        base = self.rank * self.layout.partition_numel
        for piece in self.layout.owned(self.rank):
            start = piece.flat - base
            yield self.names[piece.param], piece.start, self.owned[start : start + piece.numel]


def group_parameters(
    parameters: Sequence[tuple[str, torch.nn.Parameter]],
    config: ZeroConfig,
    topology: Topology,
    kinds: Mapping[str, int] | None = None,
) -> list[ReduceGroup]:
    """Sort parameters by process group, dtype and ``kinds`` and lay each group out.

    :param kinds: a parameter's name to its optimizer group, where there are several.
    :raises UsageError: on an expert that does not exist or a group this rank is not in.
    """
    names = [name for name, _ in parameters]
    for expert in topology.experts:
        if expert not in names:
            raise UsageError(f"expert {expert!r} is no parameter here; there are {names}")
    members: dict[tuple[int, object, torch.dtype], list[tuple[str, torch.nn.Parameter]]] = {}
    for name, param in parameters:
        process_group = topology.experts.get(name, topology.group)
        key = ((kinds or {}).get(name, 0), process_group, param.dtype)
        members.setdefault(key, []).append((name, param))
    return [
        _laid_out(group, topology.experts.get(group[0][0], topology.group), config, topology)
        for group in members.values()
    ]


def _laid_out(
    members: Sequence[tuple[str, torch.nn.Parameter]],
    process_group: dist.ProcessGroup | None,
    config: ZeroConfig,
    topology: Topology,
) -> ReduceGroup:
    first = members[0][1]
    rank = dist.get_rank(process_group)
    if rank < 0:
        raise UsageError(f"parameter {members[0][0]!r} is reduced in a group this rank is not in")
    aligned = max(1, _ALIGNED_BYTES // first.element_size()) if config.parameter_alignment else 1
    layout = Layout.plan(
        [param.numel() for _, param in members],
        dist.get_world_size(process_group),
        parameter_alignment=aligned,
        round_robin=config.round_robin_gradients,
    )
    accumulated = config.accumulation_dtype or wide(first.dtype)
    sends_sums = config.stage == 1 and config.accumulation_steps(topology.data_parallel_size) > 1
    local = accumulated if sends_sums and accumulated != first.dtype else None
    return ReduceGroup(
        names=tuple(name for name, _ in members),
        params=tuple(param for _, param in members),
        layout=layout,
        process_group=process_group,
        rank=rank,
        scaling=Scaling.plan(
            ranks=dist.get_world_size(topology.group),
            sequence_parallel_size=topology.sequence_parallel_size,
            mean=config.gradient_allreduce_op == "mean",
            prescale=config.prescale_gradients,
            predivide_factor=config.gradient_predivide_factor,
        ),
        comm_dtype=config.comm_dtype(local or first.dtype, topology.sequence_parallel_size),
        local_dtype=local,
        owned=torch.zeros(layout.partition_numel, dtype=accumulated, device=first.device),
    )
