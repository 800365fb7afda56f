"""Writes `tests/unit/pttrainer/models/references`: what `transformers` computes for the small models of the tests, and
`references-adapters`: what `peft` makes of adapters on some of them.

    make references

Only numbers are committed, for some positions; the weights come from seeds (`tests/builders/peers/models.py`). The
tests compare our decoder with them where torch is not installed. Runs in the environment of `make parity`.
"""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import peft

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from tests.builders.peers import (  # noqa: E402
    adapters,
    gemma4_image_reference,
    gemma4_images,
    image_models,
    image_reference,
    llama4_image_reference,
    llama4_images,
    llama4_pixels,
    mistral_image_reference,
    mistral_images,
    processor_reference,
    processor_settings,
    qwen_image_reference,
    qwen_images,
    sized_image_reference,
)
from tests.builders.peers.inference import load_model  # noqa: E402
from tests.builders.peers.models import CASES, NEW_TOKENS, examples, write_checkpoint  # noqa: E402
from tests.builders.peers.sized_images import SizedImages  # noqa: E402
from tests.builders.peers.transformers_reference import greedy, load_reference, logits  # noqa: E402

REFERENCES = ROOT / "tests" / "unit" / "pttrainer" / "models" / "references"
REFERENCES_OF_ADAPTERS = REFERENCES.with_name("references-adapters")
REFERENCE_OF_IMAGES = REFERENCES.parents[1] / "vision" / "gemma-3.npz"
POSITIONS_OF_LONG = np.array([0, 1, 5, 10, 11, 12, 23, 24, 25, 40, 59, 60, 80, 94, 95])
LAST_OF_SHORT = 5


def main(names: list[str]) -> None:
    """One file per case; all without names."""
    REFERENCES.mkdir(parents=True, exist_ok=True)
    for name in [name for name in CASES if not names or name in names]:
        with tempfile.TemporaryDirectory() as directory:
            model = load_reference(write_checkpoint(Path(directory), CASES[name]))
            whole, *short = examples(CASES[name])
            arrays = {"long": logits(model, whole)[POSITIONS_OF_LONG], "positions": POSITIONS_OF_LONG}
            arrays |= {f"short_{len(x)}": logits(model, x)[-LAST_OF_SHORT:] for x in short}
            arrays |= {f"greedy_{len(x)}": greedy(model, x, NEW_TOKENS).astype(np.int16) for x in short}
        np.savez_compressed(REFERENCES / f"{name}.npz", **arrays)
        print(name)
    REFERENCES_OF_ADAPTERS.mkdir(parents=True, exist_ok=True)
    for name in [name for name in adapters.REFERENCES if not names or name in names]:
        with tempfile.TemporaryDirectory() as directory:
            arrays = {"long": adapted_logits(Path(directory), name)[POSITIONS_OF_LONG], "positions": POSITIONS_OF_LONG}
        np.savez_compressed(REFERENCES_OF_ADAPTERS / f"{name}.npz", **arrays)
        print(f"{name} with adapters")
    if not names or REFERENCE_OF_IMAGES.stem in names:
        with tempfile.TemporaryDirectory() as directory:
            model = image_reference.load_reference(image_models.write_checkpoint(Path(directory)))
            of_each = [image_reference.logits(model, *each) for each in image_models.EXAMPLES]
        np.savez_compressed(REFERENCE_OF_IMAGES, *(logits_TV[::3] for logits_TV in of_each))
        print("with images")
    of_sized_images(gemma4_images.MODELS, gemma4_image_reference.inputs, names)
    of_sized_images(llama4_images.MODELS, llama4_image_reference.inputs, names)
    of_sized_images(mistral_images.MODELS, mistral_image_reference.inputs, names)
    of_sized_images(qwen_images.MODELS, qwen_image_reference.inputs, names)
    if not names or "llama-4-tiles" in names:
        of_tiles()
    if not names or "processors" in names:
        of_processors()


def of_sized_images(models: SizedImages, inputs: sized_image_reference.InputsOf, names: list[str]) -> None:
    """Logits of models with images of any size; a name of theirs may be that of a text model, too."""
    for name in [name for name in models.references if not names or name in names]:
        with tempfile.TemporaryDirectory() as directory:
            model = sized_image_reference.load_reference(models.write_checkpoint(Path(directory), models.cases[name]))
            of_each = [sized_image_reference.logits(model, inputs, each) for each in models.examples]
        file = REFERENCE_OF_IMAGES.with_name(f"{name}.npz")
        np.savez_compressed(file, *(logits_TV[::3] for logits_TV in of_each))
        print(f"{name} with images of any size")


def of_tiles() -> None:
    """Tiles of pictures as Llama 4's processor makes them, where torchvision is, which `parity` does not install."""
    if find_spec("torchvision") is None:
        print("llama-4-tiles: left as they are: no torchvision")
        return
    arrays = {}
    for name in llama4_pixels.PICTURES:
        arrays[name], arrays[f"{name}-canvas"] = llama4_image_reference.tiles(name)
    np.savez_compressed(REFERENCE_OF_IMAGES.with_name("llama-4-tiles.npz"), **arrays)
    print("llama-4-tiles")


def of_processors() -> None:
    """A picture as the processors of four families make it by files of many settings."""
    arrays = {}
    for name in processor_settings.SETTINGS:
        with tempfile.TemporaryDirectory() as directory:
            arrays[name] = processor_reference.made(name, Path(directory))
    np.savez_compressed(REFERENCE_OF_IMAGES.with_name("processors.npz"), **arrays)
    print("processors")


def adapted_logits(directory: Path, name: str) -> np.ndarray:
    """Of the long example, by `peft` from our export."""
    base = write_checkpoint(directory / "base", CASES[name])
    apart, _ = adapters.export_both(*adapters.adapted(*load_model(base), name), base, directory)
    theirs = peft.PeftModel.from_pretrained(load_reference(base), apart).eval()
    return logits(theirs, examples(CASES[name])[0])


if __name__ == "__main__":
    main(sys.argv[1:])
