"""Small Mistral 3 and Ministral 3 with images, in Hugging Face's files: odd sizes, weights made from names."""

from typing import Any

from PIL import Image
from tests.builders.peers.models import WINDOW, YARN
from tests.builders.peers.sized_images import SizedImages

from pttrainer.data.tokenization.pixels import BICUBIC, Colours, SidesFormat

PART, LINE_END, END = 10, 101, 102
PATCH, MERGE, LONGEST = 3, 2, 44
TEXT: dict[str, Any] = {
    "vocab_size": 107, "hidden_size": 42, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 14, "intermediate_size": 53, "max_position_embeddings": 256, "rms_norm_eps": 1e-4,
}  # fmt: skip
TOWER: dict[str, Any] = {
    "model_type": "pixtral", "hidden_size": 36, "intermediate_size": 29, "num_hidden_layers": 3,
    "num_attention_heads": 3, "image_size": LONGEST, "patch_size": PATCH,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "mistral-3": {
        "model_type": "mistral3", "image_token_index": PART, "spatial_merge_size": MERGE, "vision_feature_layer": -1,
        "tie_word_embeddings": False, "multimodal_projector_bias": True,
        "text_config": {**TEXT, "model_type": "mistral", "sliding_window": WINDOW, "rope_theta": 1e6},
        "vision_config": {**TOWER, "hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 5e2}},
    },
    "ministral-3": {
        "model_type": "mistral3", "image_token_index": PART, "spatial_merge_size": MERGE, "vision_feature_layer": -1,
        "tie_word_embeddings": True, "projector_hidden_act": "gelu",
        "text_config": {
            **TEXT, "model_type": "ministral3", "tie_word_embeddings": True, "rope_parameters": YARN | {
                "rope_theta": 1e6, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
            },
        },
        "vision_config": {**TOWER, "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "axial"}},
    },
}  # fmt: skip
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
PREPROCESSOR = {
    "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": LONGEST}, "patch_size": PATCH,
    "image_mean": MEAN, "image_std": STD, "resample": 3, "do_convert_rgb": True, "processor_class": "PixtralProcessor",
}  # fmt: skip
PROCESSOR = {
    "processor_class": "PixtralProcessor", "patch_size": PATCH, "spatial_merge_size": MERGE, "image_token": "[IMG]",
    "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
}  # fmt: skip
FORMAT = SidesFormat(PATCH, MERGE, colours=Colours(MEAN, STD, resample=BICUBIC), longest=LONGEST)


def tokens_of(picture: Image.Image) -> list[int]:
    """A picture's tokens: lines of parts, each with its end, the last one with the picture's."""
    lines = [[*[PART] * count, LINE_END] for count in FORMAT.runs(picture.size)]
    return [*[token for line in lines for token in line][:-1], END]


MODELS = SizedImages(
    CASES, ("mistral-3", "ministral-3"), FORMAT,
    {"preprocessor_config.json": PREPROCESSOR, "processor_config.json": PROCESSOR}, PART, (11, 99), tokens_of,
)  # fmt: skip
