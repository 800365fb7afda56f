"""Pictures for tests: drawn from a seed, encoded as files are."""

import io
from typing import Any

import numpy as np
from PIL import Image


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with some noise: every resizing changes them."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8)).resize((width, height))
    return Image.fromarray(np.clip(np.asarray(coarse) + rng.integers(-20, 20, (height, width, 3)), 0, 255).astype("u1"))


def encoded(picture: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """Return the content of a file of it."""
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()
