"""Pictures drawn from a seed: one to three shapes of one colour, in cells of a square of three by three.

    2 red squares        what a picture shows, and the only words for it

What is random: which cells, where in its cell a shape stands and how large it is, the background, noise. Blank pictures
are for controls: grey, and all the same.
"""

import random
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

COLOURS = {"red": (210, 40, 40), "green": (40, 170, 60), "blue": (50, 70, 210), "yellow": (220, 200, 40)}
SHAPES = ("circle", "square", "triangle")
COUNTS = (1, 2, 3)
CELL, CELLS = 16, 3
SIDE = CELL * CELLS
LABELS = [
    f"{count} {colour} {shape}{'s' if count > 1 else ''}" for count, colour, shape in product(COUNTS, COLOURS, SHAPES)
]
"""What pictures show."""
BLANK = "blank.png"


def draw(label: str, source: random.Random) -> Image.Image:
    """A picture that shows this."""
    count, colour, shape = label.split()
    level = source.randrange(200, 256)
    picture = Image.new("RGB", (SIDE, SIDE), (level, level, level))
    canvas = ImageDraw.Draw(picture)
    for cell in source.sample(range(CELLS**2), int(count)):
        _shape(canvas, shape.rstrip("s"), COLOURS[colour], cell, source)
    noise = np.random.default_rng(source.getrandbits(32)).normal(0, 8, (SIDE, SIDE, 3))
    return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))


def write(folder: Path, labels: list[str], source: random.Random, first: int = 0) -> list[str]:
    """Pictures that show these, numbered from `first`, and a blank one; returns their paths beside the rows' file."""
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (SIDE, SIDE), (128, 128, 128)).save(folder / BLANK)
    names = [f"{number}.png" for number in range(first, first + len(labels))]
    for name, label in zip(names, labels, strict=True):
        draw(label, source).save(folder / name)
    return [f"{folder.name}/{name}" for name in names]


def _shape(
    canvas: ImageDraw.ImageDraw, shape: str, colour: tuple[int, int, int], cell: int, source: random.Random
) -> None:
    half = source.choice((5, 6))
    room = CELL // 2 - half
    row, column = divmod(cell, CELLS)
    x, y = (CELL * at + CELL // 2 + source.randint(-room, room) for at in (column, row))
    box = (x - half, y - half, x + half, y + half)
    if shape == "circle":
        canvas.ellipse(box, colour)
    elif shape == "square":
        canvas.rectangle(box, colour)
    else:
        canvas.polygon([(x, y - half), (x - half, y + half), (x + half, y + half)], colour)
