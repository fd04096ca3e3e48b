"""``perfgate bench`` by its command line, on real ranks."""

import csv
import json
import os
import re
import subprocess
import sys

import pytest

from perfgate.bench.arguments import FLAGS
from perfgate.cli import main

DS_BENCH = {
    "--trials": "2", "--warmups": "1", "--maxsize": "3", "--bw-unit": "GBps", "--backend": "gloo",
    "--dist": "torch", "--dtype": "half", "--mem-factor": "0.2", "--device": "cpu",
    "--local_rank": "0",
}  # fmt: skip
DS_SWITCHES = ("--scan", "--raw", "--async-op", "--debug", "--all-reduce")


def bench(capsys, *options):
    status = main(["bench", *options])
    return status, capsys.readouterr().out


def recorded(tmp_path, *options):
    path = tmp_path / "rows.json"
    status = main(["bench", "--trials", "3", "--json", str(path), *options])
    return status, json.loads(path.read_text())["rows"]


def test_every_op_has_a_flag_and_is_measured(tmp_path):
    status, rows = recorded(tmp_path, "--size", "4KiB", *(f"--{flag}" for flag in FLAGS))
    assert status == 0
    assert [row["op"] for row in rows] == list(FLAGS.values())
    assert all(row["valid"] and row["time_s"]["p50"] > 0 for row in rows)


def test_every_option_of_ds_bench_is_taken(capsys):
    status, out = bench(capsys, *(text for pair in DS_BENCH.items() for text in pair), *DS_SWITCHES)
    lines = out.splitlines()
    assert status == 0
    assert lines[1] == "---- all_reduce, 2 ranks, float16, torch, in place, asynchronous ----"
    assert re.split(r"  +", lines[2])[:5] == [
        "Size (Bytes)", "Description", "Duration", "Throughput (GBps)", "BusBW (GBps)",
    ]  # fmt: skip
    sizes = [line.split()[:2] for line in lines if re.match(r"\d", line)]
    assert sizes == [["4", "2x2"], ["8", "4x2"], ["16", "8x2"]]
    assert sum(line.startswith("rank ") for line in lines) == 2 * len(sizes)


def test_without_ops_the_five_of_ds_bench_run(tmp_path):
    _, rows = recorded(tmp_path, "--size", "64")
    five = ["all_reduce", "all_gather_into_tensor", "all_to_all_single", "pt2pt", "broadcast"]
    assert [row["op"] for row in rows] == five


def test_a_blocking_call_on_a_cpu_takes_longer_the_more_it_moves(tmp_path):
    _, rows = recorded(tmp_path, "--size", "1KiB", "--size", "64MiB", "--all-reduce")
    small, large = (row["time_s"]["min"] for row in rows)
    assert large > 2 * small  # a hundredfold, but for a machine that is busy elsewhere


def test_asynchronous_calls_split_into_entering_and_waiting(tmp_path):
    _, [row] = recorded(tmp_path, "--size", "64MiB", "--all-reduce", "--async-op")
    assert 0 < row["enqueue_s"] < row["wait_s"] < row["time_s"]["max"]


def test_calls_that_take_long_are_fewer_unless_their_number_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr("perfgate.bench.arguments.ROW_S", 0.2)
    path = tmp_path / "rows.json"
    sizes = ["--size", "64", "--size", "64MiB", "--all-reduce", "--json", str(path)]
    assert main(["bench", *sizes]) == 0
    small, large = (row["calls"] for row in json.loads(path.read_text())["rows"])
    assert large < 50
    assert large <= small <= 50
    assert main(["bench", *sizes, "--trials", "7"]) == 0
    assert [row["calls"] for row in json.loads(path.read_text())["rows"]] == [7, 7]


def test_both_conventions_are_recorded_by_name(tmp_path):
    options = ["--size", "4KiB", "--all-gather", "--all-reduce", "--ranks", "4"]
    _, (gather, reduce) = recorded(tmp_path, *options)
    for row in (gather, reduce):
        algbw_gbps = 4096 * 8 / row["time_s"]["p50"] / 1e9
        assert row["nccl_tests"]["algbw_gbps"] == pytest.approx(algbw_gbps)
        assert row["nccl_tests"]["busbw_gbps"] == row["deepspeed"]["busbw_gbps"]
    assert gather["deepspeed"]["size_bytes"] == 1024
    assert gather["nccl_tests"]["busbw_gbps"] == pytest.approx(
        gather["nccl_tests"]["algbw_gbps"] * 3 / 4
    )
    assert reduce["deepspeed"]["throughput_gbps"] == 2 * reduce["nccl_tests"]["algbw_gbps"]
    percentiles = [gather["time_s"][name] for name in ("min", "p10", "p50", "p95", "p99", "max")]
    assert percentiles == sorted(percentiles)


def test_json_and_csv_hold_the_same(tmp_path, capsys):
    files = tmp_path / "rows.json", tmp_path / "rows.csv"
    status, _ = bench(
        capsys, "--size", "1KiB", "--trials", "2", "--gather", "--pt2pt",
        "--json", str(files[0]), "--csv", str(files[1]),
    )  # fmt: skip
    rows = json.loads(files[0].read_text())["rows"]
    with files[1].open() as file:
        flat = list(csv.DictReader(file))
    assert status == 0
    assert [row["op"] for row in flat] == [row["op"] for row in rows] == ["gather", "pt2pt"]
    assert [float(row["time_s.p50"]) for row in flat] == [row["time_s"]["p50"] for row in rows]
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_sizes_that_do_not_divide_are_rounded_to_the_nearest(tmp_path):
    _, rows = recorded(tmp_path, "--ranks", "3", "--size", "4KiB", "--all-to-all", "--broadcast")
    assert [row["size_bytes"] for row in rows] == [4092, 4096]


@pytest.mark.parametrize("dist", ["perfgate", "deepspeed"])
def test_other_providers_are_measured(tmp_path, dist):
    if dist == "deepspeed":
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    status, rows = recorded(tmp_path, "--dist", dist, "--size", "1KiB", "--all-reduce", "--pt2pt")
    assert status == 0
    assert {row["provider"] for row in rows} == {dist}


def test_groups_at_once_share_one_window(tmp_path, capsys):
    options = ["--ranks", "4", "--groups", "2", "--size", "64KiB", "--all-reduce"]
    for layout in ([], ["--strided"]):
        status, [row] = recorded(tmp_path, *options, *layout)
        assert status == 0
        assert row["group_size"] == 2
        assert row["contention"] > 0
        # Two groups of two each carry the buffer once over their link in the window.
        busbw_gbps = 2 * 65536 * 8 / row["together_s"] / 1e9
        assert row["aggregate_busbw_gbps"] == pytest.approx(busbw_gbps)
    assert "64KiB all_reduce, 2 groups of 2: alone " in capsys.readouterr().out


def test_what_an_op_cannot_is_told_and_the_rest_goes_on(tmp_path, capsys):
    options = ["--dtype", "complex64", "--size", "1KiB", "--gather", "--all-gather"]
    status, (gather, all_gather) = recorded(tmp_path, *options)
    assert status == 0
    assert "gather of complex64 does not work on gloo" in gather["skipped"]
    assert not gather["valid"]
    assert all_gather["valid"]
    assert "1KiB: skipped, gather of complex64" in capsys.readouterr().out


def test_more_than_the_link_carries_is_invalid(tmp_path, capsys):
    options = ["--size", "64KiB", "--all-reduce", "--link-gbps", "1e-6"]
    status, [row] = recorded(tmp_path, *options)
    assert status == 1
    assert not row["valid"]
    assert re.search(
        r"\n  INVALID: busbw .* Gb/s is above the link's 1e-06", capsys.readouterr().out
    )


def test_nothing_measured_is_a_failure(capsys):
    status, out = bench(capsys, "--ranks", "1", "--pt2pt", "--size", "64")
    assert status == 1
    assert "skipped, pt2pt needs 2 ranks or more" in out
    assert "nothing was measured" in out


def test_a_message_beyond_the_memory_is_refused_on_all_ranks_and_the_rest_goes_on(tmp_path):
    options = ["--size", "4TiB", "--size", "1KiB", "--all-reduce"]
    status, (large, small) = recorded(tmp_path, *options)
    assert status == 0
    assert re.match(r"out of memory on rank [01]: the buffers take 4096\.0GiB", large["skipped"])
    assert small["valid"]


def test_rows_are_kept_when_a_later_one_does_not_end(tmp_path, capsys):
    path = tmp_path / "rows.json"
    sizes = ["--size", "64", "--size", "256MiB", "--all-reduce", "--trials", "50"]
    assert main(["bench", *sizes, "--deadline", "3", "--json", str(path)]) == 2
    [row] = json.loads(path.read_text())["rows"]
    assert row["valid"]
    assert row["size_bytes"] == 64
    assert "perfgate bench: " in capsys.readouterr().err


def test_one_size_is_taken_from_the_free_memory(tmp_path):
    options = ["--mem-factor", "0.0002", "--trials", "1", "--warmups", "0"]
    status, rows = recorded(tmp_path, *options, "--all-reduce", "--all-to-all")
    reduced, exchanged = (row["size_bytes"] for row in rows)
    assert status == 0
    assert exchanged & (exchanged - 1) == 0  # two ranks, so a power of two
    assert exchanged <= reduced <= 6 * exchanged  # doubled, and exchanged rounded down


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--trials", "0"], "--trials is 0; it must be 1 or more"),
        (["--warmups", "-1"], "--warmups is -1; it must be 0 or more"),
        (["--ranks", "0"], "--ranks is 0; it must be 1 or more"),
        (["--maxsize", "0"], "--maxsize is 0"),
        (["--mem-factor", "0"], "--mem-factor is 0; it must lie above 0 and up to 1"),
        (["--mem-factor", "nan"], "--mem-factor is nan"),
        (["--link-gbps", "0"], "--link-gbps is 0; it must be above 0"),
        (["--dtype", "flaot"], "did you mean 'float"),
        (["--size", "4KX"], "size '4KX' does not parse"),
        (["--groups", "3"], "2 ranks do not make 3 groups of equal size"),
        (["--scan", "--size", "4KiB"], "--scan and --size both say which sizes; give one"),
        (["--backend", "ccl"], "ccl: ranks talk over gloo or nccl only; use --backend gloo"),
        (["--backend", "mpi"], "--backend mpi: ranks talk over gloo or nccl only"),
        (["--backend", "nccl", "--device", "cpu"], "use device='cuda' or backend='gloo'"),
        (["--json", "/nowhere/rows.json"], "cannot write /nowhere/rows.json"),
    ],
)
def test_bad_options_are_told_before_anything_is_measured(capsys, options, told):
    assert main(["bench", *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("perfgate bench: ")
    assert told in captured.err
    assert captured.out == ""


def test_under_torchrun(tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command += ["-m", "perfgate", "bench", "--size", "1KiB", "--broadcast", "--trials", "2"]
    run = subprocess.run(
        [*command, "--json", str(path)], env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    record = json.loads(path.read_text())
    assert record["world"]["launcher"] == "torchrun"
    assert record["rows"][0]["valid"]
    assert run.stdout.count("---- broadcast, 2 ranks") == 1
