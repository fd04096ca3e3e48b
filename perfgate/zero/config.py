"""The part of a DeepSpeed configuration that decides how gradients are reduced.

Every key of ``zero_optimization`` is honoured, or accepted because it acts at stage 3 only, or
refused by name. Nothing is passed over in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from perfgate.errors import UsageError

_DTYPES = {
    "fp16": torch.float16, "float16": torch.float16, "half": torch.float16,
    "bf16": torch.bfloat16, "bfloat16": torch.bfloat16,
    "fp32": torch.float32, "float32": torch.float32, "float": torch.float32,
    "fp64": torch.float64, "float64": torch.float64, "double": torch.float64,
}  # fmt: skip
DtypeName = Literal[
    "fp16", "float16", "half", "bf16", "bfloat16", "fp32", "float32", "float", "fp64", "float64",
    "double",
]  # fmt: skip


def _whole(value: object) -> object:
    """JSON writes 500,000,000 as 5e8, which is a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, BeforeValidator(_whole), Field(strict=True)]


class ZeroConfig(BaseModel):
    """How gradients are reduced and parameters are stepped. Names are DeepSpeed's.

    :param reduce_scatter: each rank receives the sum of its own partition only; off, everything
        is all-reduced.
    :param use_multi_rank_bucket_allreduce: one collective for all owners in a bucket; off, one
        ``reduce`` to each owner. (DeepSpeed 0.19.8 makes that one collective an all-reduce.)
    :param gradient_clipping: the largest global norm; 0 turns clipping off.
    :param communication_data_type: what travels; by default the gradient's own dtype, and
        ``seq_parallel_communication_data_type`` where sequences are split over ranks.
    :param grad_accum_dtype: what micro-batches are added up in, by default fp32 or wider; its
        place in a DeepSpeed file is ``data_types``.
    :raises UsageError: naming each key that is unknown, with the nearest one, or has a bad value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            faults = [_fault(fault, values) for fault in error.errors()]
            raise UsageError("; ".join(faults)) from None

    stage: Literal[1, 2]
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: Annotated[Count, Field(gt=0)] = 500_000_000
    use_multi_rank_bucket_allreduce: bool = True
    allgather_partitions: bool = True
    allgather_bucket_size: Annotated[Count, Field(gt=0)] = 500_000_000
    overlap_comm: bool | None = None
    round_robin_gradients: bool = False
    parameter_alignment: bool = False
    ignore_unused_parameters: bool = True
    compute_grad_norm: bool = True

    gradient_accumulation_steps: Annotated[Count, Field(gt=0)] | None = None
    train_batch_size: Annotated[Count, Field(gt=0)] | None = None
    train_micro_batch_size_per_gpu: Annotated[Count, Field(gt=0)] | None = None
    gradient_clipping: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    prescale_gradients: bool = False
    gradient_predivide_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    gradient_allreduce_op: Literal["mean", "sum"] = "mean"
    communication_data_type: DtypeName | None = None
    seq_parallel_communication_data_type: DtypeName = "fp32"
    grad_accum_dtype: DtypeName | None = None

    @property
    def strategy(self) -> str:
        """The reducer's strategy that these keys ask for."""
        if not self.reduce_scatter:
            return "all_reduce"
        return "exchange" if self.use_multi_rank_bucket_allreduce else "reduce"

    @property
    def accumulation_dtype(self) -> torch.dtype | None:
        """What micro-batches are added up in, where the configuration says so."""
        return _DTYPES[self.grad_accum_dtype] if self.grad_accum_dtype else None

    def comm_dtype(self, gradient: torch.dtype, sequence_parallel_size: int = 1) -> torch.dtype:
        """Return the dtype in which gradients of dtype ``gradient`` travel."""
        if sequence_parallel_size > 1:
            return _DTYPES[self.seq_parallel_communication_data_type]
        return _DTYPES[self.communication_data_type] if self.communication_data_type else gradient

    def accumulation_steps(self, data_parallel_size: int) -> int:
        """Return micro-batches a step, from the key or from the batch sizes.

        :raises UsageError: when the three batch keys contradict each other.
        """
        steps, batch = self.gradient_accumulation_steps, self.train_batch_size
        micro = self.train_micro_batch_size_per_gpu
        if batch is None or micro is None:
            return steps or 1
        derived, rest = divmod(batch, micro * data_parallel_size)
        if rest or not derived or (steps or derived) != derived:
            raise UsageError(
                f"train_batch_size={batch} is not train_micro_batch_size_per_gpu={micro} x "
                f"gradient_accumulation_steps={steps or '?'} x {data_parallel_size} data-parallel "
                "ranks"
            )
        return derived


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the sentence about a key that is not known, with the nearest one that is."""
    near = difflib.get_close_matches(key, list(known), 1)
    return f"{key} is not known" + (f"; did you mean {near[0]}?" if near else "")


def _fault(fault: Any, values: Mapping[str, Any]) -> str:
    key = str(fault["loc"][0])
    if fault["type"] == "extra_forbidden":
        return unknown_key(key, ZeroConfig.model_fields)
    if fault["type"] == "missing":
        return f"{key} is missing; choose stage 1 or 2"
    if key == "stage":
        return f"stage={values[key]!r} is not done here; choose stage 1 or 2"
    return f"{key}={values[key]!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}"
