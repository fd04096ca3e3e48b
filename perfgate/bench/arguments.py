"""The options of ``perfgate bench``: those of ds_bench, then what it lacks."""

from __future__ import annotations

import argparse
from pathlib import Path

from perfgate.bench.request import Request
from perfgate.bench.sweep import Sweep
from perfgate.bench.table import UNITS
from perfgate.errors import UsageError
from perfgate.model import BACKENDS, DEVICES, PROVIDERS
from perfgate.units import parse_size

TRIALS, ROW_S = 50, 20.0
FLAGS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather_into_tensor",
    "all-to-all": "all_to_all_single",
    "pt2pt": "pt2pt",
    "broadcast": "broadcast",
    "reduce-scatter": "reduce_scatter_tensor",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send-recv": "send_recv",
    "pt2pt-bidirectional": "pt2pt_bidirectional",
    "all-to-all-uneven": "all_to_all_single_uneven",
    "all-gather-list": "all_gather",
    "reduce-scatter-list": "reduce_scatter",
    "all-reduce-coalesced": "all_reduce_coalesced",
    "all-gather-coalesced": "all_gather_coalesced",
}
"""One flag an op; the first five are ds_bench's, and what runs when none is given."""
_DEFAULT_OPS = tuple(FLAGS.values())[:5]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    _declare_ds_bench(parser)
    ops = parser.add_argument_group("ops", "which to run; without any, ds_bench's five")
    for flag, op in FLAGS.items():
        ops.add_argument(f"--{flag}", dest="ops", action="append_const", const=op, help=op)
    ops.add_argument("--all", action="store_true", help="every op")
    _declare_own(parser.add_argument_group("beyond ds_bench"))


def _declare_ds_bench(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--scan", action="store_true", help="scan sizes from 2 to 2^MAXSIZE elements")
    add("--raw", action="store_true", help="plain numbers: bytes, microseconds, rates")
    add("--trials", type=int, metavar="N", help=f"timed calls (default: {TRIALS}, or as many as "
        f"fit into {ROW_S:g} s a row)")  # fmt: skip
    add("--warmups", type=int, default=5, metavar="N", help="calls before them (default: 5)")
    add("--maxsize", type=int, default=24, metavar="P", help="largest scanned message, 2^P "
        "elements, included (default: 24)")  # fmt: skip
    add("--async-op", action="store_true", help="call asynchronously; split entering and waiting")
    add("--bw-unit", choices=UNITS, default="Gbps", help="unit of rates (default: Gbps)")
    add("--backend", metavar=f"{{{','.join(BACKENDS)}}}", help="default: nccl on a GPU, gloo on a "
        "CPU")  # fmt: skip
    add("--dist", choices=PROVIDERS, default="torch", help="whose collectives (default: torch)")
    add("--dtype", default="float32", help="element type (default: float32)")
    add("--mem-factor", type=float, default=0.3, metavar="F", help="share of free memory for the "
        "single message without --scan or --size (default: 0.3)")  # fmt: skip
    add("--device", choices=DEVICES, help="where messages lie (default: cuda if there is one)")
    add("--debug", action="store_true", help="show the first values sent and received")
    add("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)


def _declare_own(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--ranks", type=int, metavar="N", help="ranks to fork, where no launcher started this "
        "process (default: one a GPU, or 2)")  # fmt: skip
    add("--size", action="append", default=[], metavar="SIZE",
        help="a size such as 256KiB; may be given several times")  # fmt: skip
    add("--in-place", action="store_true", help="in place, where an op has that form")
    add("--groups", type=int, default=1, metavar="N",
        help="cut the ranks into N groups, timed alone and all at once")  # fmt: skip
    add("--strided", action="store_true", help="groups of every N-th rank")
    add("--link-gbps", type=float, metavar="GBPS",
        help="what one link carries; a row of more busbw is INVALID")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every figure as JSON")
    add("--csv", type=Path, metavar="FILE", help="write every figure as CSV")
    add("--deadline", type=float, default=600.0, metavar="SECONDS",
        help="time that one row may take (default: 600)")  # fmt: skip


def settle_device(args: argparse.Namespace) -> argparse.Namespace:
    """Fill in the device, and the ranks for it, where they are not given."""
    import torch

    gpus = torch.cuda.device_count()
    if args.device == "cuda" and not gpus:
        raise UsageError("--device cuda needs a GPU, and torch sees none; use --device cpu")
    device = args.device or ("cuda" if gpus and args.backend != "gloo" else "cpu")
    ranks = (gpus if device == "cuda" else 2) if args.ranks is None else args.ranks
    return argparse.Namespace(**vars(args) | {"device": device, "ranks": ranks})


def read(args: argparse.Namespace) -> Sweep:
    """Return what the options ask for.

    :raises UsageError: for an option that cannot be.
    """
    from perfgate.comm.dtypes import parse_dtype

    _check(args)
    itemsize = parse_dtype(args.dtype).itemsize
    ops = tuple(FLAGS.values()) if args.all else tuple(args.ops or _DEFAULT_OPS)
    sizes = [parse_size(text) for text in args.size]
    if args.scan:
        sizes = [2**power * itemsize for power in range(1, args.maxsize + 1)]
    return Sweep(
        ops=ops,
        sizes_bytes=tuple(sizes),
        template=_template(args, ops[0]),
        mem_factor=args.mem_factor,
        deadline_s=args.deadline,
    )


def _check(args: argparse.Namespace) -> None:
    if args.backend not in (None, *BACKENDS):  # ds_bench also names ccl and mpi
        raise UsageError(
            f"--backend {args.backend}: ranks talk over {' or '.join(BACKENDS)} only; use "
            "--backend gloo for messages in CPU memory, --backend nccl for GPUs"
        )
    for name, least in (("trials", 1), ("warmups", 0), ("maxsize", 1), ("ranks", 1), ("groups", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UsageError(f"--{name} is {value}; it must be {least} or more")
    if not 0 < args.mem_factor <= 1:
        raise UsageError(f"--mem-factor is {args.mem_factor:g}; it must lie above 0 and up to 1")
    if args.link_gbps is not None and not args.link_gbps > 0:
        raise UsageError(f"--link-gbps is {args.link_gbps:g}; it must be above 0")
    if args.scan and args.size:
        raise UsageError("--scan and --size both say which sizes; give one")


def _template(args: argparse.Namespace, op: str) -> Request:
    from perfgate.comm.dtypes import dtype_name, parse_dtype

    return Request(
        op=op,
        size_bytes=0,
        dtype=dtype_name(parse_dtype(args.dtype)),
        provider=args.dist,
        device=args.device,
        placement="in_place" if args.in_place else "out_of_place",
        trials=args.trials or TRIALS,
        row_s=ROW_S if args.trials is None else None,
        warmups=args.warmups,
        asynchronous=args.async_op,
        groups=args.groups,
        strided=args.strided,
        link_gbps=args.link_gbps,
        debug=args.debug,
    )
