"""What the logger's tests do on ranks: calls of every kind, with any provider's layer."""

import contextlib
import sys
import threading
import time
import warnings

import torch
import torch.distributed

from perfgate.comm.loggers import logged_layer

BYTES = 4  # of a float32


def layer_of(provider, **switches):
    """The provider's layer, logging everything and holding nothing."""
    warnings.simplefilter("ignore")
    layer = logged_layer(provider)
    layer.restart(**switches)
    return layer


class Peer:
    """A rank's place in a group, and buffers of so many elements for calls on it."""

    def __init__(self, elements, group=None, dtype=torch.float32):
        self.group = group
        self.rank = torch.distributed.get_rank(group)
        self.size = torch.distributed.get_world_size(group)
        self.elements = elements
        self.dtype = dtype
        self.outputs = []

    def tensor(self, shards=1):
        """A buffer of whole numbers that tell ranks apart."""
        made = torch.arange(self.elements * shards, dtype=torch.int64) % 7 + self.rank
        return self.keep(made.to(self.dtype))

    def tensors(self):
        """A buffer for each rank of the group."""
        return [self.tensor() for _ in range(self.size)]

    def keep(self, value):
        """Count a buffer among those that are compared."""
        self.outputs.append(value)
        return value

    def world_rank(self, group_rank):
        """The rank in the world of a rank of the group."""
        if self.group is None:
            return group_rank
        return torch.distributed.get_global_rank(self.group, group_rank)

    @property
    def next(self):
        """The rank after this one, in the world."""
        return self.world_rank((self.rank + 1) % self.size)

    @property
    def previous(self):
        """The rank before this one, in the world."""
        return self.world_rank((self.rank - 1) % self.size)

    @property
    def root(self):
        """The first rank of the group, in the world."""
        return self.world_rank(0)

    @property
    def is_root(self):
        """Whether this rank is the first of the group."""
        return self.rank == 0


def _wait(handles):
    for handle in handles:
        handle.wait()


def _send_recv(p, send, recv):
    if p.is_root:
        return send(p.tensor(), p.next, group=p.group)
    return recv(p.tensor(), p.root, group=p.group) if p.rank == 1 else None


CALLS = {
    "all_reduce": lambda c, p: c.all_reduce(p.tensor(), group=p.group),
    "all_reduce_coalesced": lambda c, p: c.all_reduce_coalesced(
        [p.tensor(), p.tensor()], group=p.group
    ),
    "all_gather": lambda c, p: c.all_gather(p.tensors(), p.tensor(), group=p.group),
    "all_gather_into_tensor": lambda c, p: c.all_gather_into_tensor(
        p.tensor(p.size), p.tensor(), group=p.group
    ),
    "all_gather_object": lambda c, p: c.all_gather_object(
        p.keep([None] * p.size), {"rank": p.rank}, group=p.group
    ),
    "reduce_scatter": lambda c, p: c.reduce_scatter(p.tensor(), p.tensors(), group=p.group),
    "reduce_scatter_tensor": lambda c, p: c.reduce_scatter_tensor(
        p.tensor(), p.tensor(p.size), group=p.group
    ),
    "all_to_all": lambda c, p: c.all_to_all(p.tensors(), p.tensors(), group=p.group),
    "all_to_all_single": lambda c, p: c.all_to_all_single(
        p.tensor(p.size), p.tensor(p.size), group=p.group
    ),
    "broadcast": lambda c, p: c.broadcast(p.tensor(), p.root, group=p.group),
    "broadcast_object_list": lambda c, p: c.broadcast_object_list(
        p.keep([p.rank, "text"]), p.root, group=p.group
    ),
    "reduce": lambda c, p: c.reduce(p.tensor(), p.root, group=p.group),
    "gather": lambda c, p: c.gather(
        p.tensor(), p.tensors() if p.is_root else None, p.root, group=p.group
    ),
    "scatter": lambda c, p: c.scatter(
        p.tensor(), p.tensors() if p.is_root else None, p.root, group=p.group
    ),
    "send": lambda c, p: _send_recv(p, c.send, c.recv),
    "isend": lambda c, p: _send_recv(
        p,
        lambda *args, **kw: c.isend(*args, **kw).wait(),
        lambda *args, **kw: c.irecv(*args, **kw).wait(),
    ),
    "batch_isend_irecv": lambda c, p: _wait(
        c.batch_isend_irecv(
            [
                c.P2POp(c.isend, p.tensor(), p.next, p.group),
                c.P2POp(c.irecv, p.tensor(), p.previous, p.group),
            ]
        )
    ),
    "barrier": lambda c, p: c.barrier(group=p.group),
    "monitored_barrier": lambda c, p: c.monitored_barrier(group=p.group),
}
"""One call of each op, on a Peer."""

TORCH_ONLY = {
    "all_gather_coalesced": lambda c, p: c.all_gather_coalesced(
        [[p.tensor()] for _ in range(p.size)], [p.tensor()], group=p.group
    ),
    "gather_object": lambda c, p: c.gather_object(
        {"rank": p.rank}, p.keep([None] * p.size) if p.is_root else None, p.root, group=p.group
    ),
    "scatter_object_list": lambda c, p: c.scatter_object_list(
        p.keep([None]), list(range(p.size)) if p.is_root else None, p.root, group=p.group
    ),
    "send_object_list": lambda c, p: _send_recv(
        p,
        lambda _, *args, **kw: c.send_object_list([1, "two"], *args, **kw),
        lambda _, *args, **kw: c.recv_object_list(p.keep([None, None]), *args, **kw),
    ),
}
"""Calls of torch.distributed that DeepSpeed's layer lacks, or has with other arguments."""

PARTNER = {"send": "recv", "isend": "irecv", "send_object_list": "recv_object_list"}
"""What rank 1 calls where rank 0 sends; other ranks look on."""


def logged_as(op, rank):
    """The name that a call of an op is to be logged under on a rank, None for nothing."""
    if op not in PARTNER:
        return op
    return {0: op, 1: PARTNER[op]}.get(rank)


def size_bytes(op, elements, ranks):
    """nccl-tests' size of a call in CALLS, see docs of perfgate.comm.bandwidth."""
    if "barrier" in op or "object" in op:
        return 0
    if op == "all_reduce_coalesced":
        return 2 * elements * BYTES
    whole = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    return elements * BYTES * (ranks if op.startswith(whole) else 1)


def call(comm, op, elements, group=None, dtype=torch.float32):
    """Make one call; return what it left in its buffers."""
    peer = Peer(elements, group, dtype)
    {**CALLS, **TORCH_ONLY}[op](comm, peer)
    return [v.tolist() if isinstance(v, torch.Tensor) else v for v in peer.outputs]


def log_calls(provider, calls, repeats=1):
    """Make calls (op, elements) so often; return the raw data."""
    layer = layer_of(provider)
    for op, elements in calls:
        for _ in range(repeats):
            call(layer.comm, op, elements)
    return layer.logger.get_raw_data()


def results(provider, op, elements, dtype):
    """What a call leaves in its buffers with torch, and with the layer off and on."""
    layer = layer_of(provider)
    logged = call(layer.comm, op, elements, dtype=dtype)
    layer.restart(enabled=False)
    unlogged = call(layer.comm, op, elements, dtype=dtype)
    return call(torch.distributed, op, elements, dtype=dtype), unlogged, logged


def walls_and_latencies(provider, calls):
    """Make calls one by one; return each one's wall time and logged latency in ms."""
    layer = layer_of(provider)
    pairs = []
    for op, elements in calls:
        torch.distributed.barrier()
        layer.logger.reset_data()
        begin = time.perf_counter()
        call(layer.comm, op, elements)
        wall_ms = (time.perf_counter() - begin) * 1e3
        ((_, (latency_ms,), _, _),) = layer.logger.get_raw_data()[op].values()
        pairs.append((wall_ms, latency_ms))
    return pairs


@contextlib.contextmanager
def patience(seconds=10):
    """Bound a busy wait; what it yields raises once the time is up."""
    end = time.monotonic() + seconds

    def check():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened for {seconds} s")
        time.sleep(0.001)

    yield check


def store():
    """The store that the ranks met in."""
    return torch.distributed.distributed_c10d._get_default_store()


def is_in_torch(thread):
    """Whether a thread is inside of a call of torch.distributed."""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None:
        if frame.f_code.co_filename.endswith("distributed_c10d.py"):
            return True
        frame = frame.f_back
    return False


def stop_while_running(provider, key):
    """Stop everything while rank 0 is inside of a call; return counts after stop and at the end."""
    layer = layer_of(provider)
    if torch.distributed.get_rank() == 1:
        store().wait([key])
        torch.distributed.all_reduce(torch.ones(8))
        return None
    thread = threading.Thread(target=call, args=(layer.comm, "all_reduce", 8))
    thread.start()
    with patience() as check:
        while not is_in_torch(thread):
            check()
    layer.logger.stop_profiling_comms()
    stopped = layer.logger.get_total_operations()
    store().set(key, "go")
    thread.join()
    return stopped, layer.logger.get_total_operations()


def late_peer(provider, key):
    """Let rank 1 call only once rank 0 has; return rank 0's latency and how late rank 1 was."""
    layer = layer_of(provider)
    tensor = torch.ones(8)
    if torch.distributed.get_rank() == 1:
        store().wait([key])
        called = time.monotonic()
        layer.comm.all_reduce(tensor)
        return called
    called = time.monotonic()
    handle = layer.comm.all_reduce(tensor, async_op=True, log_name=key)
    returned = time.monotonic()
    store().set(key, "go")
    handle.wait()
    ((_, (latency_ms,), _, _),) = layer.logger.get_raw_data()[key].values()
    return called, returned, latency_ms / 1e3
