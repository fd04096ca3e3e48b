"""What cannot be is refused with the fact and the way out, before anything is lost."""

from __future__ import annotations

import pytest


def body(call: str, marker: str = "") -> str:
    return f"import pytest\n{marker}\ndef test_it(gate):\n    {call}\n"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ('gate.collective("all_reduse", size="4KiB")', "*did you mean 'all_reduce'?*"),
        ('gate.collective("all_reduce", size="4QiB")', "*size '4QiB' does not parse*4KiB*"),
        ('gate.collective("all_gather", size=1000)', None),
        ('gate.collective("all_gather", size=1004)', "*multiple of 8*nearest is 1008*"),
        ('gate.collective("all_reduce", size="4KiB", dtype="float8_e4m3fn")', "*float8_e4m3fn*"),
        ('gate.collective("all_reduce", size="4KiB", dtype="flaot32")', "*did you mean 'float32'*"),
        ('gate.collective("all_reduce", size="4KiB", max_regression=-0.1)', "*above zero*"),
        ('gate.collective("all_reduce", size="4KiB", max_regression=0.3, must_catch=0.1)',
         "*must_catch=0.1 is below max_regression=0.3*"),
        ("gate.throughput(print, items=0)", "*items=0 must be above zero*"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", [(), ("--perfgate", "--perfgate-launches=2")], ids=["try", "gate"])
def test_a_measured_case_that_cannot_be(pytester, call, message, mode):
    pytester.makepyfile(body(call))
    result = pytester.runpytest(*mode)
    if message is None:
        assert result.ret == pytest.ExitCode.OK
        return
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("@pytest.mark.world(sise=2)", "*mark.world has no keyword sise; it takes size, backend*"),
        ("@pytest.mark.world(size=0)", "*world size is 0; a world has*1 or more*"),
        ("@pytest.mark.world(3)", "*takes keywords only*"),
        ('@pytest.mark.world(backend="mpi")', "*backend='mpi' is not known; choose one of gloo*"),
        ("@pytest.mark.world(deadline=0)", "*above zero*"),
        ("@pytest.mark.perfgate(max_regresion=0.1)", "*no keyword max_regresion*max_regression*"),
    ],
)
def test_a_marker_that_cannot_be_stops_the_collection(pytester, marker, message):
    pytester.makepyfile(body("pass", marker))
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--perfgate-world-size=0", "*--perfgate-world-size=0 must be a whole number of 1*"),
        ("--perfgate-max-regression=-5", "*max-regression*above zero*"),
        ("--perfgate-max-regression=ten", "*'ten' does not parse*percent*"),
        ("--perfgate-backend=mpi", "*backend='mpi' is not known*"),
        ("--perfgate-provider=horovod", "*provider='horovod' is not known*"),
        ("--perfgate-budget=never", "*duration 'never' does not parse*"),
        ("--perfgate-launches=1", "*--perfgate-launches=1 must be a whole number of 2*"),
        ("--perfgate-refresh", "*stores what --perfgate measures*"),
    ],
)
def test_an_option_that_cannot_be(pytester, option, message):
    pytester.makepyfile(body("pass"))
    result = pytester.runpytest(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_ini_keys_are_the_options_without_dashes(pytester):
    pytester.makeini("[pytest]\nperfgate_world_size = 3\nperfgate_max_regression = 20\n")
    pytester.makepyfile(
        """
        def test_size(world):
            assert world.spec.size == 3
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)
    header = pytester.runpytest("--perfgate").stdout
    header.fnmatch_lines(["perfgate: gate, limit 20%, must catch 50%, baselines in *"])


def test_more_ranks_than_gpus_is_told_before_nccl_does(pytester):
    pytester.makepyfile(body("gate.collective('all_reduce', size='4KiB')",
                             "@pytest.mark.world(size=64, backend='nccl')"))  # fmt: skip
    result = pytester.runpytest()
    assert result.parseoutcomes().get("passed", 0) == 0
    result.stdout.fnmatch_lines(["*x64 nccl/cuda*GPU*"])


def test_a_planted_slowdown_never_becomes_a_baseline(pytester, monkeypatch):
    monkeypatch.setenv("PERFGATE_PLANT", "all_reduce:+50%")
    pytester.makepyfile(body("pass"))
    result = pytester.runpytest("--perfgate", "--perfgate-refresh")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*planted slowdown (all_reduce +50*must not become a baseline*"])


def test_a_baseline_directory_that_cannot_be_read(pytester):
    pytester.makepyfile(body("gate.collective('all_reduce', size='4KiB')"))
    (pytester.path / "baselines").write_text("a file, not a folder")
    result = pytester.runpytest("--perfgate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*baselines*cannot read the baseline*"])


def test_measuring_beside_other_workers_is_refused(pytester):
    pytester.makepyfile(body("pass"))
    result = pytester.runpytest("--perfgate", "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*needs the machine to itself*without -n*"])
