"""`ptctl plan matrix`: accelerators by batch sizes, as a table, JSON, CSV or a picture."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptctl.errors import InputError
from ptctl.planning.prices import Prices
from ptctl.ui.console import Console
from ptctl.ui.table import table

Cell = dict[str, Any]
FORMS = ("text", "json", "csv")
_HEADERS = (
    "ACCELERATOR",
    "BATCH",
    "TENSOR",
    "FITS",
    "PEAK GIB",
    "OF",
    "S/STEP",
    "TOKENS/S",
    "PER CHIP",
    "COST/M TOKENS",
)
_NOTE = "memory by the formula; seconds are a lower bound and tokens/s an upper bound; network time is not included"


def show(console: Console, cells: Sequence[Cell], prices: Prices | None, title: str, target: str) -> None:
    """Print the cells in a named form, or write them to a file in the form of its extension."""
    priced_cells = [_with_cost(cell, prices) for cell in cells]
    if target in FORMS:
        console.data(_text(priced_cells, target))
    elif target.endswith(".png"):
        _write(target, picture(priced_cells, title))
    else:
        _write(target, (_text(priced_cells, target.rpartition(".")[2]) + "\n").encode())
    console.say(_NOTE)
    if prices is None:
        console.say("no prices given, so no cost; hint: --prices FILE, a YAML file of your prices per chip-hour")
    else:
        console.say(f"prices in {prices.currency} per chip-hour: {prices.source or 'no source given'}")


def is_accepted(target: str) -> bool:
    """Return True if the output form is known."""
    return target in FORMS or target.endswith((".json", ".csv", ".txt", ".png"))


def _with_cost(cell: Cell, prices: Prices | None) -> Cell:
    speed = cell["tokens_per_second_per_chip"]
    cost = None if prices is None or not speed else prices.per_million_tokens(cell["generation"], speed)
    return {**cell, "cost_per_million_tokens": cost}


def _text(cells: Sequence[Cell], form: str) -> str:
    if form == "json":
        return json.dumps([{_camel(key): value for key, value in cell.items()} for cell in cells], indent=2)
    if form == "csv":
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, [_camel(key) for key in cells[0]] if cells else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({_camel(key): _csv_value(value) for key, value in cell.items()} for cell in cells)
        return buffer.getvalue().rstrip("\n")
    return table(_HEADERS, [_row(cell) for cell in cells])


def _row(cell: Cell) -> list[str]:
    if cell["why"]:
        accepted = cell["why"].partition(": ")[2].partition(": ")[2].partition(",")[0]
        return [cell["accelerator"], str(cell["batch_size"]), "-", accepted or "no job", *[""] * 6]
    numbers = (
        _format(cell["peak_gib"], ".1f"),
        _format(cell["available_gib"], ".1f"),
        _format(cell["seconds_per_step"], ".3g"),
        _format(cell["tokens_per_second"], ",.0f"),
        _format(cell["tokens_per_second_per_chip"], ",.0f"),
        _format(cell["cost_per_million_tokens"], ".3f"),
    )
    split = str(cell["tensor"])
    return [cell["accelerator"], str(cell["batch_size"]), split, "yes" if cell["fits"] else "no", *numbers]


def picture(cells: Sequence[Cell], title: str) -> bytes:
    """Draw a PNG of each cell's memory against what a chip has; cells that do not fit are red."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "a picture needs matplotlib, which is not installed", "pip install 'posttrain[cli]'"
        ) from error
    plotted = [cell for cell in cells if not cell["why"]]
    figure = Figure(figsize=(9, 1.5 + 0.3 * len(plotted)))
    axes = FigureCanvasAgg(figure).figure.add_subplot()
    positions = list(range(len(plotted)))[::-1]
    colours = ["#2e7d32" if cell["fits"] else "#c62828" for cell in plotted]
    axes.barh(positions, [cell["available_gib"] for cell in plotted], color="#e0e0e0")
    axes.barh(positions, [cell["peak_gib"] for cell in plotted], color=colours, height=0.5)
    axes.set_yticks(positions, [f"{cell['accelerator']}, batch {cell['batch_size']}" for cell in plotted])
    for position, cell in zip(positions, plotted, strict=True):
        axes.text(cell["peak_gib"], position, f" {cell['tokens_per_second']:,.0f} tokens/s", va="center", fontsize=8)
    axes.set_xlabel("GiB per chip (grey: memory available to a program)")
    axes.set_title(title)
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _write(target: str, content: bytes) -> None:
    try:
        Path(target).write_bytes(content)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}") from error


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _csv_value(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
