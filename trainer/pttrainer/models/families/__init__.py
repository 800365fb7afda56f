"""Model families: one file each, which reads and writes its `config.json`; several of one maker share a folder.

To add one: a file, a line in `FAMILIES`, its names in `weights.hf_names` if they differ, and a case in the tests
(docs/guides/add-a-model.md).
"""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from pttrainer.errors import ConfigError
from pttrainer.models.config import AnyVision, Gemma4Vision, Llama4Vision, ModelConfig, Pixtral, QwenVision
from pttrainer.models.families import gpt_oss, phi3, smollm3
from pttrainer.models.families.config_json import unsupported
from pttrainer.models.families.config_json.fields import Fields, Raw
from pttrainer.models.families.deepseek import deepseek_v3, deepseek_v32, glm4_moe
from pttrainer.models.families.gemma import gemma2, gemma3, gemma4, gemma4_vision
from pttrainer.models.families.llama import llama, llama4, llama4_vision
from pttrainer.models.families.mistral import ministral3, mistral, mistral3, mixtral
from pttrainer.models.families.olmo import olmo2, olmo3
from pttrainer.models.families.qwen import qwen2, qwen3, qwen3_5, qwen3_moe, qwen3_next, qwen3_vl
from pttrainer.models.families.qwen import vision as qwen_vision

FLOAT8_BLOCK = 128
"""Rows and columns of a matrix in 8-bit floats that share a scale."""

FAMILIES: dict[str, ModuleType] = {
    family: module
    for module in (
        llama, llama4, mistral, ministral3, mixtral, qwen2, qwen3, qwen3_moe, gemma2, gemma3, gemma4, gpt_oss, glm4_moe,
        olmo2, olmo3, phi3, smollm3, deepseek_v3, deepseek_v32, qwen3_next, qwen3_5,
    )
    for family in getattr(module, "FAMILIES", (module.FAMILY,))
}  # fmt: skip

READERS: dict[str, Callable[[Fields], ModelConfig]] = {
    **{name: module.read for name, module in FAMILIES.items()},
    "gemma3": gemma3.read_with_images,
    "gemma4": gemma4.read_with_images,
    "kimi_k2": deepseek_v3.read,
    "llama4": llama4.read_with_images,
    "mistral3": mistral3.read,
    qwen3_5.FAMILY_WITH_EXPERTS: qwen3_5.read_with_experts,
    "qwen3_5": qwen3_5.read_with_images,
    "qwen3_5_moe": qwen3_5.read_with_images,
    "qwen3_vl": qwen3_vl.read_with_images,
    "qwen3_vl_moe": qwen3_vl.read_with_images,
}
"""By `model_type`."""
VISION_READERS: dict[str, Callable[[Fields], AnyVision]] = {
    "gemma3": gemma3.read_vision,
    "gemma4": gemma4_vision.read,
    "llama4": llama4_vision.read,
    "mistral3": mistral3.read_vision,
    "qwen3_5": qwen3_5.read_vision,
    "qwen3_5_moe": qwen3_5.read_vision,
    "qwen3_vl": qwen3_vl.read_vision,
    "qwen3_vl_moe": qwen3_vl.read_vision,
}
"""Of models whose images can be read, by `model_type`."""


def from_hf(raw: Raw, *, images: bool = False) -> ModelConfig:
    """Return the config of a Hugging Face `config.json`; raise ConfigError on what the decoder does not support.

    images: include the vision tower.
    """
    model_type = raw.get("model_type", "")
    if not isinstance(model_type, str) or model_type not in READERS:
        raise unsupported.refuse(raw, READERS)
    fields = Fields(raw)
    config = READERS[model_type](fields)
    _read_storage(fields.inside("quantization_config"))
    fields.refuse_rest()
    return replace(config, vision=_vision(raw, model_type)) if images else config


def takes_images(raw: Raw) -> bool:
    """Return True if the model has a vision tower that is supported."""
    return raw.get("model_type") in VISION_READERS and bool(raw.get("vision_config"))


def _vision(raw: Raw, model_type: str) -> AnyVision:
    if not takes_images(raw):
        raise ConfigError(
            f"config.json model_type: {model_type!r}: has no vision tower that is supported; accepted with images: "
            f"{', '.join(VISION_READERS)} with a vision_config"
        )
    return VISION_READERS[model_type](Fields(raw))


def _read_storage(fields: Fields) -> None:
    """Refuse quantised weights other than floats of 8 or 4 bits with scales of blocks (`weights.hf_directory`)."""
    if not fields.keys():
        return
    if fields.choice("quant_method", ("fp8", "mxfp4"), None) == "fp8":
        fields.choice("fmt", ("e4m3",), "e4m3")
        fields.choice("weight_block_size", ([FLOAT8_BLOCK, FLOAT8_BLOCK],), None)
    # How products would round their inputs; and which matrices are stored whole, which their files say themselves.
    for key in ("activation_scheme", "scale_fmt", "modules_to_not_convert", "ignored_layers"):
        fields.value(key, None)
    fields.refuse_rest()


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` that `transformers` reads for this model."""
    written: dict[str, Any] = FAMILIES[config.family].write(config)
    if isinstance(config.vision, QwenVision):
        written = qwen_vision.with_vision(written, config, config.vision)
    if isinstance(config.vision, Pixtral):
        written = mistral3.with_vision(written, config, config.vision)
    if isinstance(config.vision, Gemma4Vision):
        written = gemma4_vision.with_vision(written, config, config.vision)
    if isinstance(config.vision, Llama4Vision):
        written = llama4_vision.with_vision(written, config, config.vision)
    if "text_config" in written:
        written["text_config"] = _without_absent(written["text_config"])
    return _without_absent(written)


def _without_absent(written: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in written.items() if value is not None or key in _NULL_IS_A_VALUE}


_NULL_IS_A_VALUE = frozenset({
    "rope_scaling", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping",
    "q_lora_rank", "bos_token_id", "eos_token_id", "pad_token_id",
})  # fmt: skip
"""Keys whose absence means the family's default."""
