"""How lines of several ranks and attempts are told apart. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ptctl.runs.logs.ranks import Rank


class Entry(NamedTuple):
    """A line of the trainer's, with its rank where there are several; or a note about the job, such as a restart."""

    text: str
    is_note: bool = False


class Layout:
    """Lay out lines: with more than one rank each begins with its rank; a new attempt is announced."""

    def __init__(self) -> None:
        self._has_many = False
        self._attempt = 0

    def note_ranks(self, current: list[Rank]) -> None:
        """Learn whether there is more than one rank."""
        self._has_many = self._has_many or any(rank.number > 0 for rank in current)

    def entries(self, writers: Sequence[Rank], line: str) -> Iterator[Entry]:
        """Yield the line as printed, after a note where its attempt begins. writers: the ranks that wrote it."""
        attempt = writers[0].attempt
        if attempt != self._attempt:
            if self._attempt or attempt > 1:
                yield Entry(f"--- attempt {attempt}", is_note=True)
            self._attempt = attempt
        yield Entry(f"[{_numbers(writers)}] {line}" if self._has_many else line)


def _numbers(writers: Sequence[Rank]) -> str:
    """Return the numbers of ranks, in ascending order, as `0`, `0,2` or `0-7`."""
    runs: list[list[int]] = []
    for number in (rank.number for rank in writers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
