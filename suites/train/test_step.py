"""What a training step costs, per ZeRO stage and strategy, and what the strategy saves."""

import functools
import types
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from perfgate.zero import AdamW, GradientReducer, ZeroConfig, ZeroOptimizer

VOCABULARY, WIDTH, LENGTH, SAMPLES, LAYERS = 256, 128, 32, 4, 2
STRATEGIES = ("all_reduce", "reduce", "reduce_scatter", "exchange")


class Decoder(torch.nn.Module):
    """A small decoder-only transformer: 0.46 M parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens):
        """Return the mean loss of each next token."""
        hidden = self.embed(tokens[:, :-1])
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        logits = hidden @ self.embed.weight.T
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Counting(types.ModuleType):
    """torch.distributed, with the bytes of what each op is handed counted by its name."""

    def __init__(self):
        super().__init__("counting")
        self.size_bytes = Counter()

    def __getattr__(self, name):
        """Return the op of this name, counted."""
        op = getattr(dist, name)

        @functools.wraps(op)
        def call(*args, **kwargs):
            sizes = [arg.nbytes for arg in args if isinstance(arg, torch.Tensor)]
            self.size_bytes[name] += max(sizes, default=0)
            return op(*args, **kwargs)

        return call


class Trainer:
    """A model, its data and its optimizer, on this rank."""

    def __init__(self, stage, strategy, comm=dist):
        self.model = Decoder()
        generator = torch.Generator().manual_seed(dist.get_rank())
        shape = (SAMPLES, LENGTH + 1)
        self.tokens = torch.randint(0, VOCABULARY, shape, generator=generator)
        self.optimizer = ZeroOptimizer(
            self.model,
            functools.partial(AdamW, lr=1e-4),
            ZeroConfig(stage=stage, reduce_bucket_size=200_000, overlap_comm=True),
            strategy=strategy,
            comm=comm,
        )

    def step(self):
        """Train on one batch; a step that does not happen must not count as a fast one."""
        self.optimizer.backward(self.model(self.tokens))
        done = self.optimizer.step()
        if done is None or done.skipped:
            raise RuntimeError(f"the step was not made: {done}")


def step_of(stage, strategy):
    """Return the function that is measured; its name is the row in the table."""

    def train_step(trainer):
        trainer.step()

    train_step.__name__ = f"zero{stage}_{strategy}"
    return train_step


def bytes_of_a_step(stage, strategy):
    """Return the bytes handed to each op in one step, once ranks agree on the order."""
    comm = Counting()
    trainer = Trainer(stage, strategy, comm)
    trainer.step()
    comm.size_bytes.clear()
    trainer.step()
    return dict(comm.size_bytes)


def flops_of_a_step():
    """Return the floating-point operations of one rank's forward and backward pass."""
    model = Decoder()
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(SAMPLES, LENGTH + 1, dtype=torch.long)).backward()
    return counter.get_total_flops()


@pytest.mark.world(size=2)
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_throughput(gate, world, record_property, stage, strategy):
    """Samples a second; tokens, FLOPs and bytes stand beside it in the report."""
    samples = SAMPLES * world.spec.size
    sent = world.run(bytes_of_a_step, stage, strategy)[0]
    flops = flops_of_a_step()
    assert flops > 0
    assert sum(sent.values()) > 0
    record_property("flops_per_step", flops)
    for op, size_bytes in sorted(sent.items()):
        record_property(f"{op}_bytes_per_step", size_bytes)
    setup = functools.partial(Trainer, stage, strategy)
    step = step_of(stage, strategy)
    verdict = gate.throughput(step, items=samples, unit="samples", setup=setup)
    if verdict is not None and verdict.time_s > 0:
        record_property("tokens_per_s", samples * LENGTH / verdict.time_s)
        record_property("flops_per_s_per_rank", flops / verdict.time_s)


class Gradients:
    """A model's worth of gradients, and a reducer for each strategy, made when it is first used."""

    def __init__(self, size_bytes):
        self.size_bytes = size_bytes
        self._reducers = {}

    def reduce(self, strategy):
        """Bring each rank its part of the mean gradient."""
        if strategy not in self._reducers:
            layers = 16
            params = [
                (str(layer), torch.nn.Parameter(torch.zeros(self.size_bytes // 4 // layers)))
                for layer in range(layers)
            ]
            config = ZeroConfig(stage=1)
            self._reducers[strategy] = GradientReducer(params, config, strategy=strategy)
            for _, param in params:
                param.grad = torch.full_like(param, dist.get_rank() + 1.0)
        reducer = self._reducers[strategy]
        reducer.end_micro_batch()
        mean = (dist.get_world_size() + 1) / 2
        if reducer.groups[0].owned[-1].item() != mean:
            raise RuntimeError(f"the mean is {reducer.groups[0].owned[-1].item()}, not {mean}")


def reduce_scatter(gradients):
    gradients.reduce("exchange")


def all_reduce(gradients):
    gradients.reduce("all_reduce")


@pytest.mark.parametrize(
    "at_most",
    [
        pytest.param(0.95, id="x2", marks=pytest.mark.world(size=2)),
        pytest.param(0.95, id="x4", marks=pytest.mark.world(size=4)),
    ],
)
def test_reduce_scatter_beats_all_reduce(gate, at_most):
    """Sixteen MiB of gradients: half the bytes, which is what ZeRO promises, in less time."""
    setup = functools.partial(Gradients, 16 << 20)
    gate.ratio(reduce_scatter, to=all_reduce, at_most=at_most, setup=setup)
