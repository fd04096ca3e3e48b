"""The gradients of a real module, reduced as they become ready."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from perfgate.errors import UsageError
from perfgate.zero.agreement import agree
from perfgate.zero.auto import fastest
from perfgate.zero.bucket import plan_buckets
from perfgate.zero.config import ZeroConfig
from perfgate.zero.groups import Topology, group_parameters
from perfgate.zero.message import Strategy
from perfgate.zero.pipeline import Pipeline
from perfgate.zero.reducer import AUTO, strategy_named
from perfgate.zero.slot import Slot

Key = tuple[int, int]
"""A parameter: its group, and its place in that."""


class GradientReducer:
    """Brings each rank the reduced gradient of its partition; stages 1 and 2 of ZeRO.

    Call :meth:`attach` once, then :meth:`end_micro_batch` after every ``backward()``. When it
    returns True the step's gradients are complete, and ``groups[i].owned`` holds this rank's
    share of them until the next ``backward()``. Gradients of one step's micro-batches are added.

    Stage 1 reduces at the last micro-batch of a step and leaves ``param.grad`` for the caller to
    clear. Stage 2 reduces every micro-batch and frees ``param.grad`` as soon as it is packed.

    :param parameters: as from ``module.named_parameters()``; those that need no gradient are
        left out.
    :param strategy: a strategy or its name, by default what ``config`` asks for; ``auto``
        measures which one is the fastest here.
    :param comm: whose collectives are called.
    :param kinds: a parameter's name to its optimizer group, where there are several.
    :raises UsageError: where ranks disagree on any of this, on every rank and before a gradient
        is sent.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.nn.Parameter]],
        config: ZeroConfig,
        *,
        topology: Topology | None = None,
        strategy: str | Strategy | None = None,
        comm: ModuleType = dist,
        kinds: Mapping[str, int] | None = None,
    ) -> None:
        self.config = config
        self.topology = topology or Topology()
        members = [(name, param) for name, param in parameters if param.requires_grad]
        if not members:
            raise UsageError("there is no parameter that needs a gradient")
        self.groups = group_parameters(members, config, self.topology, kinds)
        self.micro_batches = config.accumulation_steps(self.topology.data_parallel_size)
        self._device = members[0][1].device
        self._comm = comm
        chosen = strategy or config.strategy
        agree(self._description(chosen), self.topology.group, self._device)
        self._keys = [
            (g, p) for g, group in enumerate(self.groups) for p in range(len(group.params))
        ]
        self.strategy = self._strategy(chosen)
        self._stream = self._side_stream()
        self._pipeline = Pipeline(
            self.groups,
            [Slot(comm, self._stream) for _ in range(2 if config.overlap_comm else 1)],
            self.strategy,
            self._take,
            bucket_numel=config.reduce_bucket_size,
            contiguous=config.contiguous_gradients,
        )
        self._pipeline.plan(self._keys[::-1])
        self._order_known = False
        self._arrived: dict[Key, None] = {}
        self._sums: dict[Key, torch.Tensor] = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._micro_batch = 0

    @property
    def reducing(self) -> bool:
        """Whether this micro-batch's gradients are sent."""
        return self.config.stage == 2 or self._micro_batch == self.micro_batches - 1

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers that gradients travel in; made once and used again."""
        return self._pipeline.size_bytes

    def attach(self) -> GradientReducer:
        """Take each parameter's gradient as soon as backward has accumulated it."""
        for key in self._keys:
            hook = functools.partial(self._hook, key)
            register: Any = self._param(key).register_post_accumulate_grad_hook
            self._handles.append(register(hook))
        return self

    def detach(self) -> None:
        """Take no more gradients."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def end_micro_batch(self) -> bool:
        """Send what is left, wait for what is under way, and close the micro-batch.

        A parameter without a gradient counts as zeros.

        :return: whether the step's gradients are complete.
        :raises UsageError: on such a parameter where ``ignore_unused_parameters`` is off.
        """
        absent = [key for key in self._keys if key not in self._arrived]
        self._refuse_unused(absent)
        reduced, complete = self.reducing, self._micro_batch == self.micro_batches - 1
        if reduced:
            self._reduce_rest(absent)
        self._arrived.clear()
        self._micro_batch = 0 if complete else self._micro_batch + 1
        return complete

    def ready(self, name: str) -> None:
        """Take the gradient of the parameter ``name``, as the hooks of :meth:`attach` do.

        :raises UsageError: on a gradient that is sparse, whose shape is not the one its parameter
            had at the start, or that comes twice in a micro-batch.
        """
        self._hook(self._by_name[name], None)

    @functools.cached_property
    def _by_name(self) -> dict[str, Key]:
        return {self._name(key): key for key in self._keys}

    def _hook(self, key: Key, _: torch.Tensor | None) -> None:
        self._check(key)
        if self.reducing and not self._arrived:
            self._begin()
        self._arrived[key] = None
        if self.groups[key[0]].local_dtype:
            self._add_locally(key)
        if self.reducing:
            self._pipeline.arrive(*key)

    def _begin(self) -> None:
        self._pipeline.begin(add=self.config.stage == 2 and self._micro_batch > 0)

    def _reduce_rest(self, absent: list[Key]) -> None:
        if not self._arrived:
            self._begin()
        for key in absent:
            self._pipeline.arrive(*key)
        self._pipeline.finish()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        if not self._order_known:
            self._pipeline.plan(self._first_rank_order([*self._arrived, *absent]))
            self._order_known = True

    def _first_rank_order(self, order: list[Key]) -> list[Key]:
        """Return the first rank's ``order``: ranks must send the same buckets."""
        group = self.topology.group
        place_of = {key: place for place, key in enumerate(self._keys)}
        places = torch.tensor([place_of[key] for key in order], device=self._device)
        first = 0 if group is None else dist.get_global_rank(group, 0)
        self._comm.broadcast(places, first, group=group)
        return [self._keys[place] for place in places.tolist()]

    def _take(self, group: int, param: int) -> torch.Tensor | None:
        local = self._sums.pop((group, param), None)
        parameter = self.groups[group].params[param]
        gradient = parameter.grad if local is None else local
        if self.config.stage == 2:
            parameter.grad = None
        return gradient

    def _add_locally(self, key: Key) -> None:
        param, dtype = self._param(key), self.groups[key[0]].local_dtype
        gradient, param.grad = param.grad, None
        assert gradient is not None  # checked as it arrived
        if key in self._sums:
            self._sums[key].add_(gradient)
        else:
            self._sums[key] = gradient.to(dtype)

    def _check(self, key: Key) -> None:
        group, param = key
        self.groups[group].check_gradient(param)
        if key in self._arrived:
            raise UsageError(
                f"the gradient of {self._name(key)!r} became ready twice in one micro-batch; call "
                "end_micro_batch() after every backward()"
            )

    def _refuse_unused(self, absent: list[Key]) -> None:
        if absent and not self.config.ignore_unused_parameters:
            names = ", ".join(self._name(key) for key in absent)
            raise UsageError(f"no gradient for {names}, and ignore_unused_parameters is off")

    def _param(self, key: Key) -> torch.nn.Parameter:
        return self.groups[key[0]].params[key[1]]

    def _name(self, key: Key) -> str:
        return self.groups[key[0]].names[key[1]]

    def _strategy(self, chosen: str | Strategy) -> Strategy:
        if not isinstance(chosen, str):
            return chosen
        if chosen != AUTO:
            return strategy_named(chosen)
        layouts = [group.layout for group in self.groups]
        buckets = plan_buckets(layouts, self._keys[::-1], self.config.reduce_bucket_size)
        largest = max(buckets, key=lambda bucket: bucket.numel)
        return fastest(largest, self.groups[largest.group], self._comm)

    def _side_stream(self) -> torch.cuda.Stream | None:
        on_gpu = self._device.type == "cuda" and self.config.overlap_comm
        return torch.cuda.Stream(self._device) if on_gpu else None  # type: ignore[no-untyped-call]

    def _description(self, strategy: str | Strategy) -> list[str]:
        """What all ranks must have in common, one fact a line."""
        name = strategy if isinstance(strategy, str) else strategy.name
        lines = [f"strategy {name}", f"{self.micro_batches} micro-batches a step"]
        lines += [f"{key}={value!r}" for key, value in self.config.model_dump().items()]
        for number, group in enumerate(self.groups):
            lines += [f"group {number}: {param}" for param in group.description()]
        return lines
