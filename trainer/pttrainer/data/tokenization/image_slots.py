"""Which embedding of a row's images each of its tokens has, and where a row may be cut.

Letters: T tokens.
"""

import numpy as np

from pttrainer.errors import DataError


def slots(ids_T: np.ndarray, part_id: int, count: int, images: int, where: str) -> np.ndarray:
    """Return 0 for tokens of text, else 1 + the place among the embeddings of `images` images of `count` tokens each.

    Raises DataError, naming `where`, if the tokens are not theirs.
    """
    is_part_T = ids_T == part_id
    starts = np.flatnonzero(is_part_T & ~np.append(False, is_part_T[:-1]))
    ends = np.flatnonzero(is_part_T & ~np.append(is_part_T[1:], False)) + 1
    if len(starts) != images or (ends - starts != count).any():
        lengths = ", ".join(map(str, ends - starts)) or "no"
        raise DataError(
            f"{where}: runs of {lengths} tokens of id {part_id}; accepted: a run of {count} for each of its {images} "
            "images"
        )
    places_T: np.ndarray = np.cumsum(is_part_T, dtype=np.int32) * is_part_T
    return places_T.astype(np.int32)


def whole_images(ids: list[int], part_id: int, count: int) -> tuple[int, int]:
    """Return how many tokens to keep of an example that was cut, so that no image among its inputs is, and its images.

    Inputs are all tokens but the last one.
    """
    places = [place for place, token in enumerate(ids[:-1]) if token == part_id]
    images, rest = divmod(len(places), count)
    return places[images * count] if rest else len(ids), images
