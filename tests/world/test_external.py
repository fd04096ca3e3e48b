"""pytest under launchers: torchrun, mpirun, srun; on one machine, and as if on two."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfgate.errors import LaunchError, UsageError
from perfgate.world.discovery import Place
from perfgate.world.rendezvous import Door, connect, find

SUITE = """
    import os
    import pytest, torch, torch.distributed as dist

    @pytest.mark.ranks(4)
    def test_sum(rank):
        x = torch.full((8,), float(rank.index))
        dist.all_reduce(x)
        assert x.tolist() == [6.0] * 8
        assert os.environ["RANK"] == str(rank.index)
        local_size = int(os.environ["LOCAL_WORLD_SIZE"])
        assert int(os.environ["LOCAL_RANK"]) == rank.index % local_size

    @pytest.mark.ranks(2)
    def test_smaller_world(rank):
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == 2

    @pytest.mark.ranks(4)
    def test_rank_dies(rank):
        print("last words of", rank.index, flush=True)
        if rank.index == 3:
            os._exit(5)
        dist.barrier()

    @pytest.mark.world(size=4)
    def test_next_world_is_fresh(world):
        pids = world.run(os.getpid)
        assert len(set(pids)) == 4

    def test_without_ranks():
        pass
"""
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--color=no"]
BOUND = {"GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_suite.py").write_text(textwrap.dedent(SUITE))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def clean_environ(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PERFGATE_", "PYTEST_"))}
    return kept | {"PERFGATE_SECRET": ""} | more


def start(folder: Path, *command: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=folder, env=clean_environ(**environ), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def check(*processes: subprocess.Popen[str]) -> None:
    """The suite's outcome, told once, by rank 0; nothing hangs."""
    texts = [process.communicate(timeout=120)[0] for process in processes]
    text = "".join(texts)
    assert "1 failed, 4 passed" in text, text
    assert text.count("1 failed, 4 passed") == 1, text
    assert "rank 3 of 4 left with exit code 5 without an answer" in text
    assert "last words of 3" in text
    assert any(process.returncode for process in processes)


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options, *PYTEST]


def test_torchrun_on_one_machine(suite: Path) -> None:
    check(start(suite, *torchrun("--standalone", "--nproc-per-node=4")))


def test_torchrun_as_if_on_two_machines(suite: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nodes = [
        start(
            suite,
            *torchrun("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2",
                      "--master-addr=127.0.0.1", f"--master-port={port}"),
            PERFGATE_SECRET="a secret of enough length", **BOUND,
        )
        for node in (0, 1)
    ]  # fmt: skip
    check(*nodes)


def test_two_machines_without_a_secret_are_refused(suite: Path) -> None:
    environ = {
        "TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29733",
    }  # fmt: skip
    process = start(suite, sys.executable, *PYTEST, **environ)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.USAGE_ERROR
    assert "need PERFGATE_SECRET, the same for all" in text


def test_contradicting_variables_are_refused(suite: Path) -> None:
    environ = {"PMI_RANK": "0", "PMI_SIZE": "2", "RANK": "1"}
    process = start(suite, sys.executable, *PYTEST, **environ)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.USAGE_ERROR
    assert "RANK=1 contradicts PMI_RANK=0" in text


def test_mpirun(suite: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    check(start(suite, "mpirun", *root, "--oversubscribe", "-np", "4", sys.executable, *PYTEST))


def test_srun(suite: Path) -> None:
    if shutil.which("srun") is None:
        pytest.skip("srun is not installed (Debian: slurm-wlm)")
    asked = subprocess.run(
        ["sinfo", "-h", "-t", "idle", "-o", "%D"], capture_output=True, text=True
    )
    if asked.returncode or not asked.stdout.strip():
        pytest.skip(f"no Slurm node is idle here: {asked.stderr.strip() or 'sinfo lists none'}")
    check(start(suite, "srun", "-N1", "-n4", "--overcommit", sys.executable, *PYTEST))


def namespaces() -> Iterator[list[str]]:
    """Two network namespaces joined by a veth pair: two machines, as far as sockets know."""
    name = f"pg{os.getpid() % 10000}"
    setup = (
        f"ip netns add {name}a && ip netns add {name}b && "
        f"ip link add {name}v0 netns {name}a type veth peer name {name}v1 netns {name}b && "
        f"ip -n {name}a addr add 10.77.0.1/24 dev {name}v0 && "
        f"ip -n {name}a link set {name}v0 up && "
        f"ip -n {name}b addr add 10.77.0.2/24 dev {name}v1 && "
        f"ip -n {name}b link set {name}v1 up && "
        f"ip -n {name}a link set lo up && ip -n {name}b link set lo up"
    )
    made = subprocess.run(["sh", "-c", setup], capture_output=True, text=True)
    try:
        if made.returncode:
            pytest.skip(f"no network namespaces can be made here: {made.stderr.strip()}")
        yield [name + "a", name + "b"]
    finally:
        for end in "ab":
            subprocess.run(["ip", "netns", "del", name + end], capture_output=True)


two_hosts = pytest.fixture(namespaces)


def test_two_hosts(suite: Path, two_hosts: list[str]) -> None:
    nodes = []
    for node, name in enumerate(two_hosts):
        run = torchrun("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2",
                       "--master-addr=10.77.0.1", "--master-port=29700")  # fmt: skip
        interface = f"{name[:-1]}v{node}"
        nodes.append(
            start(suite, "ip", "netns", "exec", name, *run,
                  GLOO_SOCKET_IFNAME=interface, PERFGATE_SECRET="f" * 32)
        )  # fmt: skip
    check(*nodes)


def place(rank: int, run: str, size: int = 2) -> Place:
    return Place(
        launcher="torchrun", rank=rank, size=size, local_rank=rank, local_size=size,
        run=run, master=None,
    )  # fmt: skip


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door(place(0, f"test-{secrets.token_hex(4)}"))
    yield door
    door.close()


def test_stranger_is_refused_and_does_not_hold_up_the_run(door: Door) -> None:
    address = door.address
    silent = socket.create_connection((address.host, address.port))
    talking = socket.create_connection((address.host, address.port))
    talking.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    began = time.monotonic()
    assert door.admit(timeout_s=3.0) is None
    assert time.monotonic() - began < 10
    silent.close()
    talking.close()


def test_wrong_secret_is_refused(door: Door) -> None:
    stranger = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(f"""
            from multiprocessing import AuthenticationError
            from multiprocessing.connection import Client
            try:
                Client(("127.0.0.1", {door.address.port}), authkey=b"a guess")
            except (AuthenticationError, EOFError, ConnectionError):
                raise SystemExit(3)
        """)]
    )  # fmt: skip
    assert door.admit(timeout_s=4.0) is None
    assert stranger.wait(20) == 3


def test_door_is_open_on_one_address_only(door: Door) -> None:
    assert door.address.host == "127.0.0.1"
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for other in others - {"127.0.0.1", "::1"}:
        with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
            socket.create_connection((other, door.address.port), timeout=2)


def test_secret_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    door = Door(place(0, "run-1"))
    (folder,) = tmp_path.iterdir()
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    door.close()
    assert list(folder.iterdir()) == []
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="can be written by others"):
        Door(place(0, "run-1"))


def test_rank_that_finds_nobody_says_so() -> None:
    with pytest.raises(LaunchError, match=r"rank 1 of 2 of torchrun has not reached rank 0 in 0.2"):
        find(place(1, f"nobody-{secrets.token_hex(4)}"), timeout_s=0.2)


def test_who_knows_the_secret_is_let_in(door: Door) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(door.admit, 10.0)
        with connect(door.address) as outside:
            outside.send("hello")
            with inside.result() as connection:
                assert connection.recv() == "hello"
