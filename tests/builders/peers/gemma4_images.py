"""Small Gemma 4 with images, in Hugging Face's files: odd sizes, weights made from names."""

from typing import Any

from PIL import Image
from tests.builders.peers.models import CASES as TEXTS
from tests.builders.peers.sized_images import SizedImages

from pttrainer.data.tokenization.pixels import BICUBIC, BudgetFormat, Colours

PART, BEGIN, END, AUDIO, VIDEO = 100, 101, 102, 103, 104
PATCH, MERGE, MOST = 3, 2, 70
AROUND = {
    "model_type": "gemma4", "image_token_id": PART, "boi_token_id": BEGIN, "eoi_token_id": END, "audio_token_id": AUDIO,
    "video_token_id": VIDEO, "vision_soft_tokens_per_image": MOST,
}  # fmt: skip
TOWER: dict[str, Any] = {
    "model_type": "gemma4_vision", "hidden_size": 36, "intermediate_size": 29, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "patch_size": PATCH,
    "pooling_kernel_size": MERGE, "position_embedding_size": 150,
}  # fmt: skip
SEES = {"use_bidirectional_attention": "vision"}
CASES: dict[str, dict[str, Any]] = {
    "gemma-4": AROUND | {
        "text_config": TEXTS["gemma-4"] | SEES, "tie_word_embeddings": False,
        "vision_config": TOWER | {"standardize": True, "rope_parameters": {"rope_type": "axial", "rope_theta": 50.0}},
    },
    "gemma-4-small": AROUND | {
        "text_config": TEXTS["gemma-4-small"] | {"pad_token_id": 2}, "tie_word_embeddings": False,
        "audio_config": None,
        "vision_config": TOWER | {"use_clipped_linears": True, "rms_norm_eps": 1e-4, "hidden_activation": "gelu"},
    },
    "gemma-4-moe": AROUND | {
        "text_config": TEXTS["gemma-4-moe"] | SEES, "tie_word_embeddings": False,
        "vision_config": TOWER | {"num_key_value_heads": 6},
    },
}  # fmt: skip
PREPROCESSOR = {
    "image_processor_type": "Gemma4ImageProcessor", "do_convert_rgb": True, "do_normalize": False, "do_rescale": True,
    "do_resize": True, "image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0], "max_soft_tokens": MOST,
    "patch_size": PATCH, "pooling_kernel_size": MERGE, "resample": 3, "rescale_factor": 0.00392156862745098,
    "image_seq_length": MOST,
}  # fmt: skip
PROCESSOR = {"processor_class": "Gemma4Processor", "image_processor": PREPROCESSOR, "image_seq_length": MOST}
FORMAT = BudgetFormat(
    PATCH, MERGE, colours=Colours((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), resample=BICUBIC), tokens_most=MOST
)


def tokens_of(picture: Image.Image) -> list[int]:
    """A picture's tokens between their marks."""
    return [BEGIN, *[PART] * FORMAT.tokens(picture.size), END]


MODELS = SizedImages(
    CASES, ("gemma-4", "gemma-4-small"), FORMAT, {"processor_config.json": PROCESSOR}, PART, (5, 99), tokens_of
)
