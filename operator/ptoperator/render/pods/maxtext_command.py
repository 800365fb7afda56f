"""A job in MaxText's arguments: `python3 -m maxtext.trainers.post_train.rl.train_rl key=value …`, or `…sft.train_sft`.

Read at MaxText e591f30 (2026-08-22): docs/tutorials/posttraining, configs/post_train/rl.yml and sft.yml,
configs/types.py. A number that the spec has is always arguments, so that a job means the same here and in posttrain's
trainer, whatever MaxText's defaults are. `ptapi.validation.rules.pods.maxtext` refuses what has no word. MaxText takes
the Hugging Face token from HF_TOKEN, so it never stands among the arguments.
"""

from ptapi.defaults import ADAMW, CLIPS, LEARNING_RATES
from ptapi.spec import DataSource, PostTrainJobSpec
from ptapi.spec.pods.runtime import MaxTextRuntime
from ptapi.validation.accelerator_rules import mesh_sizes
from ptoperator.render.layout import Layout

RL_MODULE = "maxtext.trainers.post_train.rl.train_rl"
SFT_MODULE = "maxtext.trainers.post_train.sft.train_sft"
_HUB = "hf://datasets/"

Arguments = dict[str, object]


def command(layout: Layout) -> tuple[str, ...]:
    """Return the module to run."""
    return ("python3", "-m", RL_MODULE if layout.job.spec.algorithm.grpo else SFT_MODULE)


def args(layout: Layout, runtime: MaxTextRuntime) -> tuple[str, ...]:
    """Return its arguments; the job's own come last and replace ours."""
    ours = {**_common(layout, runtime), **(_rl(layout) if layout.job.spec.algorithm.grpo else _sft(layout))}
    theirs = {word.partition("=")[0] for word in runtime.args}
    arguments = [f"{key}={_text(value)}" for key, value in ours.items() if key not in theirs and value is not None]
    return (*arguments, *runtime.args)


def _common(layout: Layout, runtime: MaxTextRuntime) -> Arguments:
    spec = layout.job.spec
    optimizer, training = spec.training.optimizer, spec.training
    return {
        "model_name": runtime.model_name,
        "load_parameters_path": spec.model.uri,
        "tokenizer_path": spec.model.tokenizer.removeprefix("hf://") if spec.model.tokenizer else None,
        "run_name": layout.name,
        "base_output_directory": spec.output.uri.rstrip("/"),
        "max_target_length": training.sequence_length,
        "learning_rate": optimizer.learning_rate or LEARNING_RATES[spec.algorithm.kind],
        "adam_b1": ADAMW.beta1 if optimizer.beta1 is None else optimizer.beta1,
        "adam_b2": ADAMW.beta2 if optimizer.beta2 is None else optimizer.beta2,
        "adam_weight_decay": optimizer.weight_decay,
        "gradient_clipping_threshold": optimizer.max_grad_norm,
        "warmup_steps_fraction": training.schedule.warmup_fraction,
        "data_shuffle_seed": training.seed,
        "checkpoint_period": spec.checkpoint.every_steps,
        "eval_interval": spec.evaluation.every_steps or -1,
    }


def _rl(layout: Layout) -> Arguments:
    spec, training = layout.job.spec, layout.job.spec.training
    grpo = spec.algorithm.grpo
    assert grpo is not None
    micro = training.micro_batch_size
    return {
        "loss_algo": grpo.loss,
        "num_generations": grpo.group_size,
        "num_iterations": grpo.updates_per_batch,
        "grpo_beta": grpo.beta,
        "grpo_epsilon": CLIPS[grpo.loss][0] if grpo.clip_low is None else grpo.clip_low,
        "num_batches": (training.steps or 0) // grpo.updates_per_batch,
        "batch_size": training.batch_size // grpo.group_size,
        "train_micro_batch_size": None if micro is None else micro // grpo.group_size,
        "max_prefill_predict_length": training.sequence_length - spec.rollout.max_new_tokens,
        "decode_sampling_temperature": spec.rollout.temperature,
        "decode_sampling_nucleus_p": spec.rollout.top_p,
        "decode_sampling_top_k": spec.rollout.top_k or -1,
        "max_num_checkpoints_to_keep": spec.checkpoint.keep,
        # MaxText's "chips" are JAX devices: its own command for tpu7x says 8 of a VM with 4.
        "chips_per_vm": layout.accelerator.devices // layout.hosts,
        **_rl_data(spec),
    }


def _rl_data(spec: PostTrainJobSpec) -> Arguments:
    name, files = _hub(spec.data.train)
    arguments: Arguments = {
        "dataset_name": name,
        "train_split": spec.data.train.split or "train",
        "hf_train_files": files,
    }
    held_out = spec.data.eval
    if held_out is None or held_out.limit is None:
        return {**arguments, "num_test_batches": 0}
    batch = min(spec.evaluation.batch_size, held_out.limit)
    eval_name, eval_files = _hub(held_out)
    return {
        **arguments,
        "eval_dataset_name": eval_name,
        "eval_split": held_out.split or "test",
        "hf_eval_files": eval_files,
        "eval_batch_size": batch,
        "num_test_batches": held_out.limit // batch,
    }


def _sft(layout: Layout) -> Arguments:
    spec, training = layout.job.spec, layout.job.spec.training
    sft = spec.algorithm.sft
    assert sft is not None
    micro = training.micro_batch_size or training.batch_size
    return {
        "steps": training.steps,
        "per_device_batch_size": micro / layout.accelerator.total_devices,
        "gradient_accumulation_steps": training.batch_size // micro,
        "sft_train_on_completion_only": not sft.loss_on_prompt,
        "packing": sft.packing,
        "adam_eps": training.optimizer.eps or ADAMW.eps,
        "learning_rate_final_fraction": training.schedule.final_fraction,
        **_mesh(layout),
        **_sft_data(spec),
        **(_SINGLE_CONTROLLER if layout.is_pathways else {}),
    }


_SINGLE_CONTROLLER: Arguments = {
    "checkpoint_storage_use_zarr3": False,
    "checkpoint_storage_use_ocdbt": False,
    "enable_single_controller": True,
}


def _mesh(layout: Layout) -> Arguments:
    """Return axes within a slice and across slices; across slices there are only copies of the model."""
    sizes = mesh_sizes(layout.job.spec.training.parallelism, layout.accelerator)
    across = layout.slices if sizes["data"] % layout.slices == 0 else 1
    return {
        "dcn_data_parallelism": across,
        "ici_data_parallelism": sizes["data"] // across,
        "ici_fsdp_parallelism": sizes["fsdp"] if across == layout.slices else -1,
        "ici_tensor_parallelism": sizes["tensor"],
        "ici_expert_parallelism": sizes["expert"],
    }


def _sft_data(spec: PostTrainJobSpec) -> Arguments:
    train, held_out = spec.data.train, spec.data.eval
    columns = [train.columns.messages] if train.columns.messages else [train.columns.prompt, train.columns.completion]
    named = [column for column in columns if column]
    name, files = _hub(train)
    arguments: Arguments = {
        "dataset_type": "hf",
        "hf_path": name,
        "hf_train_files": files,
        "train_split": train.split or "train",
        "train_data_columns": named or None,
    }
    if held_out is None:
        return arguments
    return {
        **arguments,
        "hf_eval_split": held_out.split or "test",
        "hf_eval_files": _hub(held_out)[1],
        "eval_data_columns": named or None,
    }


def _hub(data: DataSource) -> tuple[str, str | None]:
    """Return a data set's name and, unless it is whole, its files; a bucket's files are JSON Lines or Parquet."""
    if not data.uri.startswith(_HUB):
        return ("parquet" if data.uri.endswith(".parquet") else "json"), data.uri
    organisation, _, rest = data.uri.removeprefix(_HUB).partition("/")
    name, _, path = rest.partition("/")
    return f"{organisation}/{name}", data.uri if path else None


def _text(value: object) -> str:
    """Return a value as OmegaConf reads it: numbers plain, whole ones without a point, lists in brackets."""
    if isinstance(value, list):
        return "[" + ",".join(f"'{each}'" for each in value) + "]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
