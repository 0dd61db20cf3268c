"""Options of vLLM that no model version may set, each with the reason.

A version is data that a publisher signs. It may say how its model is run, and not what code runs,
which files or hosts are read, or what Millrace itself decides for a replica.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_CODE: Final = "it loads code"
_FILES: Final = "it reads or writes files outside the version"
_NETWORK: Final = "it opens or configures network connections"
_LOGS: Final = "it may write prompts and answers to logs"
_OURS: Final = "Millrace sets it"
_REPLICA: Final = "it depends on the replica's machine; set it there"
_SERVER: Final = "Millrace does not run vLLM's HTTP server"

_BY_REASON: Final = {
    _CODE: """
        trust_remote_code code_revision model_class_overrides logits_processors io_processor_plugin
        reasoning_parser_plugin tool_parser_plugin worker_cls worker_extension_cls scheduler_cls
        middleware trust_request_chat_template trust_request_mm_kwargs
    """,
    _FILES: """
        hf_config_path allowed_local_media_path download_dir load_format model_loader_extra_config
        ignore_patterns pt_load_map_location mm_encoder_fp8_scale_path
        mm_encoder_fp8_scale_save_path config log_config_file logging_config profiler_config
        lora_modules default_mm_loras ssl_keyfile ssl_certfile ssl_ca_certs spec_model
        enable_ssl_refresh
    """,
    _NETWORK: """
        allowed_media_domains hf_token revision tokenizer_revision master_addr master_port
        data_parallel_address data_parallel_rpc_port data_parallel_hybrid_lb
        data_parallel_external_lb data_parallel_multi_port_external_lb nnodes node_rank
        kv_transfer_config kv_events_config ec_transfer_config ec_manager_config
        weight_transfer_config otlp_traces_endpoint tool_server collect_detailed_traces
        engram_config kv_offloading_backend fault_tolerance_config enable_fault_tolerance
        aux_output_config
    """,
    _LOGS: """
        enable_log_requests enable_log_outputs enable_log_deltas max_log_len log_level
        enable_trace_replay log_error_stack
    """,
    _OURS: """
        model model_tag tokenizer chat_template served_model_name seed scheduling_policy
        stream_interval disable_log_stats aggregate_engine_logging enable_prompt_embeds
        skip_tokenizer_init runner hf_overrides prefix_caching_hash_algo enable_lora
        kv_cache_memory_bytes
        distributed_executor_backend return_tokens_as_token_ids enable_prompt_tokens_details
        enable_force_include_usage fingerprint_mode fingerprint_value response_role
        enable_sleep_mode sleep_mode_offload_cudagraph sleep_preserve_parameter_names
        max_num_queued_reqs max_num_queued_tokens shutdown_timeout use_tqdm_on_load
        show_hidden_metrics_for_version custom_histogram_buckets additional_config
        generation_config override_generation_config enable_return_routed_experts
        return_sampling_mask tokens_only enable_mm_embeds max_logprobs logprobs_mode
        fail_on_environ_validation per_request_spec_decode_metrics kv_cache_metrics
        kv_cache_metrics_sample cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics
        enable_logging_iteration_details jit_monitor_mode jit_monitor_verbose
        enable_request_id_headers
    """,
    _REPLICA: """
        numa_bind numa_bind_nodes numa_bind_cpus device_ids data_parallel_rank
        data_parallel_start_rank data_parallel_size_local data_parallel_backend
        max_parallel_loading_workers ray_workers_use_nsight distributed_timeout_seconds
        cpu_distributed_timeout_seconds gpu_memory_utilization num_gpu_blocks_override
        kv_offloading_size safetensors_load_strategy safetensors_prefetch_num_threads
        safetensors_prefetch_block_size renderer_num_workers enable_elastic_ep
        elastic_ep_max_dp_size enable_nccl_comm_suspend enable_cumem_allocator
        mm_processor_cache_type mm_tensor_ipc max_loras max_cpu_loras max_lora_rank
    """,
    _SERVER: """
        headless api_server_count grpc host port grpc_port uds data_parallel_supervisor_port
        dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s
        dp_supervisor_probe_failure_threshold uvicorn_log_level disable_uvicorn_access_log
        disable_access_log_for_endpoints allow_credentials allowed_origins allowed_methods
        allowed_headers api_key ssl_cert_reqs ssl_ciphers root_path disable_fastapi_docs
        h11_max_incomplete_event_size h11_max_header_count enable_offline_docs
        enable_per_request_metrics enable_server_load_tracking sse_keep_alive_interval
        enable_tokenizer_info_endpoint enable_scale_out cohere_is_reasoning_model cohere_format
        anthropic_disabled_thinking_effort
    """,
}

DENIED: Final[Mapping[str, str]] = MappingProxyType(
    {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
)
"""The reason by option."""

MAPPING_KEYS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "speculative_config": frozenset(
            {
                "method",
                "num_speculative_tokens",
                "prompt_lookup_max",
                "prompt_lookup_min",
                "disable_padded_drafter_batch",
                "rejection_sample_method",
                "draft_sample_method",
                "suffix_decoding_max_tree_depth",
                "suffix_decoding_max_cached_requests",
                "suffix_decoding_max_spec_factor",
                "suffix_decoding_min_token_prob",
            }
        ),
        "compilation_config": frozenset(
            {
                "mode",
                "cudagraph_mode",
                "cudagraph_capture_sizes",
                "max_cudagraph_capture_size",
                "compile_sizes",
                "cudagraph_specialize_lora",
            }
        ),
        "pooler_config": frozenset(
            {
                "pooling_type",
                "seq_pooling_type",
                "tok_pooling_type",
                "use_activation",
                "dimensions",
                "enable_chunked_processing",
                "max_embed_len",
                "logit_mean",
                "logit_sigma",
                "step_tag_id",
                "returned_token_ids",
            }
        ),
        "structured_outputs_config": frozenset(
            {
                "backend",
                "disable_any_whitespace",
                "disable_additional_properties",
                "enable_in_reasoning",
            }
        ),
        "attention_config": frozenset({"backend", "flash_attn_version"}),
        "limit_mm_per_prompt": frozenset({"image", "video", "audio"}),
        "default_chat_template_kwargs": frozenset({"enable_thinking", "reasoning_effort"}),
        "eplb_config": frozenset(
            {"window_size", "step_interval", "num_redundant_experts", "use_async", "policy"}
        ),
    }
)
"""The keys that an option whose value is an object may have; of other such options, none."""
