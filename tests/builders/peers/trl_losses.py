"""The losses of `losses` by TRL's own code, on the same tensors. Needs torch and TRL (`make parity`).

TRL's trainers compute losses in methods that also run models and log; they get tensors in place of models here, and a
stand-in for what they log to.
"""

import ast
import inspect
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tests.builders.peers import losses
from tests.builders.peers.losses import Tensors
from trl import DPOTrainer, GRPOTrainer, KTOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.orpo import ORPOTrainer
from trl.experimental.sdpo import SDPOTrainer
from trl.experimental.sdpo.sdpo_trainer import DistillationLogits
from trl.trainer.callbacks import SyncRefModelCallback
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from pttrainer.losses.policy_gradient import Clip
from pttrainer.losses.sampler_correction import Correction

_identity = SimpleNamespace(
    device="cpu", num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x,
    pad_across_processes=lambda x, **kwargs: x, sync_gradients=True,
)  # fmt: skip
BY_SEQUENCE = ("gspo", "gspo-token", "luspo")
"""TRL has no GSPO-token any more. Where all tokens of a sequence have one advantage, its value and gradient are GSPO's
(2507.18071, section 4.3)."""
TRL_POLICY = {
    "dr-grpo": "dr_grpo",
    "dapo": "dapo",
    "cispo": "cispo",
    "sapo": "sapo",
    "luspo": "luspo",
    "vespo": "vespo",
}


def theirs(given: Tensors = losses.FIXED, kinds: Sequence[str] = losses.KINDS) -> dict[str, np.ndarray]:
    """Everything, by the names of `losses.ours`."""
    results: dict[str, np.ndarray] = {}
    for kind, cases, loss_of in (
        ("policy", losses.POLICY, _policy),
        ("preference", losses.PREFERENCE, _preference),
        ("labelled", losses.LABELLED, _labelled),
    ):
        for case in cases if kind in kinds else ():
            results |= _with_gradient(f"{kind}/{case}", loss_of, given, case)
    for case, beta in losses.DIVERGENCE.items() if "divergence" in kinds else ():
        results |= _divergence(given, case, beta)
    for case in losses.SDPO if "sdpo" in kinds else ():
        results |= _sdpo(given, case)
    for case in losses.ENTROPY if "entropy" in kinds else ():
        results |= _with_entropy(given, case)
    if "reference" in kinds:
        results["reference/steps"] = _following(given)
    if "entropy" in kinds:
        results |= _adaptive_entropy(given)
    return results


def _with_gradient(name: str, loss_of: Callable[..., torch.Tensor], given: Tensors, case: str) -> dict[str, Any]:
    logps_BT = torch.tensor(given.logps_BT, requires_grad=True)
    loss = loss_of(given, logps_BT, case)
    loss.backward()
    return {f"{name}/loss": loss.detach().numpy(), f"{name}/gradient": logps_BT.grad.numpy()}


def _policy(given: Tensors, logps_BT: torch.Tensor, case: str) -> torch.Tensor:
    (name, clip), mask_BT, old_BT = losses.POLICY[case], torch.tensor(given.mask_BT), torch.tensor(given.old_BT)
    sampler_BT, is_corrected = torch.tensor(given.sampler_BT), case in losses.CORRECTION
    mask_BT = _without_truncated(mask_BT, losses.truncated(case, len(mask_BT)))
    inputs = _inputs(given, mask_BT)
    if is_corrected:
        inputs["importance_sampling_ratio"] = _importance(losses.CORRECTION[case], old_BT, sampler_BT, mask_BT)
    loss: torch.Tensor = GRPOTrainer._compute_loss(_grpo_trainer(case, name, clip, logps_BT), None, inputs)
    return loss


def _grpo_trainer(
    case: str, name: str, clip: Clip, logps_BT: torch.Tensor, entropy_BT: torch.Tensor | None = None, **settings: Any
) -> SimpleNamespace:
    """What TRL's trainer is asked for by its loss; without an entropy it is 0."""
    entropy_BT = torch.zeros_like(logps_BT) if entropy_BT is None else entropy_BT
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logps_BT, entropy_BT, None),
        args=SimpleNamespace(
            use_bias_correction_kl=True, delta=1.4 if case == "grpo-two-sided" else None, steps_per_generation=1,
            sapo_temperature_pos=clip.soft[0], sapo_temperature_neg=clip.soft[1],
            vespo_k_pos=clip.gamma[0][0], vespo_lambda_pos=clip.gamma[0][1],
            vespo_k_neg=clip.gamma[1][0], vespo_lambda_neg=clip.gamma[1][1],
        ),
        model=SimpleNamespace(training=True), accelerator=_identity, aux_loss_enabled=False, top_entropy_quantile=1.0,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        off_policy_mask_threshold=losses.OFF_POLICY.get(case), get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        importance_sampling_level="sequence" if name in BY_SEQUENCE else "token",
        beta=losses.BETA_KL if case == "grpo-kl" else 0.0, loss_type=TRL_POLICY.get(name, "grpo"),
        epsilon_low=clip.low, epsilon_high=clip.high, use_vllm=case in losses.CORRECTION,
        vllm_importance_sampling_correction=True, current_gradient_accumulation_steps=1,
        max_completion_length=losses.MAX_NEW, _entropy_bonus_enabled=False, _metrics={"train": defaultdict(list)},
    )  # fmt: skip
    vars(trainer).update(settings)
    trainer.get_high_entropy_mask = partial(GRPOTrainer.get_high_entropy_mask, trainer)
    return trainer


def _inputs(given: Tensors, mask_BT: torch.Tensor) -> dict[str, Any]:
    ids = torch.zeros(given.mask_BT.shape, dtype=torch.long)
    return {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids, "completion_mask": mask_BT,
        "advantages": torch.tensor(given.advantages_B), "old_per_token_logps": torch.tensor(given.old_BT),
        "ref_per_token_logps": torch.tensor(given.ref_BT), "num_items_in_batch": mask_BT.sum(),
        "sampling_per_token_logps": torch.tensor(given.sampler_BT),
    }  # fmt: skip


def _importance(
    correction: Correction, old_BT: torch.Tensor, sampler_BT: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    trainer = SimpleNamespace(
        use_vllm=True, vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=correction.mode.replace("-", "_"),
        vllm_importance_sampling_clip_min=correction.lowest, vllm_importance_sampling_clip_max=correction.highest,
    )  # fmt: skip
    names: dict[str, Any] = {
        "self": trainer, "torch": torch, "math": math, "completion_mask": mask_BT, "tool_mask": None,
        "old_per_token_logps": old_BT, "sampling_per_token_logps": sampler_BT,
    }  # fmt: skip
    _run_branch("self.use_vllm and self.vllm_importance_sampling_correction", "per_token_logps_diff", names)
    weights: torch.Tensor = names["vllm_importance_sampling_ratio"]
    return weights


def _without_truncated(mask_BT: torch.Tensor, cut_B: Sequence[bool]) -> torch.Tensor:
    """TRL knows a row that was cut by its last token, here 1 in place of the end token 0."""
    names: dict[str, Any] = {
        "self": SimpleNamespace(
            mask_truncated_completions=any(cut_B), eos_token_ids=[0], _tokenizer=SimpleNamespace(pad_token_id=0)
        ),
        "torch": torch, "device": "cpu", "completion_ids_list": [[int(is_cut)] for is_cut in cut_B],
        "completion_mask": mask_BT, "tool_mask": None,
    }  # fmt: skip
    _run_branch("self.mask_truncated_completions", "is_truncated", names)
    masked: torch.Tensor = names["completion_mask"]
    return masked


def _run_branch(test: str, holds: str, names: dict[str, Any]) -> None:
    """Run one branch of TRL's module, as it stands in its source, with these names: it stands amid the generation."""
    tree = ast.parse(inspect.getsource(sys.modules[GRPOTrainer.__module__]))
    branch = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == test and holds in ast.unparse(node)
    )
    exec(compile(ast.Module([branch], []), GRPOTrainer.__module__, "exec"), names)


def _preference(given: Tensors, logps_BT: torch.Tensor, case: str) -> torch.Tensor:
    mask_BT = torch.tensor(given.mask_BT)
    P = len(mask_BT) // 2
    name, numbers = losses.PREFERENCE[case]
    if name in ("simpo", "orpo"):
        means = (logps_BT * mask_BT).sum(1) / mask_BT.sum(1)
        trainer = SimpleNamespace(
            beta=numbers.beta, label_smoothing=numbers.smoothing, simpo_gamma=numbers.margin, alpha=0.0,
            loss_type="simpo", accelerator=_identity,
        )  # fmt: skip
        if name == "orpo":
            return -ORPOTrainer.odds_ratio_loss(trainer, means[:P], means[P:])[0].mean()
        return CPOTrainer.cpo_loss(trainer, means[:P], means[P:])[0].mean()
    return _dpo(given, logps_BT, name, numbers)


def _dpo(given: Tensors, logps_BT: torch.Tensor, name: str, numbers: Any) -> torch.Tensor:
    """One token of prompt stands before each answer, as TRL shifts by one."""
    zeros, mask_BT = torch.zeros_like(logps_BT), torch.tensor(given.mask_BT)
    B = len(mask_BT)
    outputs = SimpleNamespace(log_probs=logps_BT * mask_BT, entropy=zeros, mean_logits=zeros, is_top1=zeros > 1)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=False), accelerator=_identity, aux_loss_enabled=False, ld_alpha=None,
        precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_types=[name], loss_weights=[1.0],
        beta=numbers.beta, label_smoothing=numbers.smoothing, use_weighting=False, _total_train_tokens=0,
        _metrics={"eval": defaultdict(list)},
    )  # fmt: skip
    refs_B = torch.tensor(given.ref_BT.sum(axis=1))
    whole_mask = torch.cat([torch.zeros(B, 1), mask_BT], dim=1)
    inputs = {
        "input_ids": torch.zeros_like(whole_mask, dtype=torch.long), "attention_mask": whole_mask,
        "completion_mask": whole_mask, "ref_chosen_logps": refs_B[: B // 2], "ref_rejected_logps": refs_B[B // 2 :],
    }  # fmt: skip
    loss: torch.Tensor = DPOTrainer._compute_loss(trainer, lambda **kwargs: outputs, inputs, False)
    return loss


def _labelled(given: Tensors, logps_BT: torch.Tensor, case: str) -> torch.Tensor:
    """As with DPO, one token of prompt stands before each answer."""
    (name, numbers), zeros, mask_BT = losses.LABELLED[case], torch.zeros_like(logps_BT), torch.tensor(given.mask_BT)
    outputs = SimpleNamespace(log_probs=logps_BT * mask_BT, entropy=zeros, mean_logits=zeros)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=False), accelerator=_identity, aux_loss_enabled=False,
        precompute_ref_logps=True, calculate_KL=name == "kto",
        loss_type={"kto": "kto", "apo-zero": "apo_zero_unpaired"}[name], beta=numbers.beta,
        desirable_weight=numbers.desirable, undesirable_weight=numbers.undesirable, _total_train_tokens=0, _tp_size=1,
        _metrics={"eval": defaultdict(list)}, _compute_kl_logps=lambda model, batch: torch.tensor(given.old_BT.sum(1)),
    )  # fmt: skip
    whole_mask = torch.cat([torch.zeros(len(mask_BT), 1), mask_BT], dim=1)
    inputs = {
        "input_ids": torch.zeros_like(whole_mask, dtype=torch.long), "attention_mask": whole_mask,
        "completion_mask": whole_mask, "label": torch.tensor(losses.labels(given) > 0),
        "ref_logps": torch.tensor(given.ref_BT.sum(1)), "ref_KL_logps": torch.tensor(given.sampler_BT.sum(1)),
    }  # fmt: skip
    loss: torch.Tensor = KTOTrainer._compute_loss(trainer, lambda **kwargs: outputs, inputs, False)
    return loss


def _gradients(name: str, loss: torch.Tensor, hidden: torch.Tensor, head: torch.Tensor) -> dict[str, np.ndarray]:
    loss.backward()
    return {
        f"{name}/loss": loss.detach().numpy(),
        f"{name}/hidden": hidden.grad.numpy(),
        f"{name}/head": head.grad.numpy(),
    }


def _divergence(given: Tensors, case: str, beta: float) -> dict[str, np.ndarray]:
    hidden, head = (torch.tensor(x, requires_grad=True) for x in (given.hidden_BTD, given.head_VD))
    teacher = torch.tensor(given.teacher_BTD) @ torch.tensor(given.teacher_head_VD).T
    mask_BT = torch.tensor(given.mask_BT)
    labels = torch.where(mask_BT > 0, 0, -100)
    loss = GKDTrainer.generalized_jsd_loss(
        hidden @ head.T, teacher, labels, beta=beta, num_items_in_batch=mask_BT.sum()
    )
    return _gradients(f"divergence/{case}", loss, hidden, head)


def _sdpo(given: Tensors, case: str) -> dict[str, np.ndarray]:
    """A row that learns nothing has no token in the loss; with the tail, as here "any other" is an outcome."""
    hindsight = losses.SDPO[case]
    hidden, head = (torch.tensor(x, requires_grad=True) for x in (given.hidden_BTD, given.head_VD))
    teacher = torch.tensor(given.teacher_BTD) @ torch.tensor(given.teacher_head_VD).T
    mask_BT, ids_BT = torch.tensor(given.mask_BT), torch.tensor(losses.sampled_ids(given), dtype=torch.long)
    mode = "topk_logits" if hindsight.top_k else "full_logits"
    trainer = SimpleNamespace(
        args=SimpleNamespace(
            distillation_mode="sampled_token" if hindsight.sampled_token else mode,
            distillation_topk=hindsight.top_k or None, distillation_alpha=hindsight.beta,
            distillation_add_tail=True, distillation_is_clip=hindsight.highest, distillation_weight=hindsight.weight,
        ),
        accelerator=_identity, _log_self_distillation_metric=lambda mode, value: None,
        model=SimpleNamespace(training=True), teacher_model=None, current_gradient_accumulation_steps=1,
        use_teacher_server=False, _metrics=defaultdict(lambda: defaultdict(list)),
        epsilon_low=hindsight.clip.low, epsilon_high=hindsight.clip.high, max_completion_length=losses.MAX_NEW,
        importance_sampling_level="sequence" if hindsight.policy == "gspo" else "token",
        loss_type={"gspo": "grpo"}.get(hindsight.policy, hindsight.policy).replace("-", "_"),
    )  # fmt: skip
    logits = hidden @ head.T
    both = DistillationLogits(ids_BT, mask_BT, mask_BT * torch.tensor(losses.learning(given)), logits, teacher)
    trainer._compute_teacher_student_logits = lambda *models_and_inputs: both
    trainer._forward_logits = lambda **inputs: logits
    for method in (SDPOTrainer._compute_self_distillation_loss, SDPOTrainer._compute_policy_loss):
        setattr(trainer, method.__name__, partial(method, trainer))
    inputs = {
        "old_per_token_logps": torch.tensor(given.old_BT), "advantages": torch.tensor(given.advantages_B),
        "completion_ids": ids_BT, "completion_mask": mask_BT, "prompt_ids": ids_BT, "prompt_mask": mask_BT,
    }  # fmt: skip
    loss = SDPOTrainer.compute_loss(trainer, SimpleNamespace(training=True), inputs)
    return _gradients(f"sdpo/{case}", loss, hidden, head)


def _with_entropy(given: Tensors, case: str) -> dict[str, np.ndarray]:
    of = losses.ENTROPY[case]
    hidden, head = (torch.tensor(x, requires_grad=True) for x in (given.hidden_BTD, given.head_VD))
    mask_BT = torch.tensor(given.mask_BT)
    if of.get("mask_truncated"):
        mask_BT = _without_truncated(mask_BT, losses.truncated("-truncated", len(mask_BT)))
    coefficient = of.get("entropy_bonus", {}).get("coefficient", 0.0)
    settings = {
        "top_entropy_quantile": of.get("top_entropy_quantile", 1.0), "_entropy_bonus_enabled": coefficient > 0,
        "entropy_coef": coefficient, "use_adaptive_entropy": False,
    }  # fmt: skip
    logps_BT, entropy_BT = _stats(given, hidden, head)
    trainer = _grpo_trainer("", of["loss"], losses.CLIPS[of["loss"]], logps_BT, entropy_BT, **settings)
    loss = GRPOTrainer._compute_loss(trainer, None, _inputs(given, mask_BT))
    return _gradients(f"entropy/{case}", loss, hidden, head)


def _stats(given: Tensors, hidden: torch.Tensor, head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits_BTV = hidden @ head.T
    ids_BT = torch.tensor(losses.sampled_ids(given), dtype=torch.long)
    return selective_log_softmax(logits_BTV, ids_BT), entropy_from_logits(logits_BTV)


def _adaptive_entropy(given: Tensors) -> dict[str, np.ndarray]:
    """The loss and the coefficient after each of some batches, whose predictions differ in their entropy."""
    of, mask_BT = losses.ADAPTIVE, torch.tensor(given.mask_BT)
    settings = {
        "_entropy_bonus_enabled": True, "entropy_coef": of.first, "use_adaptive_entropy": True,
        "_last_world_entropy": math.inf, "_entropy_window_stats": None,
    }  # fmt: skip
    logps_BT = torch.tensor(given.logps_BT)
    trainer = _grpo_trainer("", "dapo", losses.CLIPS["dapo"], logps_BT, **settings)
    bounds = {"entropy_coef_min": of.lowest, "entropy_coef_max": of.highest}
    vars(trainer.args).update(entropy_target=of.target, entropy_coef_delta=of.delta, **bounds)
    values, coefficients = [], []
    for scale in losses.SCALES:
        stats = *_stats(given, scale * torch.tensor(given.hidden_BTD), torch.tensor(given.head_VD)), None
        trainer._get_per_token_logps_and_entropies = lambda *args, stats=stats, **kwargs: stats
        values.append(GRPOTrainer._compute_loss(trainer, None, _inputs(given, mask_BT)).item())
        coefficients.append(trainer.entropy_coef)
    return {"entropy/adaptive/loss": np.array(values), "entropy/adaptive/coefficient": np.array(coefficients)}


def _following(given: Tensors) -> np.ndarray:
    """The reference after each step."""
    reference = torch.nn.ParameterList([torch.tensor(given.teacher_BTD[0])])
    of, references = losses.FOLLOWING, []
    callback = SyncRefModelCallback(ref_model=reference, accelerator=None)
    callback.sync_target_model = callback._sync_target_model  # what is left of it without DeepSpeed
    settings = SimpleNamespace(ref_model_sync_steps=of.every, ref_model_mixup_alpha=of.mixup)
    for step in range(losses.POLICIES):
        policy = torch.nn.ParameterList([torch.tensor(given.hidden_BTD[step % len(given.hidden_BTD)])])
        callback.on_step_end(settings, SimpleNamespace(global_step=step + 1), None, model=policy)
        references.append(reference[0].detach().numpy().copy())
    return np.stack(references)
