"""The weights of a directory in Hugging Face's layout: one safetensors file, or several with an index."""

from pathlib import Path

import numpy as np

from pttrainer.errors import ConfigError
from pttrainer.models.families import FLOAT8_BLOCK
from pttrainer.models.vision.gemma4 import weights as gemma4
from pttrainer.models.vision.llama4.weights import TOWER as LLAMA4_TOWER
from pttrainer.models.vision.names import PROJECTOR, TOWER
from pttrainer.models.vision.pixtral.weights import TOWER as PIXTRAL_TOWER
from pttrainer.models.vision.qwen.weights import TOWER as QWEN_TOWER
from pttrainer.models.weights import mxfp4
from pttrainer.models.weights.safetensors_file import DTYPES, Tensor, read_header
from pttrainer.runtime.io import json_text

INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
SCALES = "_scale_inv"
"""Suffix of the tensor that multiplies another one's blocks, where that is stored in 8-bit floats."""


class Checkpoint:
    """Tensors by name, read in rows. Only headers are read at first.

    Matrices in 8-bit or 4-bit floats with a scale for every block are read as what they stand for, in float32.
    display_name: name in messages; file: the one that holds them, if it is not a model's. tower: prefix of the weights
    of a vision tower, to include them.
    """

    def __init__(
        self, directory: Path, display_name: str, file: str | None = None, *, tower: str | None = None
    ) -> None:
        self.display_name = display_name
        tensors: dict[str, Tensor] = {}
        for path in _files(directory, display_name) if file is None else [directory / file]:
            named = ((_known_as(name, tower), tensor) for name, tensor in read_header(path).items())
            tensors |= {name: tensor for name, tensor in named if _is_used(name, images=tower is not None)}
        self._tensors = mxfp4.joined(tensors, display_name)
        scales = [name for name in self._tensors if name.endswith(SCALES)]
        self._scales = {name.removesuffix(SCALES): self._tensors.pop(name) for name in scales}
        self._check_scales()

    def names(self) -> set[str]:
        """Return the names of all tensors."""
        return set(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self._tensors[name].shape

    def row_bytes(self, name: str) -> int:
        """Return the bytes of one entry of the leading axis."""
        tensor = self._tensors[name]
        size = 4 if name in self._scales else tensor.dtype.itemsize
        return size * int(np.prod(tensor.shape[1:], dtype=np.int64))

    def rows(self, name: str, first: int, last: int) -> np.ndarray:
        """Return the entries [first:last] of the leading axis, in the file's number format, or float32 if scaled."""
        rows = self._tensors[name].rows(first, last)
        if name not in self._scales:
            return rows
        start = first // FLOAT8_BLOCK
        blocks = self._scales[name].rows(start, -(-last // FLOAT8_BLOCK)).astype(np.float32)
        scales = np.repeat(blocks[np.arange(first, last) // FLOAT8_BLOCK - start], FLOAT8_BLOCK, axis=1)
        scaled: np.ndarray = rows.astype(np.float32) * scales[:, : rows.shape[1]]
        return scaled

    def _check_scales(self) -> None:
        """Refuse 8-bit floats without the scales of their blocks, and scales of anything else."""
        eight_bit = {name for name, tensor in self._tensors.items() if tensor.dtype == DTYPES["F8_E4M3"]}
        unscaled = sorted(eight_bit ^ self._scales.keys())
        misshapen = [
            name
            for name in sorted(eight_bit & self._scales.keys())
            if self._scales[name].shape != tuple(-(-size // FLOAT8_BLOCK) for size in self._tensors[name].shape)
        ]
        if unscaled or misshapen:
            name = (unscaled + misshapen)[0]
            raise ConfigError(
                f"{self.display_name}: {name}: 8-bit floats need {name}{SCALES}, a number for each block of "
                f"{FLOAT8_BLOCK} x {FLOAT8_BLOCK}; accepted: these, or weights in bfloat16, float16 or float32"
            )


def stored_names(directory: Path, display_name: str) -> set[str]:
    """Return the names of all tensors as the files have them: by the index, if there is one; none without weights."""
    index = directory / INDEX
    if index.is_file():
        _indexed(index, display_name)
        return set(json_text.loads(index.read_bytes())["weight_map"])
    one = directory / ONE_FILE
    return {
        name for path in ([one] if one.is_file() else directory.glob("*.safetensors")) for name in read_header(path)
    }


def _files(directory: Path, display_name: str) -> list[Path]:
    """Return the index's files, else the one file with the usual name, else every safetensors file."""
    index = directory / INDEX
    if index.is_file():
        files = [directory / name for name in _indexed(index, display_name)]
    elif (directory / ONE_FILE).is_file():
        files = [directory / ONE_FILE]
    else:
        files = sorted(directory.glob("*.safetensors"))
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise ConfigError(f"{display_name}: {INDEX} lists files that are not there: {', '.join(absent)}")
    if not files:
        raise ConfigError(f"{display_name}: no *.safetensors file; accepted: weights in safetensors format")
    return files


def _indexed(index: Path, display_name: str) -> list[str]:
    """Return the names of the files in an index, which stand beside it."""
    content = index.read_bytes()
    try:
        listed = json_text.loads(content)["weight_map"].values()
        names = sorted({Path(name).name for name in listed if name == Path(name).name})
        is_known = len(names) == len(set(listed))
    except (ValueError, TypeError, KeyError, AttributeError):
        is_known = False
    if not is_known:
        raise ConfigError(
            f"{display_name}: {INDEX}: {content[:60]!r}: accepted: an object whose weight_map names files beside it"
        )
    return names


_OF_IMAGES = (PIXTRAL_TOWER, PROJECTOR, QWEN_TOWER, gemma4.TOWER, gemma4.PROJECTOR, LLAMA4_TOWER)
_LEFT_OUT = (
    LLAMA4_TOWER, "vision_tower.", "multi_modal_projector.", QWEN_TOWER, "mtp.", gemma4.PROJECTOR,
    "model.audio_tower.", "model.embed_audio.",
)  # fmt: skip
_POOLING_HEAD = f"{TOWER}head."
"""Of SigLIP by itself; no decoder reads it."""


def _is_used(name: str, *, images: bool) -> bool:
    """Return False for weights of images and of further predicted tokens, and for tables that old files have."""
    if images and name.startswith(_OF_IMAGES):
        return not name.startswith(_POOLING_HEAD)
    return not name.startswith(_LEFT_OUT) and not name.endswith("rotary_emb.inv_freq")


_KNOWN_AS = (
    ("model.language_model.", "model."),
    ("language_model.", ""),
    ("model.multi_modal_projector.", PROJECTOR),
)
"""Prefixes in files of models with images, as libraries of several years write them, and ours."""
_TOWERS = (f"model.{PIXTRAL_TOWER}", TOWER, PIXTRAL_TOWER)
"""Of vision towers, as libraries of several years write them."""


def _known_as(name: str, tower: str | None) -> str:
    """Return our form of a name in a file of a model with images, whose tower's names have this prefix."""
    for prefix in _TOWERS:
        if name.startswith(prefix):
            return (tower or PIXTRAL_TOWER) + name.removeprefix(prefix)
    for prefix, ours in _KNOWN_AS:
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return name
