"""The comms logger's configuration, as users write and miswrite it."""

import json

import pytest

from perfgate.comm.configuration import CommsConfig, read_config
from perfgate.comm.logger import CommsLogger
from perfgate.errors import UsageError

BLOCK = {"enabled": True, "verbose": True, "prof_all": False, "debug": True,
         "prof_ops": ["all_reduce", "my_phase"]}  # fmt: skip
READ = CommsConfig(
    enabled=True, verbose=True, prof_all=False, debug=True, prof_ops=("all_reduce", "my_phase")
)


@pytest.mark.parametrize(
    "source", [BLOCK, {"comms_logger": BLOCK}, {"train_batch_size": 8, "comms_logger": BLOCK}, READ]
)
def test_a_dict_holds_the_block_or_a_whole_configuration(source):
    assert read_config(source) == READ


@pytest.mark.parametrize("content", [BLOCK, {"comms_logger": BLOCK, "fp16": {"enabled": True}}])
def test_a_json_file_does_too(tmp_path, content):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(content))
    assert read_config(path) == READ
    assert read_config(str(path)) == READ


@pytest.mark.parametrize("source", [{}, {"train_batch_size": 8}, {"comms_logger": {}}])
def test_nothing_is_logged_unless_it_is_asked_for(source):
    assert read_config(source) == CommsConfig()
    assert not read_config(source).enabled


def test_a_single_op_need_not_stand_in_a_list():
    assert read_config({"prof_ops": "all_reduce"}).prof_ops == ("all_reduce",)


@pytest.mark.parametrize("name", ["all_reduce_of_gradients", "my phase", "pre_forward_all_gather"])
def test_a_log_name_may_be_built_on_an_ops_name(name):
    assert read_config({"prof_ops": [name]}).prof_ops == (name,)


@pytest.mark.parametrize(
    "name", ["allreduce", "all_reduces", "all_gather_in_tensor", "Broadcast", "barier"]
)
def test_a_misspelt_op_is_no_log_name(name):
    with pytest.raises(UsageError, match="did you mean"):
        read_config({"prof_ops": [name]})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"enabld": True}, "no key 'enabld'; did you mean 'enabled'?"),
        ({"comms_logger": {"prof_op": []}}, "no key 'prof_op'; did you mean 'prof_ops'?"),
        ({"comms_loger": BLOCK}, "no key 'comms_loger'; did you mean 'comms_logger'?"),
        ({"fp16": {}, "coms_logger": BLOCK}, "'coms_logger'; did you mean 'comms_logger'?"),
        ({"zzz": 1}, "no key 'zzz'; choose one of enabled, verbose"),
        ({"enabled": "yes"}, "comms_logger.enabled is 'yes'; write true or false"),
        ({"prof_ops": ["all_reudce"]}, "'all_reudce', which is no op; did you mean 'all_reduce'?"),
        ({"prof_ops": ["allgather"]}, "did you mean 'all_gather'?"),
        ({"prof_ops": [1]}, "prof_ops holds 1"),
        ({"prof_ops": 5}, "prof_ops is 5; write a list"),
        ({"prof_ops": {"all_reduce": True}}, "write a list of op names"),
        ({"comms_logger": True}, "comms_logger is True; it must be an object"),
        (7, "a dict or the path of a JSON file, not 7"),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(source, said):
    with pytest.raises(UsageError) as caught:
        read_config(source)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"comms_logger": {"enabled": true,}}', "is no JSON"),
        (b'{\n"enabled": tru\n}', "line 2 column 12"),
        (b"\xff\xfe{}", "is no JSON: byte 0 is not UTF-8"),
        (b"[1, 2]", "holds a list; it must be a JSON object"),
        (b"", "is no JSON"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, content, said):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"config\.json cannot be read: No such file"):
        read_config(tmp_path / "config.json")


def test_a_wrong_configuration_changes_nothing():
    logger = CommsLogger()
    logger.configure(READ)
    with pytest.raises(UsageError):
        logger.configure({"enabled": False, "prof_ops": ["all_reudce"]})
    assert logger.config == READ


def test_a_misspelt_op_is_refused_by_every_switch():
    logger = CommsLogger()
    for switch in (logger.start_profiling_op, logger.stop_profiling_op):
        with pytest.raises(UsageError, match="did you mean 'broadcast'"):
            switch(["brodcast"])
    with pytest.raises(UsageError, match="did you mean 'broadcast'"):
        logger.prof_ops = ["brodcast"]
