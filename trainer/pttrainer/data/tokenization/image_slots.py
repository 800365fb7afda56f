"""Which embedding of a row's images each of its tokens has, and where a row may be cut.

Letters: T tokens.
"""

from collections.abc import Sequence

import numpy as np

from pttrainer.errors import DataError


def slots(ids_T: np.ndarray, part_id: int, runs: Sequence[Sequence[int]], most: int, where: str) -> np.ndarray:
    """Return 0 for tokens of text, else 1 + the place among the embeddings of the row's images, each of `most` places.

    runs: the tokens of each image's lines or tiles, which others part. Raises DataError, naming `where`, if the tokens
    are not theirs.
    """
    is_part_T = ids_T == part_id
    starts = np.flatnonzero(is_part_T & ~np.append(False, is_part_T[:-1]))
    lengths = np.flatnonzero(is_part_T & ~np.append(is_part_T[1:], False)) + 1 - starts
    if lengths.tolist() != [run for of_image in runs for run in of_image]:
        shown = ", ".join(map(str, lengths)) or "no"
        raise DataError(f"{where}: runs of {shown} tokens of id {part_id}; accepted: {_accepted(runs, most)}")
    slots_T = np.zeros(len(ids_T), np.int32)
    places = [1 + image * most + np.arange(sum(of_image)) for image, of_image in enumerate(runs)]
    slots_T[is_part_T] = np.concatenate(places) if places else 0
    return slots_T


def runs_of(slots_T: np.ndarray, most: int) -> list[list[int]]:
    """Return the runs of tokens of each image of which a row has slots."""
    runs: list[list[int]] = []
    for before, slot in zip([0, *slots_T.tolist()], slots_T.tolist(), strict=False):
        if slot and (slot - 1) % most == 0:
            runs.append([])
        if slot and (not before or (slot - 1) % most == 0):
            runs[-1].append(0)
        if slot:
            runs[-1][-1] += 1
    return runs


def whole_images(ids: list[int], part_id: int, counts: Sequence[int]) -> tuple[int, int]:
    """Return how many tokens to keep of an example that was cut, so that no image among its inputs is, and its images.

    Inputs are all tokens but the last one. counts: the tokens of each image of the whole example.
    """
    places = [place for place, token in enumerate(ids[:-1]) if token == part_id]
    images = whole = 0
    while images < len(counts) and whole + counts[images] <= len(places):
        whole += counts[images]
        images += 1
    return places[whole] if whole < len(places) else len(ids), images


def _accepted(runs: Sequence[Sequence[int]], most: int) -> str:
    if any(len(of_image) > 1 for of_image in runs):
        listed = "; ".join(f"{len(of_image)} of {of_image[0]}" for of_image in runs)
        return f"runs of lines or tiles for its {len(runs)} images: {listed}"
    counts = [of_image[0] for of_image in runs]
    if len(set(counts)) > 1:
        return f"runs of {', '.join(map(str, counts))} for its {len(counts)} images"
    return f"a run of {counts[0] if counts else most} for each of its {len(counts)} images"
