"""Writes `references-ppo.npz` of the unit tests: what TRL's PPO computes on the tensors of `builders/peers/ppo_losses`.

    python -m pip download --no-deps trl==0.11.4
    python scripts/make_ppo_references.py trl-0.11.4-py3-none-any.whl

TRL has had no PPO since 1.16, and the version that computed rewards, advantages and losses in methods of their own
(0.11.4) does not import beside today's transformers. So these methods, and the functions they call, are taken out of
the wheel by name and run as they stand. Needs torch (the environment of `make parity`).
"""

import ast
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / room) for room in ("api", "trainer"))]

from tests.builders.peers import ppo_losses as cases  # noqa: E402

METHODS = ("compute_rewards", "_kl_penalty", "compute_advantages", "loss")


def functions(wheel: Path) -> dict[str, Any]:
    """Functions of TRL's core, and the methods of its PPO trainer as functions."""
    names: dict[str, Any] = {"torch": torch, "Mapping": Mapping}
    with zipfile.ZipFile(wheel) as files:
        core, trainer = (ast.parse(files.read(f"trl/{path}.py")) for path in ("core", "trainer/ppo_trainer"))
    wanted = [node for node in core.body if isinstance(node, ast.FunctionDef)]
    of_trainer = next(node for node in trainer.body if isinstance(node, ast.ClassDef) and node.name == "PPOTrainer")
    wanted += [node for node in of_trainer.body if isinstance(node, ast.FunctionDef) and node.name in METHODS]
    for node in wanted:
        # Annotations and defaults name what is not here; what is wanted has none that matter.
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        if not any(isinstance(default, ast.Call | ast.Attribute) for default in node.args.defaults):
            exec(compile(ast.Module([node], []), str(wheel), "exec"), names)
    return names


def theirs(trl: dict[str, Any]) -> dict[str, np.ndarray]:
    """Everything, by the names of `ppo_losses.ours`."""
    arrays: dict[str, Any] = {}
    mask = torch.tensor(cases.MASK_BT)
    for case, spec in cases.CASES.items():
        config = SimpleNamespace(
            kl_penalty="kl", gamma=spec.gamma, lam=spec.gae_lambda, whiten_rewards=False, cliprange=spec.clip,
            cliprange_value=spec.value_clip, vf_coef=spec.value_coefficient, ratio_threshold=1e9,
        )  # fmt: skip
        trainer = SimpleNamespace(config=config, kl_ctl=SimpleNamespace(value=spec.kl_coefficient))
        trainer._kl_penalty = lambda a, b, of=trainer: trl["_kl_penalty"](of, a, b)
        old, values = torch.tensor(cases.OLD_BT), torch.tensor(cases.OLD_VALUES_BT)
        rewards, _, _ = trl["compute_rewards"](
            trainer, torch.tensor(cases.REWARDS_B), old, torch.tensor(cases.REF_BT), mask
        )
        values, advantages, returns = trl["compute_advantages"](trainer, values, rewards.float(), mask)
        logps = torch.tensor(cases.LOGPS_BT, requires_grad=True)
        new_values = torch.tensor(cases.VALUES_BT, requires_grad=True)
        logits = torch.zeros((*mask.shape, 2))
        policy, critic, _ = trl["loss"](trainer, old, values, logits, new_values, logps, mask, advantages, returns)
        (policy + critic).backward()
        arrays |= {
            f"{case}/advantages": advantages * mask, f"{case}/returns": returns * mask,
            f"{case}/policy/loss": policy.detach(), f"{case}/policy/gradient": logps.grad,
            f"{case}/value/loss": critic.detach(), f"{case}/value/gradient": new_values.grad,
        }  # fmt: skip
    return {name: value.numpy() for name, value in arrays.items()}


if __name__ == "__main__":
    made = theirs(functions(Path(sys.argv[1])))
    np.savez_compressed(ROOT / "tests" / "unit" / "pttrainer" / "algorithms" / "references-ppo.npz", **made)
    print(f"{len(made)} arrays")
