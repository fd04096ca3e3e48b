"""What each call of torch.distributed moves: the one table that the logged layer is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Sizer = Callable[[Sequence[Any], int], int]
"""Arguments in the order of torch's signature, and ranks in the group, to bytes."""


POINT_TO_POINT_BATCH = "batch_isend_irecv"


@dataclass(frozen=True, slots=True)
class Call:
    """One function of torch.distributed.

    :param name: the function, which is also what it is logged as.
    :param op: the entry of the formula table that it follows.
    :param moves: parameters that hold tensors; the size is the largest of them, which is
        nccl-tests' size where they hold what a rank sends and receives.
    :param shard: a parameter that holds one rank's shard of the root's buffer; the size is that
        times the ranks of the group.
    :param collective: whether all ranks of the group take part, so that a sequence number names
        the call on each of them.
    """

    name: str
    op: str
    moves: tuple[str, ...] = ()
    shard: str | None = None
    collective: bool = True

    def sizer(self, parameters: Sequence[str]) -> Sizer:
        """Return what computes the size from arguments in this order of parameters."""
        if self.name == POINT_TO_POINT_BATCH:
            return _batch_bytes
        if self.shard is not None:
            at = parameters.index(self.shard)
            return lambda arguments, world_size: tensor_bytes(arguments[at]) * world_size
        places = tuple(parameters.index(name) for name in self.moves)
        if len(places) == 1:
            (at,) = places
            return lambda arguments, _: tensor_bytes(arguments[at])
        return lambda arguments, _: max((tensor_bytes(arguments[i]) for i in places), default=0)


def tensor_bytes(value: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in nested lists; nothing holds none."""
    if isinstance(value, list):
        return sum(map(tensor_bytes, value))
    size: int = value.numel() * value.element_size()
    return size


def _batch_bytes(arguments: Sequence[Any], _: int) -> int:
    sent = received = 0
    for p2p in arguments[0]:
        if p2p.op.__name__ == "isend":
            sent += tensor_bytes(p2p.tensor)
        else:
            received += tensor_bytes(p2p.tensor)
    return max(sent, received)


def _point_to_point(name: str) -> Call:
    return Call(name, name, ("tensor",), collective=False)


CALLS: Mapping[str, Call] = MappingProxyType(
    {
        call.name: call
        for call in (
            Call("all_reduce", "all_reduce", ("tensor",)),
            Call("all_reduce_coalesced", "all_reduce_coalesced", ("tensors",)),
            Call("all_gather", "all_gather", ("tensor_list",)),
            Call("all_gather_into_tensor", "all_gather_into_tensor", ("output_tensor",)),
            Call("all_gather_single", "all_gather_into_tensor", ("output_tensor",)),
            Call("_all_gather_base", "all_gather_into_tensor", ("output_tensor",)),
            Call("all_gather_coalesced", "all_gather_coalesced", ("output_tensor_lists",)),
            Call("all_gather_object", "all_gather_object"),
            Call("reduce_scatter", "reduce_scatter", ("input_list",)),
            Call("reduce_scatter_tensor", "reduce_scatter_tensor", ("input",)),
            Call("reduce_scatter_single", "reduce_scatter_tensor", ("input",)),
            Call("_reduce_scatter_base", "reduce_scatter_tensor", ("input",)),
            Call("all_to_all", "all_to_all", ("output_tensor_list", "input_tensor_list")),
            Call("all_to_all_single", "all_to_all_single", ("output", "input")),
            Call("broadcast", "broadcast", ("tensor",)),
            Call("broadcast_object_list", "broadcast_object_list"),
            Call("reduce", "reduce", ("tensor",)),
            Call("gather", "gather", shard="tensor"),
            Call("gather_object", "gather_object"),
            Call("scatter", "scatter", shard="tensor"),
            Call("scatter_object_list", "scatter_object_list"),
            _point_to_point("send"),
            _point_to_point("recv"),
            _point_to_point("isend"),
            _point_to_point("irecv"),
            Call(POINT_TO_POINT_BATCH, POINT_TO_POINT_BATCH, collective=False),
            Call("send_object_list", "send_object_list", collective=False),
            Call("recv_object_list", "recv_object_list", collective=False),
            Call("barrier", "barrier"),
            Call("monitored_barrier", "monitored_barrier", collective=False),
        )
    }
)
"""Every collective and point-to-point call of torch.distributed, by name.

An object's size is known to pickle only: object forms are logged with 0 bytes.
"""

COALESCED = MappingProxyType(
    {
        "all_reduce": "all_reduce_coalesced",
        "all_gather_into_tensor": "all_gather_coalesced",
        "reduce_scatter_tensor": "reduce_scatter_coalesced",
        "isend": POINT_TO_POINT_BATCH,
        "irecv": POINT_TO_POINT_BATCH,
    }
)
"""What calls inside of a coalescing manager become, by formula: one operation when it closes."""
