"""`ptctl import` of TRL against the TRL that is installed: its defaults, and every word that it has."""

import dataclasses
from enum import Enum
from typing import Any

import pytest
import transformers
import trl
from tests.builders.imported_words import other, outcome
from trl.experimental.cpo import CPOConfig
from trl.experimental.orpo import ORPOConfig
from trl.scripts.grpo import GRPOScriptArguments

from ptctl.importers.huggingface import trl as imported
from ptctl.importers.huggingface.launch import Launch
from ptctl.importers.huggingface.trl_defaults import DEFAULTS, VERSION

PROGRAM = (trl.ScriptArguments, trl.ModelConfig)
CONFIGS: dict[str, tuple[Any, ...]] = {
    "sft": (trl.SFTConfig, *PROGRAM),
    "dpo": (trl.DPOConfig, *PROGRAM),
    "kto": (trl.KTOConfig, *PROGRAM),
    "reward": (trl.RewardConfig, *PROGRAM),
    "grpo": (trl.GRPOConfig, GRPOScriptArguments, *PROGRAM),
    "rloo": (trl.RLOOConfig, GRPOScriptArguments, *PROGRAM),
    "orpo": (ORPOConfig, *PROGRAM),
    "cpo": (CPOConfig, *PROGRAM),
}
START: dict[str, Any] = {"model_name_or_path": "a/b", "dataset_name": "c/d", "reward_funcs": "accuracy_reward"}
WITH = {
    "lora_": {"use_peft": True}, "use_rslora": {"use_peft": True}, "use_dora": {"use_peft": True},
    "load_in": {"use_peft": True}, "vllm_importance": {"use_vllm": True}, "sapo_": {"loss_type": "sapo"},
    "eval_": {"eval_strategy": "steps"}, "per_device_eval": {"eval_strategy": "steps"},
    "packing_strategy": {"packing": True}, "trackio_space_id": {"report_to": "trackio"},
    "project": {"report_to": "wandb"},
}  # fmt: skip
"""Words that only mean something beside another one."""


def fields(trainer: str) -> dict[str, Any]:
    """The words of a trainer's program, with their defaults."""
    made = {}
    for config in CONFIGS[trainer]:
        for field in dataclasses.fields(config):
            factory = field.default_factory
            default = factory() if factory is not dataclasses.MISSING else field.default
            made[field.name] = default.value if isinstance(default, Enum) else default
    return made


@pytest.mark.parametrize("trainer", CONFIGS)
def test_defaults_are_those_of_trl(trainer: str) -> None:
    assert trl.__version__ == VERSION, transformers.__version__
    theirs = fields(trainer)
    ours = {name: value for name, value in DEFAULTS[trainer].items() if name in theirs}
    assert ours == {name: theirs[name] for name in ours}


@pytest.mark.parametrize("trainer", CONFIGS)
def test_every_word_of_trl_has_an_effect_that_the_user_sees(trainer: str) -> None:
    dropped = []
    for name, default in fields(trainer).items():
        beside = next((words for form, words in WITH.items() if name.startswith(form)), {})
        values = {**START, **beside}
        before = outcome(lambda values=values: imported.draft_of(Launch(f"trl {trainer}", ()), dict(values), 8, {}))
        changed = {**values, name: other(values.get(name) or ("x/y" if default is None else default))}
        after = outcome(lambda changed=changed: imported.draft_of(Launch(f"trl {trainer}", ()), changed, 8, {}))
        dropped += [name] if before == after else []
    assert dropped == []
