"""Model shapes behind `random://<preset>`: seeded random weights for tests, demos and benchmarks.

Small ones, made for this project (those with images: `vision_presets`), and the published shapes of open models
(`published_shapes`). All use the byte-level tokenizer, so a vocabulary must cover at least its ids.
"""

import difflib
from dataclasses import replace

from pttrainer.errors import ConfigError
from pttrainer.models.config import Experts, ModelConfig, Rope
from pttrainer.models.families import from_hf
from pttrainer.models.families.published_shapes import RAW, published
from pttrainer.models.families.vision_presets import VISION_PRESETS

BYTE_VOCABULARY = 264
"""256 bytes and 8 special tokens: see `tokenizer.byte_tokenizer`."""


def _llama(
    vocab_size: int, d_model: int, layers: int, heads: int, kv_heads: int, head_dim: int, d_ff: int
) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=vocab_size,
        d_model=d_model,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        d_ff=d_ff,
        tied_head=True,
        max_positions=8192,
        bos_id=256,
        eos_ids=(257,),
    )


PRESETS: dict[str, ModelConfig] = {
    # 0.07 M weights: unit tests.
    "tiny": _llama(BYTE_VOCABULARY, d_model=64, layers=2, heads=4, kv_heads=2, head_dim=16, d_ff=128),
    # 0.24 M weights, of which a token uses 40%: a small mixture of experts.
    "tiny-moe": replace(
        _llama(BYTE_VOCABULARY, d_model=64, layers=2, heads=4, kv_heads=2, head_dim=16, d_ff=128),
        family="qwen3_moe",
        qk_norm=True,
        experts=Experts(count=8, per_token=2, d_ff=64),
    ),
    # 0.4 M weights: the demo; learns arithmetic word problems in a minute on two cores. Its texts are about 80
    # tokens long: with a theta made for thousands, most of a head's elements would hardly turn.
    "demo": replace(
        _llama(BYTE_VOCABULARY, d_model=96, layers=3, heads=4, kv_heads=4, head_dim=24, d_ff=256), rope=Rope(100.0)
    ),
    # 3 M weights: real text on a laptop.
    "small": _llama(BYTE_VOCABULARY, d_model=256, layers=4, heads=4, kv_heads=2, head_dim=64, d_ff=704),
    # 12.6 M and 15.7 M weights: the shapes at which peers were measured (docs/findings).
    "bench-13m": _llama(8_192, d_model=384, layers=6, heads=6, kv_heads=2, head_dim=64, d_ff=1024),
    "bench-16m": _llama(16_384, d_model=384, layers=6, heads=6, kv_heads=2, head_dim=64, d_ff=1024),
}


def preset(name: str) -> ModelConfig:
    """Return the config behind `random://<name>`, without a vision tower."""
    if name in PRESETS:
        return PRESETS[name]
    if name in VISION_PRESETS:
        return from_hf(VISION_PRESETS[name].config)
    if name in RAW:
        return published(name)
    names = (*sorted((*PRESETS, *VISION_PRESETS)), *sorted(RAW))
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; hint: did you mean random://{close[0]}?" if close else ""
    raise ConfigError(f"spec.model.uri: random://{name}: no such preset; accepted: {', '.join(names)}{hint}")
