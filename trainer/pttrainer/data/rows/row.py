"""A row, and the rows of a source."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pttrainer.data.sources.images.references import ImageReference
from pttrainer.errors import DataError

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """A row of data. `messages` is the conversation (empty for plain text); `answer` the gold answer.

    line: its number in its file, a line or a row depending on the format; where: the same for messages, with the
    file's name. tools: what the assistant may call, in the form of chat templates. rejected: for a preference, the
    conversation with the worse answer (`messages` has the better one). images: those that `messages` have parts for, in
    their order; `fields` has none of their bytes.
    """

    line: int
    where: str
    messages: tuple[Mapping[str, Any], ...]
    text: str | None
    answer: str | None
    fields: Mapping[str, Any]
    tools: Sequence[Any] | None = None
    rejected: tuple[Mapping[str, Any], ...] = ()
    images: tuple[ImageReference, ...] = ()

    @property
    def prompt(self) -> tuple[Mapping[str, Any], ...]:
        """Return the conversation up to the assistant's last turn: the prompt of reinforcement learning."""
        end = len(self.messages)
        while end and self.messages[end - 1]["role"] == "assistant":
            end -= 1
        return self.messages[:end]

    @property
    def completion(self) -> str:
        """Return what the assistant says after the prompt."""
        return "\n".join(str(message.get("content") or "") for message in self.messages[len(self.prompt) :])


@dataclass(frozen=True)
class Rows:
    """The rows of a source, and how they were read (for the log and for errors).

    bad: errors of rows that were skipped. skip_bad: whether later stages skip bad rows, too.
    """

    uri: str
    format: str
    columns: Mapping[str, str]
    rows: list[Row]
    files: Sequence[str] = ()
    bad: Sequence[DataError] = ()
    skip_bad: bool = False

    @property
    def form(self) -> str:
        """Return what was recognised, for the log."""
        return f"{self.format}: {', '.join(self.columns.values())}"

    def convert(self, one: Callable[[Row], T]) -> tuple[list[T], list[DataError]]:
        """Return what `one` makes of each row, and all errors where bad rows are skipped; raise DataError."""
        made: list[T] = []
        bad = list(self.bad)
        for row in self.rows:
            try:
                made.append(one(row))
            except DataError as error:
                if not self.skip_bad:
                    raise
                bad.append(error)
        if not made:
            raise DataError(f"{self.uri}: none of the {len(bad)} rows can be read; the first: {bad[0]}")
        return made, bad
