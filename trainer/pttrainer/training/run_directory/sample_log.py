"""The samples of a step: all of them as JSON lines in the run directory, some of them in TensorBoard's text tab.

The text waits until the step's metrics are written, because importing TensorBoard's writer takes half a second and must
not delay the first step's line.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pttrainer.runtime.io.place import Place
from pttrainer.training.run_directory import run_files

SHOWN = 8
"""Rows in TensorBoard; the JSON lines hold all."""
LONGEST = 1_000
"""Characters of a cell in TensorBoard."""
TAG = "samples"

Row = Mapping[str, Any]


class SampleLog:
    """Write the samples of each step. leader: True if this process writes."""

    def __init__(self, place: Place, *, leader: bool) -> None:
        self._place, self._leader, self._waiting = place, leader, ""

    def save(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Save all samples of a step."""
        if self._leader:
            run_files.save_samples(self._place, step, rows)
            self._waiting = markdown(rows)

    def take(self) -> str:
        """Return the text that is not shown yet, and forget it; empty if there is none."""
        waiting, self._waiting = self._waiting, ""
        return waiting


def markdown(rows: Sequence[Row]) -> str:
    """Return a table of the first samples."""
    names = list(dict.fromkeys(name for row in rows for name in row.get("rewards", {})))
    head = ["prompt", "completion", *(names if len(names) > 1 else []), "reward", "advantage"]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in rows[:SHOWN]:
        completion = row.get("completion", "") if "turns" not in row else _conversation(row["turns"])
        each = [_number(row["rewards"].get(name)) for name in names] if len(names) > 1 else []
        cells = [_text(row.get("prompt", "")), _text(completion), *each]
        lines.append(_line([*cells, _number(row.get("reward")), _number(row.get("advantage"))]))
    return "\n".join(lines)


def _conversation(turns: Sequence[Row]) -> str:
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: Any) -> str:
    return "none" if value is None else f"{float(value):.3g}"


def _text(value: Any) -> str:
    """Return one cell: escape Markdown, and keep a line break from ending the row."""
    text = str(value).encode(errors="replace").decode()  # lone surrogates, which JSON allows
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
    for sign in ("\\", "|", "`", "*", "_", "#", "[", "]", "$"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")
