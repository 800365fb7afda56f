"""Model families: one file each, which reads and writes its `config.json`.

To add one: a file, a line in `READERS`, its names in `weights.hf_names` if they differ, and a case in the tests.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from pttrainer.errors import ConfigError
from pttrainer.models.config import ModelConfig, Raw
from pttrainer.models.families import gemma2, gemma3, gpt_oss, llama, mistral, qwen2, qwen3, qwen3_moe
from pttrainer.models.families.config_reader import Fields

FAMILIES: dict[str, ModuleType] = {
    module.FAMILY: module for module in (llama, mistral, qwen2, qwen3, qwen3_moe, gemma2, gemma3, gpt_oss)
}

READERS: dict[str, Callable[[Fields], ModelConfig]] = {
    **{name: module.read for name, module in FAMILIES.items()},
    "gemma3": gemma3.read_with_images,
}
"""By `model_type`."""


def from_hf(raw: Raw) -> ModelConfig:
    """Return the config of a Hugging Face `config.json`; raise ConfigError on what the decoder does not support."""
    model_type = raw.get("model_type", "")
    if not isinstance(model_type, str) or model_type not in READERS:
        raise ConfigError(
            f"config.json model_type: {model_type!r}: not supported; accepted: {', '.join(sorted(READERS))}"
        )
    fields = Fields(raw)
    config = READERS[model_type](fields)
    fields.refuse_rest()
    return config


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` that `transformers` reads for this model."""
    written: dict[str, Any] = FAMILIES[config.family].write(config)
    return {key: value for key, value in written.items() if value is not None or key in _NULL_IS_A_VALUE}


_NULL_IS_A_VALUE = frozenset({
    "rope_scaling", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping",
    "bos_token_id", "eos_token_id", "pad_token_id",
})  # fmt: skip
"""Keys whose absence means the family's default."""
