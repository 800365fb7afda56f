"""The losses of `losses` by TRL's own code, on the same tensors. Needs torch and TRL (`make parity`).

TRL's trainers compute losses in methods that also run models and log; they get tensors in place of models here, and a
stand-in for what they log to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tests.builders import losses
from trl import DPOTrainer, GRPOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.orpo import ORPOTrainer

MASK_BT = torch.tensor(losses.MASK_BT)
P = losses.B // 2
_identity = SimpleNamespace(
    device="cpu", num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x
)
TRL_POLICY = {"dr-grpo": "dr_grpo", "dapo": "dapo", "cispo": "cispo"}


def theirs() -> dict[str, np.ndarray]:
    """Everything, by the names of `losses.ours`."""
    found: dict[str, np.ndarray] = {}
    for kind, cases, loss_of in (
        ("policy", losses.POLICY, _policy),
        ("preference", losses.PREFERENCE, _preference),
    ):
        for case in cases:
            found |= _with_gradient(f"{kind}/{case}", loss_of, case)
    for case, beta in losses.DIVERGENCE.items():
        found |= _divergence(case, beta)
    return found


def _with_gradient(name: str, loss_of: Callable[[torch.Tensor, str], torch.Tensor], case: str) -> dict[str, Any]:
    logps_BT = torch.tensor(losses.LOGPS_BT, requires_grad=True)
    loss = loss_of(logps_BT, case)
    loss.backward()
    return {f"{name}/loss": loss.detach().numpy(), f"{name}/gradient": logps_BT.grad.numpy()}


def _policy(logps_BT: torch.Tensor, case: str) -> torch.Tensor:
    clip = losses.POLICY[case][1]
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logps_BT, torch.zeros_like(logps_BT), None),
        args=SimpleNamespace(
            use_bias_correction_kl=True, delta=1.4 if case == "grpo-two-sided" else None, steps_per_generation=1
        ),
        model=SimpleNamespace(training=True), accelerator=_identity, aux_loss_enabled=False, top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, importance_sampling_level="sequence" if case == "gspo" else "token",
        beta=losses.BETA_KL if case == "grpo-kl" else 0.0, loss_type=TRL_POLICY.get(case, "grpo"),
        epsilon_low=clip.low, epsilon_high=clip.high, use_vllm=False, current_gradient_accumulation_steps=1,
        max_completion_length=losses.MAX_NEW, _entropy_bonus_enabled=False, _metrics={"train": defaultdict(list)},
    )  # fmt: skip
    ids = torch.zeros((losses.B, losses.T), dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids, "completion_mask": MASK_BT,
        "advantages": torch.tensor(losses.ADVANTAGES_B), "old_per_token_logps": torch.tensor(losses.OLD_BT),
        "ref_per_token_logps": torch.tensor(losses.REF_BT), "num_items_in_batch": MASK_BT.sum(),
    }  # fmt: skip
    loss: torch.Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


def _preference(logps_BT: torch.Tensor, case: str) -> torch.Tensor:
    name, numbers = losses.PREFERENCE[case]
    if name in ("simpo", "orpo"):
        means = (logps_BT * MASK_BT).sum(1) / MASK_BT.sum(1)
        trainer = SimpleNamespace(
            beta=numbers.beta, label_smoothing=numbers.smoothing, simpo_gamma=numbers.margin, alpha=0.0,
            loss_type="simpo", accelerator=_identity,
        )  # fmt: skip
        if name == "orpo":
            return -ORPOTrainer.odds_ratio_loss(trainer, means[:P], means[P:])[0].mean()
        return CPOTrainer.cpo_loss(trainer, means[:P], means[P:])[0].mean()
    return _dpo(logps_BT, name, numbers)


def _dpo(logps_BT: torch.Tensor, name: str, numbers: Any) -> torch.Tensor:
    """One token of prompt stands before each answer, as TRL shifts by one."""
    zeros = torch.zeros_like(logps_BT)
    outputs = SimpleNamespace(log_probs=logps_BT * MASK_BT, entropy=zeros, mean_logits=zeros, is_top1=zeros > 1)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=False), accelerator=_identity, aux_loss_enabled=False, ld_alpha=None,
        precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_types=[name], loss_weights=[1.0],
        beta=numbers.beta, label_smoothing=numbers.smoothing, use_weighting=False, _total_train_tokens=0,
        _metrics={"eval": defaultdict(list)},
    )  # fmt: skip
    refs_B = torch.tensor(losses.REF_BT.sum(axis=1))
    whole_mask = torch.cat([torch.zeros(losses.B, 1), MASK_BT], dim=1)
    inputs = {
        "input_ids": torch.zeros_like(whole_mask, dtype=torch.long), "attention_mask": whole_mask,
        "completion_mask": whole_mask, "ref_chosen_logps": refs_B[:P], "ref_rejected_logps": refs_B[P:],
    }  # fmt: skip
    loss: torch.Tensor = DPOTrainer._compute_loss(trainer, lambda **kwargs: outputs, inputs, False)
    return loss


def _divergence(case: str, beta: float) -> dict[str, np.ndarray]:
    hidden, head = (torch.tensor(x, requires_grad=True) for x in (losses.HIDDEN_BTD, losses.HEAD_VD))
    teacher = torch.tensor(losses.TEACHER_BTD) @ torch.tensor(losses.TEACHER_HEAD_VD).T
    labels = torch.where(MASK_BT > 0, 0, -100)
    loss = GKDTrainer.generalized_jsd_loss(
        hidden @ head.T, teacher, labels, beta=beta, num_items_in_batch=MASK_BT.sum()
    )
    loss.backward()
    name = f"divergence/{case}"
    return {
        f"{name}/loss": loss.detach().numpy(),
        f"{name}/hidden": hidden.grad.numpy(),
        f"{name}/head": head.grad.numpy(),
    }
