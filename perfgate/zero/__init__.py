"""Partition-aware gradient reduction: ZeRO stages 1 and 2."""

from perfgate.zero.config import ZeroConfig
from perfgate.zero.deepspeed_json import read_config
from perfgate.zero.exchange import Exchange
from perfgate.zero.groups import ReduceGroup, Topology
from perfgate.zero.hooks import GradientReducer
from perfgate.zero.message import Message, Strategy
from perfgate.zero.optimizer import Step, ZeroOptimizer
from perfgate.zero.partition import Layout, Slice
from perfgate.zero.reducer import STRATEGIES
from perfgate.zero.steps import SGD, AdamW

__all__ = [
    "SGD",
    "STRATEGIES",
    "AdamW",
    "Exchange",
    "GradientReducer",
    "Layout",
    "Message",
    "ReduceGroup",
    "Slice",
    "Step",
    "Strategy",
    "Topology",
    "ZeroConfig",
    "ZeroOptimizer",
    "read_config",
]
