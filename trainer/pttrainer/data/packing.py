"""Pack several examples into one row: best-fit decreasing.

The longest example first, each into the row with the least room that still holds it. Segment ids and restarted
positions keep a row's examples apart, so packing changes speed and nothing else.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the indices of the examples in each row; O(n log n). Every length must be in 1 … capacity.

    Deterministic: equal lengths are placed in the order given.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free slots, row), sorted
    for i in order:
        at = bisect_left(room, (lengths[i], -1))
        if at == len(room):
            rows.append([i])
            free, row = capacity - lengths[i], len(rows) - 1
        else:
            free, row = room.pop(at)
            rows[row].append(i)
            free -= lengths[i]
        if free:
            insort(room, (free, row))
    return rows
