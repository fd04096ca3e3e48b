"""Partitioned training ends where one process ends that sees all the data."""

import copy
import functools

import pytest
import torch
import torch.distributed as dist

from perfgate.zero import SGD, AdamW, ZeroConfig, ZeroOptimizer

VOCABULARY, WIDTH, LENGTH, SAMPLES, STEPS = 11, 16, 8, 4, 12
TORCH = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}
OPTIMIZERS = {
    "sgd": functools.partial(SGD, lr=0.1, momentum=0.9),
    "adamw": functools.partial(AdamW, lr=0.01, weight_decay=0.1),
}


class Transformer(torch.nn.Module):
    """Two pre-norm blocks that predict the next token; embedding and output share weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.place = torch.nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                WIDTH, 2, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.norm = torch.nn.LayerNorm(WIDTH)
        torch.nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, tokens):
        """Return the logits of each next token."""
        hidden = self.embed(tokens) + self.place
        mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.norm(hidden) @ self.embed.weight.T


def batch_of(rank, ranks, step, micro):
    """Return tokens that count on with a stride of their own: rank-distinct, learnable."""
    generator = torch.Generator().manual_seed((step * 8 + micro) * 8 + rank + 1000 * ranks)
    start = torch.randint(0, VOCABULARY, (SAMPLES, 1), generator=generator)
    stride = 1 + rank % 3
    return (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def train_alone(make, ranks, micro_batches, clip=0.0, dtype=torch.float32):
    """Train in one process on all ranks' data; return the model and each step's loss."""
    model = Transformer().to(dtype)
    optimizer = make(model.parameters())
    losses = []
    for step in range(STEPS):
        each = []
        for micro in range(micro_batches):
            for rank in range(ranks):
                loss = loss_of(model, batch_of(rank, ranks, step, micro))
                (loss / (ranks * micro_batches)).backward()
                each.append(loss.item())
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(each) / len(each))
    return model, losses


def train_partitioned(rank, make, config, strategy=None, dtype=torch.float32, **options):
    """Train on this rank's data; return the model and each step's mean loss over the ranks."""
    model = Transformer().to(dtype)
    optimizer = ZeroOptimizer(model, make, config, strategy=strategy, **options)
    losses = []
    for step in range(STEPS):
        each = []
        for micro in range(optimizer.reducer.micro_batches):
            loss = loss_of(model, batch_of(rank.index, rank.size, step, micro))
            optimizer.backward(loss)
            assert (optimizer.step() is None) == (micro < optimizer.reducer.micro_batches - 1)
            each.append(loss.detach())
        mean = torch.stack(each).mean()
        dist.all_reduce(mean)
        losses.append(mean.item() / rank.size)
    return model, losses


def assert_replicas_identical(model):
    for name, param in model.named_parameters():
        first = param.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, param), name


@pytest.mark.ranks(3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("strategy", ["all_reduce", "exchange"])
def test_a_transformer_reaches_the_loss_of_one_process(rank, optimizer, stage, strategy):
    make = OPTIMIZERS[optimizer]
    config = ZeroConfig(
        stage=stage,
        reduce_bucket_size=1500,
        overlap_comm=True,
        gradient_accumulation_steps=2,
        gradient_clipping=0.0,
    )
    model, losses = train_partitioned(rank, make, config, strategy)
    _, losses_alone = train_alone(TORCH[optimizer], rank.size, 2)
    assert losses[-1] < losses[0] * 0.8
    assert losses == pytest.approx(losses_alone, rel=1e-3)
    assert_replicas_identical(model)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "options",
    [
        {"round_robin_gradients": True},
        {"parameter_alignment": True},
        {"allgather_partitions": False},
        {"allgather_bucket_size": 1000},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_the_layout_and_the_gather_change_nothing(rank, options):
    make = OPTIMIZERS["sgd"]
    config = ZeroConfig(stage=2, gradient_clipping=0.0)
    plain, _ = train_partitioned(rank, make, config)
    other, _ = train_partitioned(rank, make, config.model_copy(update=options))
    for one, two in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.ranks(2)
def test_clipping_is_by_the_norm_of_the_whole_gradient(rank):
    make = OPTIMIZERS["sgd"]
    config = ZeroConfig(stage=2, gradient_clipping=0.05)
    _, losses = train_partitioned(rank, make, config)
    _, clipped = train_alone(TORCH["sgd"], rank.size, 1, clip=0.05)
    _, free = train_alone(TORCH["sgd"], rank.size, 1)
    assert losses == pytest.approx(clipped, rel=1e-3)
    assert losses != pytest.approx(free, rel=1e-2)


@pytest.mark.ranks(2)
def test_bf16_parameters_are_stepped_in_fp32():
    """Steps too small for bf16 add up in the owner's copy."""
    param = torch.nn.Module()
    param.weight = torch.nn.Parameter(torch.full((6,), 256.0, dtype=torch.bfloat16))
    make = functools.partial(SGD, lr=0.5)
    optimizer = ZeroOptimizer(param, make, ZeroConfig(stage=2, gradient_clipping=0.0))
    seen = []
    for _ in range(4):
        optimizer.backward(param.weight.sum())
        optimizer.step()
        seen.append(param.weight[0].item())
    assert seen == [256.0, 255.0, 254.0, 254.0]  # 255.5 and 254.5 round to even


@pytest.mark.ranks(2)
@pytest.mark.parametrize("make", [AdamW, torch.optim.AdamW], ids=["ours", "torch"])
def test_parameter_groups_keep_their_options(make):
    """Biases without weight decay, on both ranks, as one AdamW of two groups would."""
    options = {"lr": 0.1, "weight_decay": 0.5}
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    alone = copy.deepcopy(model)
    biases = {name for name, _ in model.named_parameters() if name.endswith("bias")}
    config = ZeroConfig(stage=1, gradient_clipping=0.0)
    undecayed = [(biases, {"weight_decay": 0.0})]
    optimizer = ZeroOptimizer(model, functools.partial(make, **options), config, options=undecayed)
    named = dict(alone.named_parameters())
    groups = [
        {"params": [param for name, param in named.items() if name not in biases]},
        {"params": [named[name] for name in sorted(biases)], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, **options)
    for _ in range(3):
        optimizer.backward(model(torch.ones(4, 3)).sum())
        optimizer.step()
        alone(torch.ones(4, 3)).sum().backward()
        reference.step()
        reference.zero_grad()
    for name, param in model.named_parameters():
        torch.testing.assert_close(param, named[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "torchs", "options"),
    [
        (SGD, torch.optim.SGD, {"lr": 0.1}),
        (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2}),
        (AdamW, torch.optim.AdamW, {"lr": 0.1}),
        (AdamW, torch.optim.AdamW, {"lr": 0.1, "betas": (0.5, 0.8), "eps": 0.1}),
    ],
    ids=["sgd", "momentum", "adamw", "adamw betas"],
)
def test_partitions_are_stepped_as_torch_steps(ours, torchs, options):
    torch.manual_seed(5)
    one = torch.nn.Parameter(torch.randn(50))
    two = torch.nn.Parameter(one.detach().clone())
    here = ours([{"params": [one]}], **options)
    there = torchs([two], foreach=False, **options)
    for _ in range(4):
        one.grad = torch.randn(50)
        two.grad = one.grad.clone()
        here.step()
        there.step()
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


@pytest.mark.ranks(3)
def test_all_ranks_start_from_the_first_ranks_parameters(rank):
    torch.manual_seed(rank.index)
    model = torch.nn.Linear(5, 3)
    ZeroOptimizer(model, OPTIMIZERS["sgd"], ZeroConfig(stage=1))
    torch.manual_seed(0)
    assert torch.equal(model.weight, torch.nn.Linear(5, 3).weight)
