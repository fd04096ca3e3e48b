"""What logging costs a call: a ratio in one world, which holds on any machine.

The message is small, so that the logger's work shows beside the transfer.
"""

import pytest
import torch

import perfgate.comm as dist


def zeros():
    dist.configure({"enabled": True})
    dist.reset_log()
    return torch.zeros(1024)


def logged(tensor):
    dist.comms_logger.enabled = True
    dist.all_reduce(tensor)


def unlogged(tensor):
    dist.comms_logger.enabled = False
    dist.all_reduce(tensor)


@pytest.mark.world(size=2)
def test_logging_over_not_logging(gate):
    gate.ratio(logged, to=unlogged, setup=zeros)
