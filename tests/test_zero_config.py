"""DeepSpeed configurations: every key honoured, without effect, or refused by its name."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import UsageError
from perfgate.zero import ZeroConfig, read_config

#: The block of a real run's log, as DeepSpeed printed it.
PRINTED = {
    "stage": 2,
    "contiguous_gradients": False,
    "reduce_scatter": True,
    "reduce_bucket_size": 1000000,
    "use_multi_rank_bucket_allreduce": True,
    "allgather_partitions": True,
    "allgather_bucket_size": 500000000,
    "overlap_comm": True,
    "load_from_fp32_weights": True,
    "elastic_checkpoint": False,
    "offload_param": None,
    "offload_optimizer": None,
    "sub_group_size": 1000000,
    "cpu_offload_param": None,
    "cpu_offload_use_pin_memory": None,
    "cpu_offload": None,
    "prefetch_bucket_size": 50000000,
    "param_persistence_threshold": 100000,
    "model_persistence_threshold": 9223372036854775807,
    "max_live_parameters": 1000000000,
    "max_reuse_distance": 1000000000,
    "gather_16bit_weights_on_model_save": False,
    "use_all_reduce_for_fetch_params": False,
    "stage3_gather_fp16_weights_on_model_save": False,
    "ignore_unused_parameters": True,
    "legacy_stage1": False,
    "round_robin_gradients": False,
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False,
    "mics_shard_size": -1,
    "mics_hierarchical_params_gather": False,
    "memory_efficient_linear": True,
    "pipeline_loading_checkpoint": False,
    "override_module_apply": True,
}
#: The rest of it.
AROUND = {
    "activation_checkpointing_config": {"partition_activations": False, "profile": False},
    "aio_config": {"block_size": 1048576, "queue_depth": 8},
    "amp_enabled": False,
    "autotuning_config": {"enabled": False, "metric": "throughput"},
    "bfloat16_enabled": True,
    "compression_config": {},
    "curriculum_enabled_legacy": False,
    "curriculum_params_legacy": False,
    "data_efficiency_config": {"enabled": False, "seed": 1234},
    "data_efficiency_enabled": False,
    "dataloader_drop_last": False,
    "disable_allgather": False,
    "dump_state": False,
    "dynamic_loss_scale_args": None,
    "eigenvalue_enabled": False,
    "eigenvalue_gas_boundary_resolution": 1,
    "eigenvalue_layer_name": "bert.encoder.layer",
    "eigenvalue_layer_num": 0,
    "elasticity_enabled": False,
    "flops_profiler_config": {"enabled": False, "profile_step": 1},
    "fp16_auto_cast": None,
    "fp16_enabled": False,
    "fp16_master_weights_and_gradients": False,
    "global_rank": 0,
    "grad_accum_dtype": None,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "gradient_predivide_factor": 1.0,
    "graph_harvesting": False,
    "hybrid_engine": {"enabled": False, "max_out_tokens": 512},
    "initial_dynamic_scale": 1,
    "load_universal_checkpoint": False,
    "loss_scale": 1.0,
    "memory_breakdown": False,
    "mics_hierarchial_params_gather": False,
    "mics_shard_size": -1,
    "monitor_config": {"tensorboard": {"enabled": False}},
    "nebula_config": {"enabled": False},
    "optimizer_legacy_fusion": False,
    "optimizer_name": None,
    "optimizer_params": None,
    "pipeline": {"stages": "auto", "partition": "best"},
    "pld_enabled": False,
    "pld_params": False,
    "prescale_gradients": False,
    "scheduler_name": None,
    "scheduler_params": None,
    "seq_parallel_communication_data_type": "fp32",
    "sparse_attention": None,
    "sparse_gradients_enabled": False,
    "steps_per_print": 10,
    "timers_config": {"enabled": True, "synchronized": True},
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 1,
    "use_data_before_expert_parallel_": False,
    "use_node_local_storage": False,
    "wall_clock_breakdown": False,
    "weight_quantization_config": None,
    "world_size": 4,
    "zero_allow_untested_optimizer": True,
}


def test_the_configuration_that_a_log_prints_is_read():
    config = read_config({"zero_config": PRINTED, **AROUND})
    assert (config.stage, config.contiguous_gradients, config.overlap_comm) == (2, False, True)
    assert (config.reduce_bucket_size, config.gradient_accumulation_steps) == (1_000_000, 2)
    assert (config.gradient_clipping, config.strategy) == (1.0, "exchange")
    assert config.accumulation_steps(4) == 2


def test_a_file_is_read(tmp_path):
    path = tmp_path / "ds_config.json"
    block = '{"stage": 1, "reduce_bucket_size": 5e8, "reduce_scatter": false}'
    path.write_text(
        f'{{"train_batch_size": 32, "zero_optimization": {block},'
        ' "data_types": {"grad_accum_dtype": "bf16"}}'
    )
    config = read_config(path)
    assert (config.stage, config.reduce_bucket_size) == (1, 500_000_000)
    assert (config.strategy, config.accumulation_dtype) == ("all_reduce", torch.bfloat16)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is no JSON"),
        ("[1]", "holds list; a configuration is an object"),
        ('{"zero_optimization": {"stage": 1, "stage": 2}}', "stage stands twice, as 1 and as 2"),
        ("\ufeff{}", "is no JSON"),
    ],
    ids=["cut", "list", "twice", "byte order mark"],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, text, told):
    path = tmp_path / "ds_config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=told):
        read_config(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nothing\.json cannot be read: No such file"):
        read_config(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("block", "around", "told"),
    [
        ({"stage": 3}, {}, "stage=3 is not done here; choose stage 1 or 2"),
        ({"stage": 0}, {}, "stage=0 is not done here"),
        ({}, {}, "stage is missing"),
        ({"stage": 2, "reduce_bucket_sise": 1}, {}, "did you mean .*reduce_bucket_size"),
        ({"stage": 2, "reduce_bucket_size": 0}, {}, "reduce_bucket_size=0: .*greater than 0"),
        ({"stage": 2, "reduce_bucket_size": "auto"}, {}, "reduce_bucket_size='auto'"),
        ({"stage": 2, "reduce_bucket_size": 1.5}, {}, "reduce_bucket_size=1.5"),
        ({"stage": 2, "overlap_comm": "yes"}, {}, "overlap_comm='yes': .*boolean"),
        ({"stage": 2, "offload_optimizer": {"device": "cpu"}}, {}, "offload_optimizer=.*refused"),
        ({"stage": 2, "cpu_offload": True}, {}, "cpu_offload=True is refused"),
        ({"stage": 2, "zero_quantized_gradients": True}, {}, "quantized_gradients=True is refused"),
        ({"stage": 2, "zero_hpz_partition_size": 8}, {}, "hpz_partition_size=8 is refused"),
        ({"stage": 2, "legacy_stage1": True}, {}, "legacy_stage1=True is refused"),
        ({"stage": 2}, {"fp16": {"enabled": True}}, "fp16 is refused"),
        ({"stage": 2}, {"optimizer": {"type": "Adam"}}, "optimizer is refused.*ZeroOptimizer"),
        ({"stage": 2}, {"loss_scale": 128}, "loss_scale is refused"),
        ({"stage": 2}, {"gradient_cliping": 1.0}, "did you mean gradient_clipping"),
        ({"stage": 2}, {"gradient_clipping": -1.0}, "gradient_clipping=-1.0"),
        ({"stage": 2}, {"gradient_clipping": float("nan")}, "gradient_clipping=nan"),
        ({"stage": 2}, {"gradient_predivide_factor": 0.0}, "gradient_predivide_factor=0.0"),
        ({"stage": 2}, {"communication_data_type": "fp8"}, "communication_data_type='fp8'"),
        ({"stage": 2}, {"gradient_allreduce_op": "max"}, "gradient_allreduce_op='max'"),
        ({"stage": 2}, {"data_types": {"grad_dtype": "fp32"}}, "did you mean data_types.grad_acc"),
    ],
    ids=str,
)
def test_what_is_not_done_is_refused_by_name(block, around, told):
    with pytest.raises(UsageError, match=told):
        read_config({"zero_optimization": block, **around})


def test_a_configuration_without_the_block_says_what_to_write():
    with pytest.raises(UsageError, match=r'no zero_optimization block; write one: \{"stage": 2\}'):
        read_config({"train_batch_size": 8})


def test_every_bad_key_is_told_at_once():
    with pytest.raises(UsageError, match=r"reduce_bucket_size=-1: .*; gradient_clipping=-2\.0: "):
        ZeroConfig(stage=2, reduce_bucket_size=-1, gradient_clipping=-2.0)


@pytest.mark.parametrize(
    ("scatter", "multi", "strategy"),
    [(True, True, "exchange"), (True, False, "reduce"), (False, True, "all_reduce"),
     (False, False, "all_reduce")],
)  # fmt: skip
def test_the_strategy_follows_from_the_keys(scatter, multi, strategy):
    config = ZeroConfig(
        stage=2, reduce_scatter=scatter, use_multi_rank_bucket_allreduce=multi
    )  # fmt: skip
    assert config.strategy == strategy


@given(batch=st.integers(1, 60), micro=st.integers(1, 6), ranks=st.integers(1, 6))
def test_batch_sizes_give_the_steps_or_are_refused(batch, micro, ranks):
    config = ZeroConfig(stage=2, train_batch_size=batch, train_micro_batch_size_per_gpu=micro)
    if batch % (micro * ranks):
        with pytest.raises(UsageError, match=f"train_batch_size={batch} is not"):
            config.accumulation_steps(ranks)
    else:
        assert config.accumulation_steps(ranks) * micro * ranks == batch


@pytest.mark.parametrize("gradient", [torch.float32, torch.bfloat16])
def test_gradients_travel_as_they_are_unless_told_otherwise(gradient):
    assert ZeroConfig(stage=2).comm_dtype(gradient) == gradient
    assert ZeroConfig(stage=2).comm_dtype(gradient, 2) == torch.float32
    told = ZeroConfig(stage=2, communication_data_type="fp16")
    assert told.comm_dtype(gradient) == torch.float16
    assert told.comm_dtype(gradient, 2) == torch.float32


def test_a_written_configuration_is_read_back(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"zero_optimization": PRINTED}))
    assert read_config(str(path)) == read_config({"zero_optimization": PRINTED})
