"""Count what each op puts on the loopback device; run in a network namespace of its own.

Prints JSON: op → bytes on the wire over bytes of size, all ranks together.
"""

import fcntl
import json
import socket
import struct
import sys

import torch
import torch.distributed as dist

from perfgate import World, WorldSpec
from perfgate.comm.ops import OPS, get_op

CALLS = 4
SIZE_BYTES = 3 * 2**20
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def bring_loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def sent_bytes():
    with open("/proc/self/net/dev") as devices:
        line = next(line for line in devices if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def counted(name, size_bytes):
    bound = get_op(name).bind(size_bytes, torch.float32, "cpu", dist)
    bound.fill(0)
    bound.run()
    dist.barrier()
    before = sent_bytes()
    dist.barrier()
    for _ in range(CALLS):
        bound.run()
    dist.barrier()
    return (sent_bytes() - before) / CALLS / size_bytes


def main(world_size):
    bring_loopback_up()
    found = {}
    with World.start(WorldSpec(size=world_size)) as world:
        for name, op in OPS.items():
            found[name] = world.run(counted, name, op.round_size(SIZE_BYTES, 4, world_size))[0]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
