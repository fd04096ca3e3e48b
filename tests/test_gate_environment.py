import re
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate import World, WorldSpec
from perfgate.gate.conditions import Conditions, others_share, problems
from perfgate.gate.environment import (
    Environment,
    cpu_model,
    differences,
    quota,
    relevant,
    slug,
)


def test_two_readings_of_this_machine_are_one_environment():
    first, second = Environment.detect(), Environment.detect()
    assert first == second
    assert first.key == second.key
    assert hash(first) == hash(second)
    assert first.hard["torch"].startswith("2.")


def test_detecting_imports_no_torch():
    code = (
        "import sys; from perfgate.gate.environment import Environment; Environment.detect();"
        "print([m for m in ('torch', 'scipy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_soft_records_are_no_part_of_the_identity():
    calm = Environment(hard={"cpu": "x"}, soft={"load": "0.1"})
    busy = Environment(hard={"cpu": "x"}, soft={"load": "9.9"})
    assert calm == busy
    assert calm.key == busy.key
    assert differences(calm, busy) == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gpus": ["NVIDIA H200"] * 8}, "gpus: none here, 8x NVIDIA H200 there"),
        ({"driver": "570.86"}, "driver: none here, 570.86 there"),
        ({"backends": {"nccl": "2.27.3"}}, "backend nccl: unset here, 2.27.3 there"),
        ({"variables": {"NCCL_ALGO": "Ring"}}, "NCCL_ALGO: unset here, Ring there"),
        ({"variables": {"OMP_NUM_THREADS": "4"}}, "OMP_NUM_THREADS: unset here, 4 there"),
    ],
)
def test_a_hard_key_that_differs_makes_another_environment_and_is_told(change, told):
    here, there = (
        Environment.detect(variables={}),
        Environment.detect(**{"variables": {}, **change}),
    )
    assert here.key != there.key
    assert differences(here, there) == (told,)


def test_variables_that_only_log_or_belong_to_others_do_not_count():
    variables = {
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "x", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9",
        "HOME": "/root", "NCCL_PROTO": "LL", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    assert relevant(variables) == {"NCCL_PROTO": "LL", "GLOO_SOCKET_IFNAME": "lo"}


def test_the_key_is_readable():
    hard = {"cpu": "AMD EPYC 9554 64-Core Processor", "cores": "2", "torch": "2.13.0+cpu"}
    assert Environment(hard=hard).key.startswith("amd-epyc-9554-2c-torch-2.13.0-")
    assert Environment(hard=hard | {"gpus": "8x NVIDIA H200"}).key.startswith("8x-nvidia-h200-t")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c"),
        ("../../etc/passwd", "etc-passwd"),
        ("鲲鹏", "unknown"),
    ],
)
def test_slug(name, short):
    assert slug(name) == short


@given(st.dictionaries(st.text(), st.text()))
def test_any_environment_has_a_key_that_is_one_path_component(hard):
    key = Environment(hard=hard).key
    assert "/" not in key
    assert "\0" not in key
    assert key not in (".", "..")
    assert not key.startswith(".")
    assert len(key) < 200


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_keys_agree_exactly_where_nothing_differs(first, second):
    one, other = Environment(hard=first), Environment(hard=second)
    assert (one.key == other.key) == (one == other)


def test_the_cpu_model_is_read_without_its_clock(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Fast  CPU 9000\ncpu MHz\t\t: 2499.998\n")
    assert cpu_model(path) == "Fast CPU 9000"
    assert cpu_model(tmp_path / "absent")


def test_the_tightest_quota_on_the_way_up_counts(tmp_path):
    root, own = tmp_path / "cgroup", tmp_path / "own"
    (root / "pod" / "job").mkdir(parents=True)
    own.write_text("0::/pod/job\n")
    (root / "pod" / "job" / "cpu.max").write_text("max 100000\n")
    assert quota(root, own) == "none"
    (root / "pod" / "cpu.max").write_text("150000 100000\n")
    assert quota(root, own) == "1.5"
    (root / "pod" / "job" / "cpu.max").write_text("300000 100000\n")
    assert quota(root, own) == "1.5"


def test_a_quota_of_the_first_cgroup_version(tmp_path):
    folder = tmp_path / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text("400000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert quota(tmp_path, tmp_path / "absent") == "4"
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert quota(tmp_path, tmp_path / "absent") == "none"


def conditions(**changes):
    return Conditions(**({"monotonic_s": 0.0, "wall_s": 1e9} | changes))


def after(**changes):
    return conditions(**({"monotonic_s": 10.0, "wall_s": 1e9 + 10, "cpu_s": 20.0} | changes))


def test_a_quiet_ten_seconds_are_no_problem_and_neither_is_load():
    assert problems(conditions(), after()) == ()
    assert problems(conditions(), after(load=50.0, steal_s=1.0)) == ()
    assert problems(Conditions.read(), Conditions.read()) == ()


@pytest.mark.parametrize(
    ("reading", "told"),
    [
        ({"steal_s": 5.0}, "the host took 25% of the processor time"),
        ({"throttled_s": 2.0}, "throttled for 20% of the time"),
        ({"wall_s": 1e9 + 3610}, r"wall clock jumped by \+3600.0 s"),
        ({"wall_s": 1e9 - 60}, r"wall clock jumped by -70.0 s"),
    ],
)
def test_what_spoils_a_measurement_is_told(reading, told):
    (problem,) = problems(conditions(), after(**reading))
    assert re.search(told, problem)


def test_what_others_use_is_what_is_busy_and_not_ours():
    ours = after(busy_s=15.0, own_s=5.0)
    assert others_share(conditions(), ours) == 0.5
    assert others_share(conditions(), after(busy_s=4.9, own_s=5.0)) == 0.0
    assert others_share(conditions(), conditions()) == 0.0


def test_a_child_that_ended_is_still_ours():
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    before = Conditions.read()
    subprocess.run([sys.executable, "-c", burn], check=True)
    ended = Conditions.read()
    assert ended.own_s - before.own_s >= 0.29
    assert ended.busy_s - before.busy_s >= 0.25
    assert 0 <= others_share(before, ended) <= 1


def test_what_ranks_use_is_ours_even_after_their_world_has_ended():
    def burn():
        end_s = time.process_time() + 0.3
        while time.process_time() < end_s:
            pass

    before = Conditions.read()
    with World.start(WorldSpec(size=2)) as world:
        world.run(burn)
    assert Conditions.read().own_s - before.own_s >= 0.55
