"""Encoded images to pixels, by Pillow: one still picture, upright, RGB with 8 bits per channel.

A picture is turned as its camera says (EXIF), 16-bit grey is scaled to 8 bits, CMYK and palettes are converted, and
what is transparent lies on white, as transformers' processors have it. What would be guessed is refused: animations,
several pages, numbers without a scale, and pictures of more than `MAX_PIXELS`.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pttrainer.data.sources.images import reading
from pttrainer.data.sources.images.in_messages import Message, image_parts
from pttrainer.data.sources.images.references import ImageReference
from pttrainer.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that Pillow decodes by itself."""
MAX_PIXELS = 2**26
"""A small file may claim any size; this is four times what a large camera takes."""
START = 16
"""Bytes of a file that is no image in messages."""
PHONE = "MPO"
"""A JPEG with further pictures behind it, such as a depth map: the first one counts."""
EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True)
class CheckedImage:
    """An image that can be decoded, its width and height, and the SHA-256 of its bytes."""

    reference: ImageReference
    size: tuple[int, int]
    sha256: bytes


def checked(images: Sequence[ImageReference]) -> tuple[CheckedImage, ...]:
    """Return the images of a row, each decoded once to see that it can be; raise DataError."""
    contents = ((image, reading.read(image)) for image in images)
    return tuple(
        CheckedImage(image, _decoded(content, image.named).size, hashlib.sha256(content).digest())
        for image, content in contents
    )


def sized(messages: Sequence[Message], images: Sequence[CheckedImage]) -> tuple[Message, ...]:
    """Return the messages with each image's width and height in its part: some models' tokens depend on it."""
    sizes = iter([image.size for image in images])

    def one(message: Message) -> Message:
        if not image_parts(message):
            return message
        parts = [{**part, "size": next(sizes)} if part["type"] == "image" else part for part in message["content"]]
        return {**message, "content": parts}

    return tuple(map(one, messages))


def digest(images: Iterable[CheckedImage]) -> str | None:
    """Return a digest of these images' bytes, in their order; None if there are none."""
    digests = [image.sha256 for image in images]
    return hashlib.sha256(b"".join(digests)).hexdigest() if digests else None


def picture(image: ImageReference) -> "Image.Image":
    """Return a row's image as RGB; raise DataError, naming its row."""
    return _decoded(reading.read(image), image.named)


def _decoded(content: bytes, where: str) -> "Image.Image":
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ConfigError("images: Pillow is not installed; hint: pip install 'posttrain[images]'") from error
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            _check(opened, where)
            opened.load()
            return _rgb(ImageOps.exif_transpose(opened))
    except UnidentifiedImageError as error:
        raise DataError(f"{where}: is no image ({_start(content)}); accepted: {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{where}: {error}; {_LARGEST}") from error
    except (DataError, MemoryError):
        raise
    except Exception as error:  # Pillow's parsers raise whatever a wrong number leads to
        raise DataError(f"{where}: a broken image: {error}; hint: is the file complete?") from error


def _start(content: bytes) -> str:
    """Return how long a file is and how it begins, which tells a web page from a format that is not read."""
    return f"{len(content)} bytes: {content[:START]!r}…" if len(content) > START else f"{len(content)} bytes"


def _check(opened: "Image.Image", where: str) -> None:
    """Refuse what cannot be read as one picture, before its pixels are decoded."""
    width, height = opened.size
    if width * height > MAX_PIXELS:
        raise DataError(f"{where}: has {width} x {height} pixels; {_LARGEST}")
    frames = getattr(opened, "n_frames", 1)
    if frames > 1 and opened.format != PHONE:
        raise DataError(f"{where}: an animation, or several pages: {frames} pictures; accepted: one")
    if opened.mode not in EIGHT_BITS + SIXTEEN_BITS:
        raise DataError(f"{where}: pixels of mode {opened.mode}; accepted: 8 bits per channel, or 16 bits of grey")


def _rgb(opened: "Image.Image") -> "Image.Image":
    if opened.mode in SIXTEEN_BITS:
        to_eight_bits: Callable[[float], float] = lambda level: level / 256  # noqa: E731 — Pillow takes no other form
        return opened.convert("I").point(to_eight_bits, "L").convert("RGB")
    if "A" in opened.getbands() or opened.info.get("transparency") is not None:
        from PIL import Image

        above = opened.convert("RGBA")
        opened = Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    return opened.convert("RGB")


_LARGEST = f"accepted: at most {MAX_PIXELS:,}"
