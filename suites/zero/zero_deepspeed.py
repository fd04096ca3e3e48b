"""DeepSpeed's ZeRO optimizer on this rank, on a CPU with gloo."""

from __future__ import annotations

import functools
import os
import warnings
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from perfgate.zero import SGD, ZeroConfig, ZeroOptimizer

STEPS = 3
LEARNING_RATE = 0.25


def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run without the warnings of DeepSpeed, which would be errors here."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)

    return call


def load() -> Any:
    """Import DeepSpeed and join it to the process group that is there."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("LOCAL_SIZE", str(dist.get_world_size()))
    import deepspeed
    from deepspeed.ops import __compatible_ops__

    # It would be compiled for a minute, and is not needed.
    __compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    return deepspeed


def engine_of(model: torch.nn.Module, block: dict[str, Any], **keys: Any) -> Any:
    """Return an engine that trains ``model`` with plain SGD."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": block,
        **keys,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    engine, *_ = load().initialize(model=model, optimizer=optimizer, config=config)
    return engine


def perceptron() -> torch.nn.Module:
    """Return a small network with parameters of odd sizes, the same on every rank."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(7, 13), torch.nn.Linear(13, 5), torch.nn.Linear(5, 3)]
    return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])


def loss_of(model: torch.nn.Module, step: int) -> torch.Tensor:
    """Return this rank's loss, on data of its own."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return model(torch.randn(4, 7, generator=generator)).square().mean()


@quietly
def train_theirs(block: dict[str, Any]) -> list[torch.Tensor]:
    """Train with DeepSpeed; return the parameters."""
    engine = engine_of(perceptron(), block)
    for step in range(STEPS):
        engine.backward(loss_of(engine, step))
        engine.step()
    return [param.detach().clone() for param in engine.module.parameters()]


def train_ours(block: dict[str, Any]) -> list[torch.Tensor]:
    """Train with this project; return the parameters."""
    model = perceptron()

    optimizer = ZeroOptimizer(
        model,
        functools.partial(SGD, lr=LEARNING_RATE),
        ZeroConfig(**block, gradient_clipping=0.0),
    )
    for step in range(STEPS):
        optimizer.backward(loss_of(model, step))
        optimizer.step()
    return [param.detach().clone() for param in model.parameters()]


class Weighted(torch.nn.Module):
    """A loss whose gradients are given: the sum of parameters times constants."""

    def __init__(self, gradients: list[torch.Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.gradients = gradients
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(gradient.shape, dtype=dtype)) for gradient in gradients
        )

    def forward(self) -> torch.Tensor:
        """Return the loss."""
        pairs = zip(self.weights, self.gradients, strict=True)
        return torch.stack([(weight * gradient).sum() for weight, gradient in pairs]).sum()


@quietly
def reduce_theirs(
    gradients: list[list[torch.Tensor]], block: dict[str, Any], keys: dict[str, Any]
) -> list[torch.Tensor]:
    """Return the mean gradients that one step of DeepSpeed used; ``gradients`` is by rank."""
    engine = engine_of(Weighted(gradients[dist.get_rank()]), block, **keys)
    engine.backward(engine())
    engine.step()
    return [-param.detach() / LEARNING_RATE for param in engine.module.parameters()]


@quietly
def count_theirs(block: dict[str, Any], numel: int) -> dict[str, int]:
    """Return the elements that one backward pass of DeepSpeed hands to each collective."""
    engine = engine_of(Weighted([torch.ones(numel)]), block)
    sent: Counter[str] = Counter()
    originals = {name: getattr(dist, name) for name in ("all_reduce", "reduce")}

    def counting(name: str) -> Any:
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            sent[name] += tensor.numel()
            return originals[name](tensor, *args, **kwargs)

        return call

    try:
        for name in originals:
            setattr(dist, name, counting(name))
        engine.backward(engine())
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    engine.step()
    return dict(sent)


@quietly
def predivide_theirs(factor: float, sequence_parallel_size: int) -> list[float]:
    """Return the mean of ones by DeepSpeed's all-reduce, called by itself."""
    load()
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    stub = SimpleNamespace(
        dp_process_group=dist.group.WORLD,
        sequence_parallel_size=sequence_parallel_size,
        postscale_gradients=True,
        gradient_predivide_factor=factor,
        gradient_average=True,
        zenflow=False,
    )
    ones = torch.ones(2)
    return DeepSpeedZeroOptimizer.gradient_reduction_w_predivide(stub, ones, ones.dtype).tolist()
