"""Pictures are decoded as a person sees them, or refused with the reason."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.builders.pictures import drawn, encoded

from pttrainer.data.sources.images.decoding import picture
from pttrainer.data.sources.images.references import ImageReference
from pttrainer.errors import DataError

PICTURE = drawn(24, 16)


def decoded(content: bytes) -> np.ndarray:
    return np.asarray(picture(ImageReference("row 1", content)))


def sixteen_bits() -> Image.Image:
    return Image.fromarray(np.array([[0, 255, 256, 32768, 65535]], np.uint16))


def claiming(width: int, height: int) -> bytes:
    """A PNG whose header says this size."""
    content = bytearray(encoded(PICTURE))
    content[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    return bytes(content)


def test_a_picture_stands_as_its_camera_held_it() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = decoded(encoded(PICTURE, "JPEG", exif=exif.tobytes(), quality=100, subsampling=0))
    assert turned.shape == (24, 16, 3)
    assert np.abs(turned.astype(int) - np.rot90(np.asarray(PICTURE), -1)).mean() < 3


def test_sixteen_bits_of_grey_are_scaled_and_not_cut() -> None:
    assert decoded(encoded(sixteen_bits()))[0, :, 0].tolist() == [0, 0, 1, 128, 255]


@pytest.mark.parametrize(
    ("mode", "form"), [("CMYK", "TIFF"), ("CMYK", "JPEG"), ("P", "PNG"), ("RGBA", "WEBP"), ("L", "BMP"), ("LA", "PNG")]
)
def test_other_colours_become_rgb_as_transformers_has_it(mode: str, form: str) -> None:
    content = encoded(PICTURE.convert(mode), form)
    with Image.open(io.BytesIO(content)) as opened:
        assert decoded(content).tolist() == np.asarray(opened.convert("RGB")).tolist()


def test_what_is_transparent_lies_on_white_as_transformers_has_it() -> None:
    clear, half = (9, 9, 9, 0), (10, 20, 30, 128)
    drawn_above = Image.new("RGBA", (2, 1), clear)
    drawn_above.putpixel((1, 0), half)
    assert decoded(encoded(drawn_above)).tolist() == [[[255, 255, 255], [132, 137, 142]]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([7, 8, 9, 200, 100, 0])
    palette.putpixel((1, 0), 1)
    for form in ("PNG", "GIF"):
        assert decoded(encoded(palette, form, transparency=0)).tolist() == [[[255, 255, 255], [200, 100, 0]]]
    keyed = encoded(Image.new("RGB", (1, 1), (1, 2, 3)), transparency=(1, 2, 3))
    assert decoded(keyed).tolist() == [[[255, 255, 255]]]


TURNED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda stored: stored,
    2: np.fliplr,
    3: lambda stored: np.rot90(stored, 2),
    4: np.flipud,
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).swapaxes(0, 1),
    8: np.rot90,
}
"""What EXIF's orientations ask for."""


@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", TURNED)
def test_every_orientation_is_undone_in_every_format(orientation: int, form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10
    made = decoded(encoded(Image.fromarray(stored), form, exif=exif.tobytes(), lossless=True))
    assert np.array_equal(made, TURNED[orientation](stored))


def frames_cut_short() -> bytes:
    """A GIF whose second frame is announced and not there."""
    frames = [Image.new("P", (1, 1)), Image.new("P", (1, 1), 1)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])[:-1] + b"!"


def second_page_without_a_size() -> bytes:
    """A TIFF whose first directory names another one, which is empty."""
    content = bytearray(encoded(PICTURE, "TIFF"))
    (directory,) = struct.unpack_from("<I", content, 4)
    (entries,) = struct.unpack_from("<H", content, directory)
    struct.pack_into("<I", content, directory + 2 + 12 * entries, len(content))
    return bytes(content) + bytes(6)


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (b"", r"is no image \(0 bytes\); accepted: JPEG, PNG"),
        (b"<svg></svg>", "is no image"),
        (b"<!DOCTYPE html><html>", r"is no image \(21 bytes: b'<!DOCTYPE html><'…\); accepted: JPEG"),
        (frames_cut_short(), "a broken image: index out of range; hint: is the file complete"),
        (second_page_without_a_size(), "a broken image: Missing dimensions; hint: is the file complete"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no image"),
        (encoded(PICTURE)[:200], "a broken image: .*hint: is the file complete"),
        (encoded(PICTURE, "JPEG")[:300], "a broken image: "),
        (claiming(30_000, 30_000), "at most 67,108,864"),
        (claiming(9_000, 9_000), "has 9000 x 9000 pixels; accepted: at most 67,108,864"),
        (encoded(PICTURE, "GIF", save_all=True, append_images=[drawn(24, 16, 1)]), "an animation.*: 2 pictures"),
        (encoded(PICTURE, "WEBP", save_all=True, append_images=[drawn(24, 16, 1)]), "an animation.*: 2 pictures"),
        (encoded(PICTURE, "TIFF", save_all=True, append_images=[drawn(24, 16, 1)]), "several pages: 2 pictures"),
        (encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"), "pixels of mode F; accepted: 8 bits"),
        (encoded(Image.fromarray(np.full((2, 2), 70_000, np.int32)), "TIFF"), "pixels of mode I; accepted: 8 bits"),
    ],
)  # fmt: skip
def test_what_is_no_still_picture_is_refused_with_its_row(content: bytes, answer: str) -> None:
    with pytest.raises(DataError, match=f"row 1: .*{answer}"):
        decoded(content)


def test_a_picture_from_a_phone_is_its_first_one() -> None:
    frames: dict[str, Any] = {"save_all": True, "append_images": [drawn(24, 16, 1)]}
    assert np.abs(decoded(encoded(PICTURE, "MPO", **frames)).astype(int) - np.asarray(PICTURE)).mean() < 12
