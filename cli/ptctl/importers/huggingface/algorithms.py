"""Each of TRL's trainers as an algorithm of the spec, with what TRL does where a word is not given."""

from collections.abc import Callable
from typing import Any

from ptctl.importers.draft import Draft
from ptctl.importers.huggingface.rewards import put_rewards
from ptctl.importers.huggingface.words import Words

_GRPO_LOSSES = {"grpo": "grpo", "dapo": "dapo", "dr_grpo": "dr-grpo", "cispo": "cispo", "sapo": "sapo",
                "luspo": "luspo", "vespo": "vespo"}  # fmt: skip
_DPO_LOSSES = ("sigmoid", "robust", "ipo", "hinge")
_GAMMA_WEIGHT = {"positivePower": "vespo_k_pos", "positiveDecay": "vespo_lambda_pos",
                 "negativePower": "vespo_k_neg", "negativeDecay": "vespo_lambda_neg"}  # fmt: skip
_ADAPTIVE = {"target": "entropy_target", "delta": "entropy_coef_delta", "lowest": "entropy_coef_min",
             "highest": "entropy_coef_max"}  # fmt: skip
_SCALES = {"group": "group", "true": "group", "batch": "batch", "none": "centered", "false": "centered"}
_SEQUENCE_LEVEL = {"sequence": "gspo", "sequence_token": "gspo-token"}
_WHOLE = (
    "TRL learns whole conversations, and of rows with prompt and completion the completion alone: "
    "for such rows algorithm.sft.lossOnPrompt=false"
)
_PROMPT_TOKENS = 512
"""Room for a prompt where the source limits none: TRL's own limit while it had one."""


def _put_sft(draft: Draft, words: Words) -> None:
    sft: dict[str, Any] = {}
    loss = words.text("loss_type")
    if loss not in ("nll", "chunked_nll", "dft"):
        draft.change(words.shown("loss_type"), "nll is trained; accepted: nll, dft")
    elif loss == "dft":
        sft["loss"] = "dft"
    if smoothing := words.number("label_smoothing_factor"):
        sft["labelSmoothing"] = smoothing
    sft |= {"lossOnPrompt": _is_loss_on_prompt(draft, words), "packing": words.is_on("packing")}
    if sft["packing"] and words.text("packing_strategy") != "bfd":
        draft.note(words.shown("packing_strategy"), "rows are packed whole (best fit), and none is cut to fill another")
    draft.put("spec.algorithm", {"sft": sft}, "sft")
    _put_length(draft, words)


def _is_loss_on_prompt(draft: Draft, words: Words) -> bool:
    if words.is_given("loss_on_prompt"):  # Axolotl says it
        return words.is_on("loss_on_prompt")
    if words.is_on("assistant_only_loss") or words.is_given("completion_only_loss"):
        return not (words.is_on("assistant_only_loss") or words.is_on("completion_only_loss"))
    words.take("completion_only_loss")
    draft.note("assistant_only_loss, completion_only_loss: unset", _WHOLE)
    return True


def _put_dpo(draft: Draft, words: Words) -> None:
    losses = words.several("loss_type")
    loss = losses[0] if losses else "sigmoid"
    if loss not in _DPO_LOSSES or len(losses) > 1:
        draft.change(words.shown("loss_type"), f"sigmoid is trained; accepted: one of {', '.join(_DPO_LOSSES)}")
        loss = "sigmoid"
    dpo: dict[str, Any] = {"loss": loss, "beta": words.number("beta")}
    if smoothing := words.number("label_smoothing"):
        dpo["labelSmoothing"] = smoothing
    if words.text("f_divergence_type").rpartition(".")[2].lower() != "reverse_kl":
        draft.change(words.shown("f_divergence_type"), "reverse KL")
    draft.put("spec.algorithm", {"dpo": dpo}, "dpo")
    _put_length(draft, words)


def _put_orpo(draft: Draft, words: Words) -> None:
    words.take("loss_type")
    draft.put("spec.algorithm", {"dpo": {"loss": "orpo", "beta": words.number("beta")}}, "orpo")
    _put_length(draft, words)


def _put_cpo(draft: Draft, words: Words) -> None:
    dpo = {"loss": "simpo", "beta": words.number("beta"), "margin": words.number("simpo_gamma")}
    if words.text("loss_type") != "simpo":
        draft.change(words.shown("loss_type"), "simpo is trained; accepted: simpo")
    if words.number("cpo_alpha"):
        draft.change(words.shown("cpo_alpha") if words.is_given("cpo_alpha") else "cpo_alpha: 1.0, TRL's default",
                     "no likelihood loss beside simpo's; accepted: 0")  # fmt: skip
    draft.put("spec.algorithm", {"dpo": dpo}, "cpo")
    _put_length(draft, words)


def _put_kto(draft: Draft, words: Words) -> None:
    loss = {"kto": "kto", "apo_zero_unpaired": "apo-zero"}.get(words.text("loss_type"))
    if loss is None:
        draft.change(words.shown("loss_type"), "kto is trained; accepted: kto, apo_zero_unpaired")
    kto: dict[str, Any] = {"loss": loss or "kto", "beta": words.number("beta")}
    kto |= {
        "desirableWeight": words.number("desirable_weight"),
        "undesirableWeight": words.number("undesirable_weight"),
    }
    draft.put("spec.algorithm", {"kto": kto}, "kto")
    draft.note("kto", "the KL is estimated over the whole batch, where TRL does so over each device's rows")
    _put_length(draft, words)


def _put_reward(draft: Draft, words: Words) -> None:
    centering = "center_rewards_coefficient"
    reward = {"centering": words.number(centering)} if words.is_given(centering) else {}
    draft.put("spec.algorithm", {"reward": reward}, "reward")
    draft.note("reward", "pairs longer than sequenceLength lose the beginning of their prompt; TRL leaves them out")
    _put_length(draft, words)


def _put_grpo(draft: Draft, words: Words) -> None:
    grpo: dict[str, Any] = {"loss": _grpo_loss(draft, words), "groupSize": words.whole("num_generations")}
    _put_advantage(draft, words, grpo)
    low = words.number("epsilon")
    high = words.number("epsilon_high") if words.is_given("epsilon_high") else low
    if grpo["loss"] == "sapo":
        grpo["softClip"] = _temperatures(words)
    elif grpo["loss"] == "vespo":
        grpo["gammaWeight"] = {ours: words.number(name) for ours, name in _GAMMA_WEIGHT.items() if words.is_given(name)}
    else:
        grpo |= {"clipHigh": high} if grpo["loss"] == "cispo" else {"clipLow": low, "clipHigh": high}
    if grpo["loss"] not in ("sapo", "cispo", "vespo") and words.is_given("delta"):
        grpo["dualClip"] = words.number("delta")
    if words.is_given("off_policy_mask_threshold"):
        grpo["offPolicyThreshold"] = words.number("off_policy_mask_threshold")
    _put_kl(words, grpo)
    _put_reference_sync(draft, words, grpo)
    if words.is_on("use_vllm") and words.is_on("vllm_importance_sampling_correction"):
        grpo["samplerCorrection"] = _correction(draft, words)
        if grpo["loss"] == "vespo" and grpo["samplerCorrection"]["mode"].startswith("sequence"):
            draft.change("vllm_importance_sampling_mode with vespo", "token-truncate, cut at 2")
            del grpo["samplerCorrection"]
    if (share := words.number("top_entropy_quantile")) != 1.0:
        grpo["topEntropyQuantile"] = share
    _put_entropy_bonus(draft, words, grpo)
    _put_on_policy(draft, words, grpo)


def _grpo_loss(draft: Draft, words: Words) -> str:
    given, level = words.text("loss_type"), words.text("importance_sampling_level")
    loss = _GRPO_LOSSES.get(given)
    if loss is None:
        draft.change(words.shown("loss_type"), f"dapo is trained; accepted: {', '.join(_GRPO_LOSSES)}")
    if loss == "luspo":
        if level != "sequence":
            draft.change(words.shown("importance_sampling_level"), "sequence, as luspo's paper has it")
        return loss
    if level == "token":
        return loss or "dapo"
    if level in _SEQUENCE_LEVEL and given != "grpo":
        shown = words.shown("loss_type") if words.is_given("loss_type") else f"loss_type: {given}, TRL's default"
        draft.change(f"{shown} with {words.shown('importance_sampling_level')}",
                     f"{_SEQUENCE_LEVEL[level]}, which is the mean over sequences")  # fmt: skip
    elif level not in _SEQUENCE_LEVEL:
        draft.change(words.shown("importance_sampling_level"), "token")
        return loss or "dapo"
    return _SEQUENCE_LEVEL[level]


def _put_advantage(draft: Draft, words: Words, grpo: dict[str, Any]) -> None:
    scale = words.text("scale_rewards").lower()
    if scale not in _SCALES:
        draft.change(words.shown("scale_rewards"), f"group is used; accepted: {', '.join(_SCALES)}")
    grpo["advantage"] = _SCALES.get(scale, "group")
    aggregation = words.text("multi_objective_aggregation")
    if aggregation == "normalize_then_sum":
        grpo["combineRewards"] = "z-scores"
    elif aggregation != "sum_then_normalize":
        draft.change(words.shown("multi_objective_aggregation"), "rewards are summed, then normalised")


def _temperatures(words: Words) -> dict[str, float]:
    names = {"positive": ("sapo_temperature_pos", 1.0), "negative": ("sapo_temperature_neg", 1.05)}
    return {ours: words.number(name) if words.is_given(name) else default for ours, (name, default) in names.items()}


def _put_kl(words: Words, grpo: dict[str, Any]) -> None:
    if beta := words.number("beta"):
        grpo |= {"beta": beta, "kl": "k3"}


def _put_entropy_bonus(draft: Draft, words: Words, grpo: dict[str, Any]) -> None:
    coefficient, is_adaptive = words.number("entropy_coef"), words.is_on("use_adaptive_entropy")
    if coefficient < 0:
        draft.change(words.shown("entropy_coef"), "no loss on entropy; accepted: at least 0")
        coefficient = 0.0
    if coefficient or is_adaptive:
        grpo["entropyBonus"] = {"coefficient": coefficient}
    if is_adaptive:
        grpo["entropyBonus"]["adaptive"] = {ours: words.number(name) for ours, name in _ADAPTIVE.items()}
        return
    for name in _ADAPTIVE.values():
        if words.is_given(name):
            words.take(name)
            draft.note(words.shown(name), "means nothing without use_adaptive_entropy")


def _put_reference_sync(draft: Draft, words: Words, grpo: dict[str, Any]) -> None:
    is_on, steps, mixup = words.is_on("sync_ref_model"), "ref_model_sync_steps", "ref_model_mixup_alpha"
    if is_on and "beta" in grpo and not words.is_on("use_peft"):
        grpo["referenceSync"] = {"everySteps": words.whole(steps), "mixup": words.number(mixup)}
        return
    if is_on:
        draft.change(words.shown("sync_ref_model"), "the reference stays; TRL refuses it without beta, and with PEFT")
    for name in (steps, mixup):
        if words.is_given(name):
            words.take(name)
            draft.note(words.shown(name), "means nothing without a reference that follows")


def _correction(draft: Draft, words: Words) -> dict[str, Any]:
    mode = words.text("vllm_importance_sampling_mode").replace("_", "-")
    cap = "vllm_importance_sampling_cap" if words.is_given("vllm_importance_sampling_cap") else ""
    highest = words.number(cap or "vllm_importance_sampling_clip_max")
    if mode not in ("token-truncate", "token-mask", "sequence-truncate", "sequence-mask"):
        draft.change(words.shown("vllm_importance_sampling_mode"), "sequence-mask")
        mode = "sequence-mask"
    name = "vllm_importance_sampling_clip_min"
    return {"mode": mode, **({"lowest": words.number(name)} if words.is_given(name) else {}), "highest": highest}


def _put_rloo(draft: Draft, words: Words) -> None:
    grpo: dict[str, Any] = {"loss": "rloo", "groupSize": words.whole("num_generations")}
    low = words.number("epsilon")
    grpo |= {"clipLow": low, "clipHigh": words.number("epsilon_high") if words.is_given("epsilon_high") else low}
    _put_kl(words, grpo)
    if words.is_on("normalize_advantages"):
        draft.change(words.shown("normalize_advantages"), "advantages are not normalised over the batch")
    draft.change("rloo", "TRL clips the ratio of whole sequences and takes a KL penalty off the reward; here the ratio "
                 "is a token's, the mean is over tokens, and the KL stands in the loss")  # fmt: skip
    _put_on_policy(draft, words, grpo)


def _put_on_policy(draft: Draft, words: Words, grpo: dict[str, Any]) -> None:
    """Write what GRPO and RLOO share: updates, sampling and rewards."""
    if (updates := words.whole("num_iterations")) > 1:
        grpo["updatesPerBatch"] = updates
    if words.is_on("mask_truncated_completions"):
        grpo["maskTruncated"] = True
    draft.put("spec.algorithm", {"grpo": grpo}, "grpo")
    steps = words.whole("steps_per_generation") if words.is_given("steps_per_generation") else None
    if steps not in (None, words.whole("gradient_accumulation_steps")):
        draft.change(words.shown("steps_per_generation"), "each optimizer step samples its own completions")
    if words.is_given("generation_batch_size"):
        draft.change(words.shown("generation_batch_size"), "each optimizer step samples its own completions")
    _put_sampling(draft, words)
    put_rewards(draft, words)


def _put_sampling(draft: Draft, words: Words) -> None:
    new = words.whole("max_completion_length")
    rollout: dict[str, Any] = {"maxNewTokens": new, "temperature": words.number("temperature")}
    if (top_p := words.number("top_p")) != 1.0:
        rollout["topP"] = top_p
    if (top_k := words.whole("top_k")) > 0:
        rollout["topK"] = top_k
    if words.is_given("min_p") and (min_p := words.number("min_p")):
        rollout["minP"] = min_p
    if words.number("repetition_penalty") != 1.0:
        draft.change(words.shown("repetition_penalty"), "completions are sampled without a penalty")
    if words.is_on("use_vllm"):
        draft.note(words.shown("use_vllm"), "posttrain's engine samples on the training chips; rollout.engine: vllm")
    draft.put("spec.rollout", rollout, "max_completion_length")
    if words.is_given("max_prompt_length"):
        prompt = words.whole("max_prompt_length")
    else:
        prompt = _PROMPT_TOKENS
        draft.note("max_prompt_length: unset", f"{prompt} tokens; training.sequenceLength limits prompt and completion")
    draft.put("spec.training.sequenceLength", prompt + new, "max_prompt_length")


def _put_length(draft: Draft, words: Words) -> None:
    if words.text("max_length").lower() in ("", "none"):
        draft.blank("spec.training.sequenceLength", 1024, "longest row in tokens: the source has no limit")
    else:
        draft.put("spec.training.sequenceLength", words.whole("max_length"), "max_length")
    if words.text("truncation_mode") not in ("", "keep_start"):
        draft.change(words.shown("truncation_mode"), "longer rows lose their ends")


PUT: dict[str, Callable[[Draft, Words], None]] = {
    "sft": _put_sft, "dpo": _put_dpo, "orpo": _put_orpo, "cpo": _put_cpo, "kto": _put_kto,
    "reward": _put_reward, "grpo": _put_grpo, "rloo": _put_rloo,
}  # fmt: skip
"""By trainer: what writes its algorithm."""
PAIRS = ("dpo", "orpo", "cpo", "reward")
"""Trainers whose rows are two sequences."""
