"""`ptctl plan --matrix`: cells of accelerators and batch sizes, as a table, JSON, CSV or a picture."""

from __future__ import annotations

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
_NOTE = "memory by the formula; time is a bound: at least so many seconds, at most so many tokens, network not counted"


def show(console: Console, cells: Sequence[Cell], prices: Prices | None, title: str, target: str) -> None:
    """A form goes to stdout; a file gets the form that its ending names."""
    priced = [_priced(cell, prices) for cell in cells]
    if target in FORMS:
        console.data(_text(priced, target))
    elif target.endswith(".png"):
        _write(target, picture(priced, title))
    else:
        _write(target, (_text(priced, target.rpartition(".")[2]) + "\n").encode())
    console.say(_NOTE)
    if prices is None:
        console.say("no cost without prices; hint: --prices FILE, a YAML of your prices per chip-hour")
    else:
        console.say(f"prices in {prices.currency} per chip-hour: {prices.source or 'no source given'}")


def is_accepted(target: str) -> bool:
    """Whether the form is known."""
    return target in FORMS or target.endswith((".json", ".csv", ".txt", ".png"))


def _priced(cell: Cell, prices: Prices | None) -> Cell:
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
        writer.writerows({_camel(key): _plain(value) for key, value in cell.items()} for cell in cells)
        return buffer.getvalue().rstrip("\n")
    return table(_HEADERS, [_row(cell) for cell in cells])


def _row(cell: Cell) -> list[str]:
    if cell["why"]:
        accepted = cell["why"].partition(": ")[2].partition(": ")[2].partition(",")[0]
        return [cell["accelerator"], str(cell["batch_size"]), "-", accepted or "no job", *[""] * 6]
    numbers = (
        _shown(cell["peak_gib"], ".1f"),
        _shown(cell["available_gib"], ".1f"),
        _shown(cell["seconds_per_step"], ".3g"),
        _shown(cell["tokens_per_second"], ",.0f"),
        _shown(cell["tokens_per_second_per_chip"], ",.0f"),
        _shown(cell["cost_per_million_tokens"], ".3f"),
    )
    split = str(cell["tensor"])
    return [cell["accelerator"], str(cell["batch_size"]), split, "yes" if cell["fits"] else "no", *numbers]


def picture(cells: Sequence[Cell], title: str) -> bytes:
    """A PNG: memory of each cell against what a chip has; what does not fit is red."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "a picture needs matplotlib, which is not installed", "pip install 'posttrain[cli]'"
        ) from error
    shown = [cell for cell in cells if not cell["why"]]
    figure = Figure(figsize=(9, 1.5 + 0.3 * len(shown)))
    axes = FigureCanvasAgg(figure).figure.add_subplot()
    places = list(range(len(shown)))[::-1]
    colours = ["#2e7d32" if cell["fits"] else "#c62828" for cell in shown]
    axes.barh(places, [cell["available_gib"] for cell in shown], color="#e0e0e0")
    axes.barh(places, [cell["peak_gib"] for cell in shown], color=colours, height=0.5)
    axes.set_yticks(places, [f"{cell['accelerator']}, batch {cell['batch_size']}" for cell in shown])
    for place, cell in zip(places, shown, strict=True):
        axes.text(cell["peak_gib"], place, f" {cell['tokens_per_second']:,.0f} tokens/s", va="center", fontsize=8)
    axes.set_xlabel("GiB per chip (grey: what a chip gives a program)")
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


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _plain(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
