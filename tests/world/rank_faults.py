"""What can go wrong on a rank, each for real. They run on the guilty rank only."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("this never crosses")


def raise_error():
    raise ValueError("bad gradients")


def assert_wrong():
    total = 3
    assert total == 4, "the sum is off"


def raise_unpicklable():
    raise Unpicklable("kept its words")


def recurse():
    def deeper(n):
        return deeper(n + 1)

    deeper(0)


def raise_long():
    raise ValueError("x" * 5_000_000)


def sys_exit():
    sys.exit(3)


def exit_0():
    os._exit(0)


def exit_3():
    os._exit(3)


def sigkill():
    os.kill(os.getpid(), signal.SIGKILL)


def sigsegv():
    ctypes.string_at(0)


def abort():
    ctypes.CDLL(None).abort()


def cpp_terminate():
    import ctypes.util

    runtime = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
    runtime._ZSt9terminatev()


def memory_error():
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used, used))
    bytearray(1 << 36)


def hang():
    threading.Event().wait()


def hang_in_c():
    re.match("(a+)+$", "a" * 64 + "b")  # never ends, and holds the GIL


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def receive_forever():
    dist.recv(torch.ones(1), src=(dist.get_rank() + 1) % dist.get_world_size())


def other_size():
    dist.all_reduce(torch.ones(16))


def other_dtype():
    dist.all_reduce(torch.ones(8, dtype=torch.int32))


def other_reduction():
    dist.all_reduce(torch.ones(8), op=dist.ReduceOp.MAX)


def other_op():
    dist.all_gather([torch.ones(8) for _ in range(dist.get_world_size())], torch.ones(8))


def close_group():
    dist.destroy_process_group()


def run(fault, guilty: int, place: str) -> None:
    """Let a fault happen before, inside or after a collective, or in place of one."""
    me = dist.get_rank() == guilty
    if place == "after":
        dist.all_reduce(torch.ones(8))
    if place == "inside":
        inside(fault) if me else hang()
    elif me:
        fault()
        if place == "instead":
            return
    dist.all_reduce(torch.ones(8))


def inside(fault) -> None:
    """Call a fault that ends the process from a thread, once the main thread waits in gloo."""
    main = threading.main_thread().ident

    def strike():
        while sys._current_frames()[main].f_code.co_name != "all_reduce":
            time.sleep(0.001)
        fault()

    threading.Thread(target=strike, daemon=True).start()
    dist.all_reduce(torch.ones(8))


def skip_one(guilty: int) -> None:
    dist.all_reduce(torch.ones(8))
    if dist.get_rank() != guilty:
        dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(8))


def leave_early(guilty: int) -> None:
    dist.all_reduce(torch.ones(8))
    if dist.get_rank() != guilty:
        dist.all_reduce(torch.ones(4))


def die_joining(*_):
    os._exit(3)
