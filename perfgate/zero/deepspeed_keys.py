"""The keys of a DeepSpeed configuration besides those of :class:`~perfgate.zero.ZeroConfig`.

Three kinds: keys that act at stage 3 only (DeepSpeed ignores them at stages 1 and 2, and so does
this), keys that watch or store and leave gradients alone, and keys that change what is trained,
which are refused unless they are off.
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


STAGE_3_ONLY = _names(
    "sub_group_size prefetch_bucket_size param_persistence_threshold model_persistence_threshold "
    "max_live_parameters max_reuse_distance gather_16bit_weights_on_model_save "
    "gather_fp16_weights_on_model_save module_granularity_threshold "
    "use_all_reduce_for_fetch_params allgather_sequential memory_efficient_linear "
    "override_module_apply log_trace_cache_warnings enable_sanity_checks leaf_module "
    "save_muon_momentum_buffer_in_memory load_from_fp32_weights"
)

REFUSED_IN_BLOCK = {
    "offload_param": "parameters stay where they are",
    "offload_optimizer": "optimizer states stay where the parameters are",
    "cpu_offload": "optimizer states stay where the parameters are",
    "cpu_offload_param": "parameters stay where they are",
    "cpu_offload_use_pin_memory": "nothing is offloaded",
    "zenflow": "nothing is offloaded",
    "elastic_checkpoint": "no checkpoint is written here",
    "pipeline_loading_checkpoint": "no checkpoint is read here",
    "legacy_stage1": "there is one stage 1",
    "zero_quantized_weights": "parameters are gathered as they are",
    "zero_quantized_nontrainable_weights": "parameters are gathered as they are",
    "zero_quantized_gradients": "gradients travel in communication_data_type",
    "zero_hpz_partition_size": "partitions span the whole group",
    "mics_shard_size": "partitions span the whole group",
    "mics_hierarchical_params_gather": "partitions span the whole group",
}

HONOURED_OUTSIDE = _names(
    "gradient_accumulation_steps train_batch_size train_micro_batch_size_per_gpu "
    "gradient_clipping prescale_gradients gradient_predivide_factor gradient_allreduce_op "
    "communication_data_type seq_parallel_communication_data_type"
)

LEAVES_GRADIENTS_ALONE = _names(
    "activation_checkpointing aio autotuning bf16 bfloat16 checkpoint comms_logger csv_monitor "
    "comet tensorboard wandb monitor dataloader_drop_last dump_state flops_profiler "
    "graph_harvesting load_universal_checkpoint log_level memory_breakdown nebula "
    "optimizer_legacy_fusion steps_per_print timers use_data_before_expert_parallel "
    "use_node_local_storage wall_clock_breakdown world_size global_rank "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer eigenvalue_layer_name "
    "eigenvalue_layer_num eigenvalue_gas_boundary_resolution curriculum_params_legacy pld_params "
    "disable_python_gc initial_dynamic_scale dynamic_loss_scale_args pipeline "
    "scheduler_params optimizer_params"
)

CHANGES_TRAINING = _names(
    "amp compression_training compression curriculum_learning curriculum_enabled_legacy "
    "data_efficiency disable_allgather eigenvalue elasticity fp16 fp16_auto_cast "
    "fp16_master_weights_and_gradients grad_accum_dtype hybrid_engine loss_scale optimizer "
    "optimizer_name pld progressive_layer_drop scheduler scheduler_name sparse_attention "
    "sparse_gradients torch_autocast weight_quantization managed_gradient_accumulation "
    "tensor_parallel expert_parallel mics_shard_size mics_hierarchial_params_gather"
)

NEUTRAL = {"zero_hpz_partition_size": 1, "mics_shard_size": -1, "loss_scale": 1}
"""Sizes and scales at which a refused key does nothing."""
