import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.errors import BaselineError, UsageError
from perfgate.gate.baseline import BaselineStore
from perfgate.gate.decide import decide
from perfgate.gate.environment import Environment
from perfgate.gate.files import replace_whole
from perfgate.gate.schema import BaselineFile, StoredCase, StoredSession, parse
from perfgate.gate.stats import Figure
from perfgate.model import (
    Case,
    Launch,
    Measurement,
    Outcome,
    Policy,
    Session,
    WorldSpec,
)

HERE = Environment(hard={"cpu": "AMD EPYC", "cores": "2", "torch": "2.13.0"})
CASES = ("suites/a.py::t[4KiB] | all_reduce 4KiB x2", 'odd "name" \\ µs | x', "b")


def session(commit="c0ffee", scale=1.0, launches=8):
    figures = [3e-4 * scale * (1 + k / 50) for k in range(launches)]
    return Session(
        commit=commit,
        date="2026-01-31T12:00:00Z",
        others_share=0.25,
        launches=tuple(
            Launch(p10_s=f * 0.9, p25_s=f, p50_s=f * 1.1, p95_s=f * 9, calls=400) for f in figures
        ),
    )


def stored(tmp_path, sessions=1):
    store = BaselineStore(tmp_path / "baselines")
    for number in range(sessions):
        path = store.add(HERE, "comm", {name: session(f"c{number}") for name in CASES})
    return store, path


def test_nothing_stored_is_an_empty_answer_and_makes_no_directory(tmp_path):
    store = BaselineStore(tmp_path / "baselines")
    assert store.load(HERE, "comm") == {}
    assert store.environments() == []
    assert store.near_misses(HERE) == ()
    assert not (tmp_path / "baselines").exists()


def test_a_session_comes_back_with_six_figures(tmp_path):
    store, path = stored(tmp_path)
    loaded = store.load(HERE, "comm")
    assert sorted(loaded) == sorted(CASES)
    baseline = loaded[CASES[0]]
    assert (baseline.case_id, baseline.environment) == (CASES[0], HERE.key)
    assert baseline.sessions[0].commit == "c0"
    assert baseline.sessions[0].others_share == 0.25
    for there, here in zip(baseline.sessions[0].launches, session("c0").launches, strict=True):
        assert there.calls == here.calls
        assert there.p25_s == pytest.approx(here.p25_s, rel=1e-5)
        assert there.p95_s == pytest.approx(here.p95_s, rel=1e-5)
    assert path == tmp_path / "baselines" / HERE.key / "comm.json"


def test_one_case_is_one_line_and_a_refresh_of_it_changes_only_that_line(tmp_path):
    store, path = stored(tmp_path)
    before = path.read_text(encoding="utf-8").splitlines()
    assert [sum(json.dumps(n, ensure_ascii=False) in line for line in before) for n in CASES] == [
        1, 1, 1,
    ]  # fmt: skip
    store.add(HERE, "comm", {"b": session("later")})
    after = path.read_text(encoding="utf-8").splitlines()
    changed = [b for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 1
    assert changed[0].startswith('"b": ')


def test_what_was_read_is_written_as_the_same_bytes(tmp_path):
    _, path = stored(tmp_path, sessions=2)
    text = path.read_text(encoding="utf-8")
    assert text.endswith("}}\n")
    assert parse(text, "x").render() == text


times = st.floats(1e-9, 1e5).map(lambda first: [first * f for f in (1, 1.5, 1.5, 40)])
rows = st.lists(times, min_size=1, max_size=4)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.text(min_size=1), rows, min_size=1, max_size=4))
def test_any_case_name_and_time_survives_the_file(cases):
    sessions = {
        name: Session(
            commit="c",
            date="2026-01-31T12:00:00+00:00",
            launches=tuple(
                Launch(p10_s=a, p25_s=b, p50_s=c, p95_s=d, calls=1) for a, b, c, d in launches
            ),
        )
        for name, launches in cases.items()
    }
    content = BaselineFile(
        environment=dict(HERE.hard),
        cases={n: StoredCase(sessions=[StoredSession.of(s)]) for n, s in sessions.items()},
    )
    again = parse(content.render(), "x")
    assert again.render() == content.render()
    for name, kept in sessions.items():
        (read,) = (entry.session() for entry in again.cases[name].sessions)
        assert [launch.p25_s for launch in read.launches] == pytest.approx(
            [launch.p25_s for launch in kept.launches], rel=1e-5
        )


def test_the_last_thirty_sessions_and_the_pinned_one_are_kept(tmp_path):
    store, _ = stored(tmp_path, sessions=1)
    store.pin(HERE, "comm", "c0")
    for number in range(1, 34):
        store.add(HERE, "comm", {"b": session(f"c{number}")})
    commits = [one.commit for one in store.load(HERE, "comm")["b"].sessions]
    assert commits == ["c0", *(f"c{number}" for number in range(4, 34))]
    pinned = store.load_pinned(HERE, "comm")
    assert sorted(pinned) == sorted(CASES)
    assert [one.commit for one in pinned["b"].sessions] == ["c0"]


def test_the_figure_chosen_at_calibration_is_frozen_and_survives_a_refresh(tmp_path):
    store, path = stored(tmp_path)
    assert store.load(HERE, "comm")["b"].figure == "p25_s"
    store.calibrate(HERE, "comm", {"b": Figure("p10_s", 0.5)})
    store.add(HERE, "comm", {"b": session("later")})
    frozen = store.load(HERE, "comm")["b"]
    assert (frozen.figure, frozen.follows) == ("p10_s", 0.5)
    assert store.load(HERE, "comm")[CASES[0]].figure == "p25_s"
    before = path.read_bytes()
    for wrong in ({"nowhere": Figure()}, {"b": Figure("p95_s")}):
        with pytest.raises(BaselineError, match="cannot compare"):
            store.calibrate(HERE, "comm", wrong)
    assert path.read_bytes() == before


def test_without_a_pin_nothing_is_pinned(tmp_path):
    store, _ = stored(tmp_path)
    assert store.load_pinned(HERE, "comm") == {}
    assert store.load_pinned(HERE, "other") == {}


def test_a_slow_creep_shows_against_the_pin_and_not_against_the_last_sessions(tmp_path):
    store = BaselineStore(tmp_path)
    for step in range(30):
        store.add(HERE, "comm", {"b": session(f"c{step}", scale=1.02**step)})
        if step == 0:
            store.pin(HERE, "comm", "c0")
    case = Case(test="b", op="b", world=WorldSpec())
    head = session(scale=1.02**30).launches
    now = Measurement(case=case, environment=HERE.key, launches=head, others_share=0.25)
    recent, pinned = store.load(HERE, "comm")["b"], store.load_pinned(HERE, "comm")["b"]
    recent = replace(recent, case_id=case.id, sessions=recent.sessions[-3:])
    assert decide(now, recent, Policy()).outcome is Outcome.PASS
    creep = decide(now, replace(pinned, case_id=case.id), Policy())
    assert creep.outcome is Outcome.REGRESSION
    assert creep.change == pytest.approx(1.02**30 - 1, rel=0.01)


def test_pinning_a_commit_that_was_never_stored_says_so(tmp_path):
    store, path = stored(tmp_path)
    before = path.read_bytes()
    with pytest.raises(BaselineError, match="no session of commit nowhere"):
        store.pin(HERE, "comm", "nowhere")
    assert path.read_bytes() == before


def damage(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


DAMAGES = {
    "cut in half": (lambda p: p.write_text(p.read_text()[: p.stat().st_size // 2]), r"cut short"),
    "empty": (lambda p: p.write_text(""), r"comm\.json:1: .*cut short"),
    "other tool": (lambda p: p.write_text('{"machine": 1}'), "not a perfgate baseline"),
    "a list": (lambda p: p.write_text("[1, 2]"), "not a perfgate baseline"),
    "nested without end": (lambda p: p.write_text("[" * 100_000), "nested too deeply|cut short"),
    "newer schema": (lambda p: damage(p, '"schema": 2', '"schema": 3'), r":1: schema 3.*reads 2"),
    "older schema": (lambda p: damage(p, '"schema": 2', '"schema": 0'), r":1: schema 0.*reads 2"),
    "schema true": (lambda p: damage(p, '"schema": 2', '"schema": true'), "schema True"),
    "other columns": (lambda p: damage(p, '"p10_us"', '"min_us"'), r":3: columns .*min_us"),
    "binary": (lambda p: p.write_bytes(b'{"tool":\n\xff\xfe'), r":2: not UTF-8"),
    "merge": (
        lambda p: damage(p, '"b":', '<<<<<<< HEAD\n"b":'),
        r"comm\.json:5: .*an unresolved merge",
    ),
    "case twice": (lambda p: damage(p, '"b":', '"b": null,\n"b":'), r":5: 'b' stands there twice"),
    "NaN": (lambda p: damage(p, "[270.0, 300.0", "[270.0, NaN"), r":5: NaN is no time"),
    "zero": (lambda p: damage(p, "[270.0,", "[0.0,"), r"greater than 0"),
    "falling": (lambda p: damage(p, "[270.0, 300.0", "[300.0, 270.0"), "quantiles must not fall"),
    "text": (lambda p: damage(p, "[270.0,", '["270",'), "valid number"),
    "no calls": (lambda p: damage(p, "400]", "0]"), "greater than or equal to 1"),
    "local date": (lambda p: damage(p, "12:00:00Z", "12:00:00+02:00"), "not in UTC"),
    "no date": (lambda p: damage(p, "2026-01-31T12:00:00Z", "yesterday"), "yesterday|isoformat"),
    "extra key": (lambda p: damage(p, '"pinned"', '"color": 1, "pinned"'), "Extra inputs"),
    "share above one": (lambda p: damage(p, '"others": 0.25', '"others": 2'), "less than or equal"),
    "other place": (lambda p: damage(p, '"cores": "2"', '"cores": "4"'), "edited or moved"),
}  # fmt: skip


@pytest.mark.parametrize("fault", DAMAGES)
def test_a_damaged_file_is_named_with_its_line_and_left_alone(tmp_path, fault):
    store, path = stored(tmp_path)
    hurt, told = DAMAGES[fault]
    hurt(path)
    before = path.read_bytes()
    for attempt in (
        lambda: store.load(HERE, "comm"),
        lambda: store.add(HERE, "comm", {"b": session("new")}),
        lambda: store.environments(),
    ):
        with pytest.raises(BaselineError) as error:
            attempt()
        assert re.search(rf"^{re.escape(str(path))}:\d+: ", str(error.value))
        assert re.search(told, str(error.value)), str(error.value)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["comm.json"]


def test_the_line_named_is_the_line_of_the_damaged_case(tmp_path):
    store, path = stored(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines) if line.startswith('"suites'))
    lines[number] = lines[number].replace("400]", "-1]", 1)
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(BaselineError, match=rf"comm\.json:{number + 1}: cases > suites"):
        store.load(HERE, "comm")


def test_a_file_where_the_directory_should_be(tmp_path):
    (tmp_path / "baselines").write_text("oops")
    store = BaselineStore(tmp_path / "baselines")
    for attempt in (
        lambda: store.load(HERE, "comm"),
        lambda: store.add(HERE, "comm", {"b": session()}),
        lambda: store.environments(),
    ):
        with pytest.raises(BaselineError, match=r"cannot (read|write) the baseline.*baselines"):
            attempt()
    assert (tmp_path / "baselines").read_text() == "oops"


def test_a_directory_where_the_file_should_be(tmp_path):
    store = BaselineStore(tmp_path / "baselines")
    store.path(HERE, "comm").mkdir(parents=True)
    with pytest.raises(BaselineError, match="cannot read the baseline"):
        store.add(HERE, "comm", {"b": session()})
    assert store.path(HERE, "comm").is_dir()


def test_a_file_system_that_takes_no_writes():
    store = BaselineStore(Path("/proc/self/baselines"))
    with pytest.raises(BaselineError, match="cannot write the baseline: /proc/self/baselines"):
        store.add(HERE, "comm", {"b": session()})


def test_a_directory_without_permission(tmp_path):
    store, path = stored(tmp_path)
    before = path.read_bytes()
    path.parent.chmod(0o555)
    try:
        if os.access(path.parent, os.W_OK):
            pytest.skip("this user may write anywhere")
        with pytest.raises(BaselineError, match="Permission denied"):
            store.add(HERE, "comm", {"b": session()})
    finally:
        path.parent.chmod(0o755)
    assert path.read_bytes() == before


def test_a_write_that_fails_half_way_leaves_the_old_file_and_no_rubbish(tmp_path):
    _, path = stored(tmp_path)
    before = path.read_bytes()
    with pytest.raises(UnicodeEncodeError):
        replace_whole(path, "x" * 100_000 + "\ud800")
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["comm.json"]


@pytest.mark.parametrize("suite", ["../up", "a/b", "", ".hidden", "-x", "a" * 200, "nul\0", "a b"])
def test_a_suite_that_is_no_file_name_is_refused(tmp_path, suite):
    store = BaselineStore(tmp_path)
    with pytest.raises(UsageError, match="no plain file name"):
        store.load(HERE, suite)
    with pytest.raises(UsageError, match="no plain file name"):
        store.add(HERE, suite, {"b": session()})
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_held_ends_in_an_error_not_in_a_wait_for_ever(tmp_path):
    store, path = stored(tmp_path)
    before = path.read_bytes()
    impatient = BaselineStore(store.root, lock_timeout_s=0.05)
    with FileLock(store.root / ".lock"), pytest.raises(BaselineError, match="held the lock"):
        impatient.add(HERE, "comm", {"b": session("new")})
    assert path.read_bytes() == before


REFRESHER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from perfgate.gate.baseline import BaselineStore
    from perfgate.gate.environment import Environment
    from perfgate.model import Launch, Session

    root, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    here = Environment(hard={"cpu": "AMD EPYC", "cores": "2", "torch": "2.13.0"})
    launch = Launch(p10_s=1e-4, p25_s=2e-4, p50_s=3e-4, p95_s=4e-4, calls=10)
    sys.stdin.readline()
    for number in range(count):
        one = Session(commit=f"{name}{number}", date="2026-01-31T12:00:00Z", launches=(launch,))
        BaselineStore(root).add(here, "comm", {"shared": one, f"own-{name}": one})
    """
)


def test_two_refreshes_at_once_lose_nothing(tmp_path):
    command = [sys.executable, "-c", REFRESHER, str(tmp_path / "baselines")]
    runs = [
        subprocess.Popen([*command, name, "12"], stdin=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    threads = [threading.Thread(target=run.communicate, args=("go\n", 60)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.returncode for run in runs] == [0, 0]
    loaded = BaselineStore(tmp_path / "baselines").load(HERE, "comm")
    commits = [one.commit for one in loaded["shared"].sessions]
    assert sorted(commits) == sorted(f"{name}{number}" for name in "ab" for number in range(12))
    assert [one.commit for one in loaded["own-a"].sessions] == [f"a{n}" for n in range(12)]


def test_a_reader_never_sees_half_a_file_while_another_writes(tmp_path):
    store, _ = stored(tmp_path)
    command = [sys.executable, "-c", REFRESHER, str(store.root), "w", "30"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as writer:
        writer.stdin.write("go\n")
        writer.stdin.flush()
        seen = set()
        while writer.poll() is None:
            seen.add(len(store.load(HERE, "comm").get("b").sessions))
    assert writer.returncode == 0
    assert len(store.load(HERE, "comm")["shared"].sessions) == 30


def test_near_misses_name_the_hard_key_of_the_closest_environment(tmp_path):
    store, _ = stored(tmp_path)
    far = Environment(hard={"cpu": "Intel", "cores": "64", "torch": "2.4.0"})
    store.add(far, "comm", {"b": session()})
    new = Environment(hard={**HERE.hard, "torch": "2.14.0"})
    assert store.near_misses(new) == ("torch: 2.14.0 here, 2.13.0 there",)
    assert store.near_misses(HERE) == ()
    assert {one.key for one in store.environments()} == {HERE.key, far.key}


def test_folders_and_files_of_others_are_no_environments(tmp_path):
    store, _ = stored(tmp_path)
    (store.root / "README.md").write_text("hello")
    (store.root / "empty").mkdir()
    assert [one.key for one in store.environments()] == [HERE.key]
