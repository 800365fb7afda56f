"""What every trainer of Hugging Face's has: batch, length of the run, optimizer, schedule, adapters, number formats."""

import math
import re
from typing import Any

from ptctl.importers.draft import Draft
from ptctl.importers.huggingface.words import Words, as_number

_OPTIMIZERS = {
    "adamw": r"adamw_(torch|hf|apex|torch_npu|torch_xla)(_fused|_xla)?|adamw_anyprecision|optimi_adamw|flash_adamw"
    r"|(paged_|ao_)?adamw(_torch|_bnb)?(_(8|4|32)bit|_fp8)?",
    "adafactor": r"adafactor",
    "lion": r"(paged_|flash_)?lion(_(8|32)bit)?",
    "muon": r"muon",
}
_NO_CLIPPING = 1e6
"""The largest norm that the spec takes."""
_SMALL_STATE = r".*(8bit|4bit|fp8|paged).*"
_SCHEDULES = {
    "linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant",
    "cosine_with_min_lr": "cosine",
}  # fmt: skip
_ATTENTION, _MLP = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"}
_HEADS = {"embed_tokens", "lm_head"}


def put_training(draft: Draft, words: Words, devices: int | None, *, per_row: int = 1) -> None:
    """Write the fields of `training`. devices: GPUs, None where only the machine knows; per_row: sequences of a row."""
    _put_batch(draft, words, devices, per_row)
    steps = words.whole("max_steps")
    epochs = words.number("num_train_epochs")
    if steps > 0:
        draft.put("spec.training.steps", steps, "max_steps")
    else:
        draft.put("spec.training.epochs", int(epochs) if epochs == int(epochs) else epochs, "num_train_epochs")
    _put_optimizer(draft, words)
    _put_schedule(draft, words, steps)
    if words.is_given("neftune_noise_alpha"):
        draft.put("spec.training.neftuneAlpha", words.number("neftune_noise_alpha"), "neftune_noise_alpha")
    draft.put("spec.training.seed", words.whole("seed"), "seed")
    has_adapter = _put_adapter(draft, words)
    _put_numbers(draft, words, has_adapter)


def _put_batch(draft: Draft, words: Words, devices: int | None, per_row: int) -> None:
    of_one = words.whole("per_device_train_batch_size") * words.whole("gradient_accumulation_steps") * per_row
    if devices is not None:
        return draft.put("spec.training.batchSize", of_one * devices, "per_device_train_batch_size")
    pairs = ", two for each pair" if per_row == 2 else ""
    hint = f"sequences per step: {of_one} (per device × accumulation{pairs}) × the number of GPUs that it ran on"
    return draft.blank("spec.training.batchSize", math.lcm(of_one, 64), hint)


def _put_optimizer(draft: Draft, words: Words) -> None:
    given = words.text("optim").lower()
    name = next((ours for ours, form in _OPTIMIZERS.items() if re.fullmatch(form, given)), None)
    if name is None:
        draft.change(words.shown("optim"), f"adamw is used; accepted: {', '.join(_OPTIMIZERS)}")
        name = "adamw"
    elif re.fullmatch(_SMALL_STATE, given):
        draft.note(words.shown("optim"), "its state is float32 here, split over all chips")
    optimizer: dict[str, Any] = {} if name == "adamw" else {"name": name}
    optimizer["learningRate"] = words.number("learning_rate")
    if name in ("adamw", "lion"):
        optimizer |= {"beta1": words.number("adam_beta1"), "beta2": words.number("adam_beta2")}
    if name == "adamw":
        optimizer["eps"] = words.number("adam_epsilon")
    optimizer["weightDecay"] = words.number("weight_decay")
    optimizer["maxGradNorm"] = words.number("max_grad_norm") or _NO_CLIPPING
    draft.put("spec.training.optimizer", optimizer, "optim")


def _put_schedule(draft: Draft, words: Words, steps: int) -> None:
    given = words.text("lr_scheduler_type").lower().removeprefix("schedulertype.")
    kind = _SCHEDULES.get(given)
    if kind is None:
        draft.change(words.shown("lr_scheduler_type"), f"cosine is used; accepted: {', '.join(_SCHEDULES)}")
    options, shown = words.mapping("lr_scheduler_kwargs"), words.shown("lr_scheduler_kwargs")
    schedule: dict[str, Any] = {"kind": kind or "cosine"}
    draft.put("spec.training.schedule", schedule, "lr_scheduler_type")
    if schedule["kind"] != "constant":
        least = options.get("min_lr_rate")
        if least is None and options.get("min_lr") is not None:
            least = as_number(options["min_lr"], shown) / words.number("learning_rate")
        schedule["finalFraction"] = as_number(least or 0.0, shown)
    if given != "constant":
        _put_warmup(draft, words, steps)
    else:
        schedule["warmupFraction"] = 0.0
        for name in ("warmup_steps", "warmup_ratio"):
            if words.is_given(name):
                words.take(name)
                draft.note(words.shown(name), "a constant rate has no warm-up there, and none here")


def _put_warmup(draft: Draft, words: Words, steps: int) -> None:
    path = "spec.training.schedule.warmupFraction"
    ratio = words.number("warmup_ratio") if words.is_given("warmup_ratio") else None
    count = words.number("warmup_steps") if words.is_given("warmup_steps") or ratio is None else 0.0
    if ratio is not None and count == 0:
        draft.put(path, ratio, "warmup_ratio")
    elif count < 1:
        draft.put(path, count, "warmup_steps")
    elif steps > 0:
        draft.put(path, round(min(1.0, count / steps), 6), "warmup_steps")
    else:
        draft.blank(path, 0.03, f"{count:g} steps as a share of all steps, which depend on the data")


def _put_adapter(draft: Draft, words: Words) -> bool:
    for name in ("load_in_4bit", "load_in_8bit"):
        if words.is_on(name) and not words.is_on("use_peft"):
            draft.change(words.shown(name), "all weights are trained, none is quantised")
    if not words.is_on("use_peft"):
        for name in words.rest():
            if name.startswith("lora_") and not name.endswith("_kernel"):
                words.take(name)
                draft.note(words.shown(name), "no adapter is trained, there or here")
        return False
    lora: dict[str, Any] = {"rank": words.whole("lora_r"), "alpha": words.number("lora_alpha")}
    _put_targets(draft, words, lora)
    if dropout := words.number("lora_dropout"):
        lora["dropout"] = dropout
    if words.is_on("use_rslora"):
        lora["rsLora"] = True
    if words.is_on("use_dora"):
        draft.change(words.shown("use_dora"), "plain LoRA")
    draft.put("spec.training.lora", lora, "use_peft")
    if words.is_on("load_in_4bit") or words.is_on("load_in_8bit"):
        weights = "nf4" if words.is_on("load_in_4bit") else "int8"
        draft.put("spec.training.quantization", {"weights": weights}, "load_in_4bit")
    return True


def _put_targets(draft: Draft, words: Words, lora: dict[str, Any]) -> None:
    targets = set(words.several("lora_target_modules"))
    if targets in ({"all-linear"}, _ATTENTION | _MLP):
        lora["targets"] = "all-linear"
    elif targets in (_ATTENTION, _MLP):
        lora["targets"] = "attention" if targets == _ATTENTION else "mlp"
    else:
        lora["targets"] = "attention" if targets <= _ATTENTION else "mlp" if targets <= _MLP else "all-linear"
        named = ", ".join(sorted(targets)) or "unset: PEFT's for the model, usually q_proj and v_proj"
        draft.change(f"{words.names.get('lora_target_modules', 'lora_target_modules')}: {named}",
                     f"adapters on {lora['targets']}; accepted: all-linear, attention, mlp")  # fmt: skip
    saved = set(words.several("lora_modules_to_save"))
    if saved:
        if saved & _HEADS:
            lora["embeddings"] = True
        draft.change(
            words.shown("lora_modules_to_save"), "they get adapters, or are not trained, instead of all weights"
        )


def _put_numbers(draft: Draft, words: Words, has_adapter: bool) -> None:
    kind = words.text("dtype")
    if kind in ("bfloat16", "bf16") and not has_adapter:
        draft.put("spec.training.precision.params", "bfloat16", "dtype")
    elif words.is_given("dtype"):
        draft.note(words.shown("dtype"), "weights that are trained are float32, products of matrices bfloat16")
    if words.text("fp16").lower() == "true":
        draft.note(words.shown("fp16"), "TPUs compute in bfloat16, which needs no loss scaling")


def put_checkpoints(draft: Draft, words: Words) -> None:
    """Write when the run is saved."""
    strategy, every = words.text("save_strategy"), words.number("save_steps")
    if strategy == "steps" and every >= 1:
        draft.put("spec.checkpoint.everySteps", int(every), "save_steps")
    elif strategy != "steps" or every:
        shown = words.shown("save_strategy" if strategy != "steps" else "save_steps")
        draft.note(shown, "checkpoint.everySteps, 50 by default, and at the end; a restart needs them")
    if words.is_given("save_total_limit"):
        draft.put("spec.checkpoint.keep", max(1, words.whole("save_total_limit")), "save_total_limit")
    else:
        words.take("save_total_limit")
        draft.note("save_total_limit: unset", "all are kept there, the newest two here: checkpoint.keep")


def put_evaluation(draft: Draft, words: Words, devices: int | None) -> None:
    """Write when held-out data are evaluated; `data.eval` is there already."""
    strategy = words.text("eval_strategy")
    every = words.number("eval_steps") if words.is_given("eval_steps") else words.number("logging_steps")
    if strategy == "steps" and every >= 1:
        draft.put("spec.evaluation.everySteps", int(every), "eval_steps")
    elif strategy == "steps":
        draft.note(words.shown("eval_steps"), "evaluated at the end; evaluation.everySteps: every N steps")
    elif strategy == "epoch":
        draft.note(words.shown("eval_strategy"), "evaluated at the end; evaluation.everySteps: every N steps")
    draft.put("spec.evaluation.atStart", words.is_on("eval_on_start"), "eval_on_start")
    if devices is not None:
        draft.put("spec.evaluation.batchSize", words.whole("per_device_eval_batch_size") * devices, "eval")
