"""Axolotl's settings as a job: Axolotl sets up TRL's trainers, so its words become TRL's and go the same way.

What is Axolotl's own is here: its defaults, its names, its lists of data sets, its adapters and templates. Read at
Axolotl 067b021.
"""

from collections.abc import Mapping
from typing import Any

from ptctl.errors import InputError
from ptctl.importers.draft import Draft
from ptctl.importers.huggingface import axolotl_data, trl
from ptctl.importers.huggingface.trl_defaults import DEFAULTS
from ptctl.importers.huggingface.words import Words

_RL = {"dpo": "dpo", "ipo": "dpo", "orpo": "orpo", "simpo": "cpo", "kto": "kto", "grpo": "grpo", "gdpo": "grpo"}
_NAMES = {
    "base_model": "model_name_or_path", "revision_of_model": "model_revision",
    "tokenizer_config": "tokenizer_name_or_path",
    "micro_batch_size": "per_device_train_batch_size", "eval_batch_size": "per_device_eval_batch_size",
    "evaluation_strategy": "eval_strategy",
    "optimizer": "optim", "lr_scheduler": "lr_scheduler_type", "num_epochs": "num_train_epochs",
    "sequence_len": "max_length", "sample_packing": "packing", "peft_use_rslora": "use_rslora",
    "peft_use_dora": "use_dora", "noisy_embedding_alpha": "neftune_noise_alpha", "dpo_loss_type": "loss_type",
    "dpo_label_smoothing": "label_smoothing", "rl_beta": "beta", "dpo_beta": "beta", "orpo_alpha": "beta",
    "wandb_name": "run_name", "kto_desirable_weight": "desirable_weight",
    "kto_undesirable_weight": "undesirable_weight",
}  # fmt: skip
"""Axolotl's names, where TRL's are others."""
_OWN_DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 1, "num_train_epochs": 1.0, "lr_scheduler_type": "cosine", "max_length": 512,
    "lora_dropout": 0.0, "save_strategy": "epoch", "warmup_steps": 0.03,
}  # fmt: skip
"""Where Axolotl's defaults are not TRL's; the warm-up is a share of the steps."""
_PLUGINS = {
    "axolotl.integrations.liger": "for GPUs", "axolotl.integrations.cut_cross_entropy": "for GPUs",
    "axolotl.integrations.kernels": "for GPUs",
}  # fmt: skip


def draft_of(values: dict[str, Any], source: str, devices: int | None, environment: Mapping[str, str]) -> Draft:
    """Return the job of the settings. devices: GPUs, None where the settings leave them to the machine."""
    rl = str(values.get("rl") or "").lower()
    is_reward_model = values.get("reward_model") is True
    trainer = _RL.get(rl) if rl else "reward" if is_reward_model else "sft"
    if values.get("process_reward_model") or trainer is None or (rl and is_reward_model):
        what = f"rl: {rl}" if rl else "process_reward_model: true"
        accepted = f"no rl (sft), {', '.join(_RL)}, reward_model: true"
        raise InputError(f"{source}: {what}: no counterpart; accepted: {accepted}",
                         "to run it as it is: runtime.container, with an image that has it")  # fmt: skip
    draft, words = Draft(source), _words(values, trainer)
    words.take("reward_model")
    _put_own(draft, words, rl)
    if words.is_on("use_wandb") or words.is_given("wandb_project"):
        environment = {**_wandb(words), **environment}
        words.values["report_to"] = "wandb"
    trl.put_job(draft, words, trainer, devices, environment)
    axolotl_data.put_data(draft, words, trainer)
    trl.finish(draft, words, devices)
    return draft


def _words(values: dict[str, Any], trainer: str) -> Words:
    """Return the settings by TRL's names; those of its section `trl` stand beside the others."""
    flat: dict[str, Any] = {}
    names: dict[str, str] = {}
    nested = Words(values, {}).mapping("trl")
    own = {**{name: value for name, value in values.items() if name != "trl"}}
    for shown, name, value in [
        *((name, _NAMES.get(name, name), value) for name, value in own.items()),
        *((f"trl.{name}", name, value) for name, value in nested.items()),
    ]:
        if value is None or (name in flat and not shown.startswith("trl.")):
            continue
        flat[name], names[name] = value, shown
    defaults = {**DEFAULTS[trainer], **_OWN_DEFAULTS}
    if trainer in ("grpo", "rloo"):
        flat.pop("max_length", None)
        if "sequence_len" in values:
            flat["sequence_len"], names["sequence_len"] = values["sequence_len"], "sequence_len"
    return Words(flat, defaults, names)


def _put_own(draft: Draft, words: Words, rl: str) -> None:
    """Turn what Axolotl says in another form into TRL's words."""
    words.take("rl")
    values = words.values
    if rl in ("ipo", "simpo"):
        values["loss_type"] = rl
    if rl == "gdpo" and not words.is_given("multi_objective_aggregation"):
        values["multi_objective_aggregation"] = "normalize_then_sum"
    _put_adapter(draft, words)
    _put_template(draft, words)
    _put_plugins(draft, words)
    if words.is_given("processor_type") and not rl:
        draft.put("spec.model.images", True, "processor_type")
        draft.note(words.shown("processor_type"), "model.images; the model's files say how images are read")
        words.take("processor_type")
    if not rl:
        values["loss_on_prompt"] = words.is_on("train_on_inputs")
        strategy = words.text("excess_length_strategy") or "drop, Axolotl's default"
        draft.note(f"excess_length_strategy: {strategy}", "rows longer than sequence_len are cut here")
    if words.is_given("cosine_min_lr_ratio") and words.text("lr_scheduler_type") == "cosine":
        values["lr_scheduler_type"] = "cosine_with_min_lr"
        values["lr_scheduler_kwargs"] = {"min_lr_rate": words.number("cosine_min_lr_ratio")}
    if words.is_given("save_steps"):
        values.setdefault("save_strategy", "steps")
    if words.is_given("eval_steps"):
        values.setdefault("eval_strategy", "steps")
    if not words.is_given("save_total_limit"):
        values["save_total_limit"] = 4
    if words.is_given("sequence_len"):
        draft.note(words.shown("sequence_len"), "trl.max_completion_length and the prompt: training.sequenceLength")
        words.take("sequence_len")


def _put_adapter(draft: Draft, words: Words) -> None:
    adapter = words.text("adapter").lower()
    if adapter not in ("", "lora", "qlora"):
        raise InputError(f"{words.shown('adapter')}: accepted: lora, qlora, or none")
    words.values["use_peft"] = bool(adapter)
    words.used.add("use_peft")
    if adapter == "qlora" and words.is_given("load_in_4bit") and not words.is_on("load_in_4bit"):
        raise InputError(f"{words.shown('load_in_4bit')}: contradicts adapter: qlora; accepted: true, or adapter: lora")
    if adapter == "qlora":
        words.values["load_in_4bit"] = True
    if words.is_on("lora_target_linear"):
        words.values["lora_target_modules"] = "all-linear"
    if start := words.text("lora_model_dir"):
        if "://" in start:
            draft.put("spec.training.lora.from", start, "lora_model_dir")
        else:
            draft.change(words.shown("lora_model_dir"), "new adapters; training.lora.from: gs://… or hf://…")


def _put_template(draft: Draft, words: Words) -> None:
    template = words.text("chat_template")
    if template not in ("", "tokenizer_default"):
        draft.change(
            words.shown("chat_template"), "the model's own template; model.chatTemplate: gs://…/template.jinja"
        )
    if words.is_given("chat_template_jinja"):
        draft.change("chat_template_jinja", "the model's own template; store it and set model.chatTemplate: gs://…")
        words.take("chat_template_jinja")
    for name, token in words.mapping("special_tokens").items():
        if name == "pad_token":
            draft.note(f"special_tokens.{name}: {token}", "padding is masked, whatever its token")
        elif token is not None:
            draft.change(f"special_tokens.{name}: {token}", "the tokenizer's own")
    if message := words.text("default_system_message"):
        draft.put("spec.data.systemPrompt", message, "default_system_message")


def _put_plugins(draft: Draft, words: Words) -> None:
    for plugin in words.several("plugins"):
        reason = next((reason for name, reason in _PLUGINS.items() if plugin.startswith(name)), None)
        if reason:
            draft.note(f"plugins: {plugin}", f"{reason}: XLA compiles the step here")
        else:
            draft.change(f"plugins: {plugin}", "left out: its code is not read")


def _wandb(words: Words) -> dict[str, str]:
    words.take("use_wandb")
    names = {"WANDB_PROJECT": "wandb_project", "WANDB_ENTITY": "wandb_entity"}
    return {variable: words.text(name) for variable, name in names.items() if words.text(name)}
