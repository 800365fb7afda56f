"""Words that become no field: what has no effect on what is learned, with what takes its place, and the rest."""

import re

from ptctl.importers.draft import Draft
from ptctl.importers.huggingface.words import Words

_LOGS = "metrics.jsonl has every step; `ptctl workload metrics`, `logs` and `samples` show them"
_GPU = "for GPUs: XLA compiles the step here, and training.parallelism lays it out"
_MEMORY = "training.remat and `ptctl plan`, which says whether it fits"
_HUB = "upload OUTPUT/NAME/export, which is in Hugging Face's layout, yourself"
_DATA = "rows are read and tokenised while the job trains"
_TOKENIZER = "the files of the model and of its tokenizer say it"
_VLLM = "posttrain's engine samples on the training chips; rollout.engine: vllm is vLLM"
_EVALUATION = "`evaluation`: when data.eval is evaluated"
_RESUME = "a restarted job resumes by itself; checkpoint.fork starts from another run"
_REASONS = {
    r"logging_.*|log_.*|include_.*|disable_tqdm|run_name|project|num_completions_to_print|use_tensorboard|wandb_.*"
    r"|trackio_.*|mlflow_.*|hf_mlflow_.*|comet_.*|(use_)?swanlab.*|use_otel.*|otel_.*|profiler_.*|report_to|debug"
    r"|eval_table.*": _LOGS,
    r"fsdp.*|deepspeed.*|deepcompile|ddp.*|torch_compile.*|tf32|bf16.*|bfloat16|fp16.*|use_liger.*|liger_.*|device.*"
    r"|attn_implementation|flash_.*|xformers_.*|sdp_.*|flex_.*|sage_.*|eager_.*|auto_find_batch_size|local_rank"
    r"|dataloader_.*|full_determinism|parallelism_config|accelerator_config|.*_parallel_(size|degree)|dp_.*|use_cpu"
    r"|tensor_parallel_size|heads_k_stride|ring_attn_func|lora_\w+_kernel|use_kernels|fused_attn_kernel|world_size"
    r"|average_tokens_across_devices|ds3_.*|capabilities|env_capabilities|experimental_.*|use_ray|ray_.*"
    r"|resources_per_worker|pad_to_.*|batch_flattening|padding_free|torch_empty_cache_steps|gc_.*|launcher.*"
    r"|low_cpu_mem_usage|max_memory|gpu_memory_limit|cut_cross_entropy|chunked_cross_entropy.*|tiled_mlp.*|sweep|cloud"
    r"|main_process_port|use_cache|float16|resize_token_embeddings_to_32x|\w+_hybrid_attn_impl"
    r"|use_(scatter|sonic)moe|scattermoe.*|sonicmoe.*|experts_implementation|float32|strict": _GPU,
    r"gradient_checkpointing.*|activation_.*|layer_offloading|selective_checkpointing|lora_on_cpu|bnb_.*"
    r"|use_bnb_nested_quant|qlora_sharded.*|precompute_ref_.*|eval_accumulation_steps|vllm_enable_sleep_mode": _MEMORY,
    r"push_to_hub|hub_.*|save_safetensors|tokenizer_save.*|save_only_model|save_on_each_node|merge_(lora|method)": _HUB,
    r"dataset_(num_proc|processes|prepared_path|keep_in_memory|kwargs|streaming|shard.*|exact_deduplication)|streaming"
    r"|remove_unused_columns|shuffle_.*|group_by_length|train_sampling_strategy|length_column_name|skip_prepare_dataset"
    r"|eval_packing|eval_sample_packing|sample_packing_.*|hf_use_auth_token|push_dataset_to_hub|overwrite_output_dir"
    r"|do_train|do_eval|preprocess_.*|val_file_size|overwrite_cache|preprocessing_num_workers|data_seed": _DATA,
    r"pad_token|tokenizer_use_(fast|mistral_common)|tokenizer_legacy|use_fast|trust_remote_code|tokenizer_type|model_type|processor_type"
    r"|is_\w+_derived_model|base_model_config|use_auth_token|low_cpu.*|lora_task_type|remove_columns": _TOKENIZER,
    r"use_vllm|vllm_.*|cache_implementation|use_transformers_.*|transformers_.*|vllm": _VLLM,
    r"resume_from_checkpoint|auto_resume.*|ignore_data_skip|save_first_step|enable_jit_checkpoint": _RESUME,
    r"load_best_model_at_end|metric_for_best_model|greater_is_better": "checkpoint.best and export.checkpoint: best",
    r"loss_watchdog_.*": "a run whose steps fail in a row stops: training.maxFailedSteps",
    r"disable_dropout": "no model has dropout here",
    r"max_prompt_len(gth)?|max_target_length": "training.sequenceLength limits the whole row",
    r"eval_.*|per_device_eval_batch_size|evals_per_epoch|prediction_loss_only": _EVALUATION,
    r"saves_per_epoch": "checkpoint.everySteps, 50 by default, and at the end",
}  # fmt: skip
"""By form of the word: why it is no field."""
_OFF = ("false", "none", "", "0", "0.0", "[]", "{}")


def note_rest(draft: Draft, words: Words) -> None:
    """Note each word that is left; one that is not known, and switched on, changes what is trained."""
    for name in words.rest():
        reason = next((reason for form, reason in _REASONS.items() if re.fullmatch(form, name)), None)
        if reason is not None:
            draft.note(words.shown(name), reason)
        elif str(words.values[name]).lower() in _OFF:
            draft.note(words.shown(name), "off, as here")
        else:
            draft.change(words.shown(name), "left out: no field does it")
