"""What a layer over torch.distributed costs: ratios in one world, which hold on any machine.

The message is small, so that the layer's own work shows beside the transfer.
"""

from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist

import perfgate.comm
from perfgate.comm.providers import provider

ELEMENTS = 1024


def zeros():
    return torch.zeros(ELEMENTS)


def deepspeed_zeros():
    provider("deepspeed")
    return zeros()


def torch_all_reduce(tensor):
    dist.all_reduce(tensor)


def perfgate_all_reduce(tensor):
    perfgate.comm.all_reduce(tensor)


def deepspeed_all_reduce(tensor):
    import deepspeed.comm

    deepspeed.comm.all_reduce(tensor)


@pytest.mark.world(size=2)
def test_the_logged_layer_over_torch(gate):
    gate.ratio(perfgate_all_reduce, to=torch_all_reduce, setup=zeros)


@pytest.mark.world(size=2)
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_deepspeed_over_torch(gate):
    gate.ratio(deepspeed_all_reduce, to=torch_all_reduce, setup=deepspeed_zeros)
