"""Tests that run on ranks: outcomes, reports and what follows a failure."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_the_body_runs_on_every_rank(pytester):
    pytester.makepyfile(
        """
        import pytest, torch, torch.distributed as dist

        @pytest.mark.ranks(4)
        def test_sum(rank):
            assert rank.size == 4
            x = torch.full((8,), float(rank.index))
            dist.all_reduce(x)
            assert x.tolist() == [6.0] * 8

        class TestInClass:
            @pytest.mark.parametrize("n", [1, 2])
            @pytest.mark.ranks(2)
            def test_with_values(self, rank, n, tmp_path):
                (tmp_path / f"{rank.index}-{n}").write_text("here")
                dist.barrier()
                assert len(list(tmp_path.iterdir())) == 2

        @pytest.mark.world(size=3)
        def test_from_the_controller(world):
            assert world.run(lambda x: dist.get_rank() + x, 10) == [10, 11, 12]
        """
    )
    pytester.runpytest().assert_outcomes(passed=4)


def test_an_assertion_in_a_rank_explains_itself(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.ranks(3)
        def test_wrong(rank):
            print("rank", rank.index, "speaking")
            total = rank.index + 1
            assert total != 2, "that was to be expected"
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["rank 1 of 3 raised AssertionError: that was to be expected",
         "*def test_wrong(rank):",
         ">*assert total != 2, *",
         "E *assert 2 != 2",
         "*test_an_assertion_in_a_rank_explains_itself.py:7: in test_wrong",
         "*rank 1*",
         "rank 1 speaking"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("raise ValueError('bad')", "rank 1 of 2 raised ValueError: bad"),
        ("os._exit(3)", "rank 1 of 2 left with exit code 3 *"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 of 2 was killed by SIGKILL*"),
        ("time.sleep(600)", "rank 1 of 2 hung at *.py:6 in test_ends when the deadline of *"),
    ],
    ids=["raises", "exits", "killed", "hangs"],
)
def test_a_rank_that_fails_costs_one_test_and_leaves_no_process(pytester, end, told):
    pytester.makepyfile(
        f"""
        import os, signal, time, pytest, torch.distributed as dist

        @pytest.mark.ranks(2, deadline=2)
        def test_ends(rank):
            if rank.index == 1:
                {end}
            dist.barrier()

        @pytest.mark.ranks(2)
        def test_next(rank):
            dist.barrier()
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([told])
    left = subprocess.run(["pgrep", "-f", str(pytester.path)], capture_output=True, text=True)
    assert left.stdout == ""


def test_skip_and_xfail_in_every_rank_reach_pytest(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.ranks(2)
        def test_skip(rank):
            pytest.skip("not here")

        @pytest.mark.ranks(2)
        def test_xfail(rank):
            pytest.xfail("known")

        @pytest.mark.ranks(2)
        def test_disagree(rank):
            if rank.index:
                pytest.skip("only me")
        """
    )
    result = pytester.runpytest("-rs")
    result.assert_outcomes(skipped=1, xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["*rank 1 of 2 skipped*only me*", "SKIPPED*not here"])


def test_a_property_on_ranks_shrinks_and_tells_its_example(pytester):
    pytester.makepyfile(
        """
        import pytest, torch, torch.distributed as dist
        from hypothesis import given, settings, strategies as st

        @pytest.mark.ranks(2)
        @settings(max_examples=60, deadline=None, database=None)
        @given(x=st.integers(0, 1000))
        def test_small(rank, x):
            t = torch.tensor([x])
            dist.all_reduce(t)
            assert t.item() == 2 * x
            assert x < 17
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*raised AssertionError: assert 17 < 17", "*x=17*"])


def test_a_world_outlives_the_test_that_used_it(pytester):
    pytester.makepyfile(
        """
        import os, pytest

        pids = []

        def test_first(world):
            pids.append(world.run(os.getpid))

        @pytest.mark.world(size=3)
        def test_between(world):
            world.run(os.getpid)

        def test_again(world):
            assert [world.run(os.getpid)] == pids
        """
    )
    pytester.runpytest("-p", "no:randomly").assert_outcomes(passed=3)


def test_asking_for_a_rank_without_the_marker(pytester):
    pytester.makepyfile("def test_it(rank): pass")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*asks for `rank` but runs on none; mark it*ranks(n)*"])


def test_a_warning_in_a_rank_becomes_pytests(pytester):
    pytester.makepyfile(
        """
        import pytest, warnings

        @pytest.mark.ranks(2)
        def test_warns(rank):
            warnings.warn("careful", DeprecationWarning)
        """
    )
    pytester.runpytest().stdout.fnmatch_lines(["*DeprecationWarning: careful"])


@pytest.mark.parametrize("module", ["torch", "scipy", "pydantic", "numpy"])
def test_loading_the_plugin_does_not_import(module):
    code = f"import perfgate.plugin, perfgate, sys; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
