"""Samples of a run as lines: of one step, or of every step as it comes, until the job ends."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from ptapi.text.terminal import printable
from ptctl.errors import MissingError
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import JobView, view
from ptctl.runs import files
from ptctl.runs.metric_table import number
from ptctl.ui.app import App, Target

LOOK_EVERY_S = 1.0
Row = dict[str, Any]


class How(NamedTuple):
    """last: how many of a step's samples are shown; as JSON lines it is all of them."""

    last: int
    as_json: bool


def show(app: App, target: Target, name: str, step: int | None, how: How) -> None:
    """The samples of a step (None: the newest)."""
    job = view(fetch(app.connect(target), target, name))
    _print(app, *files.samples(_run(job), step), how)


def follow(app: App, target: Target, name: str, how: How) -> None:
    """The newest step's samples and those of every later step. A job's last step is shown before this ends."""
    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    run, shown = _run(job), -1
    if not files.sample_steps(run) and not job.is_terminal:
        app.console.say(f"job {name!r} has no samples yet (phase {job.phase})")
    while True:
        steps = files.sample_steps(run)
        for step in steps[-1:] if shown < 0 else [step for step in steps if step > shown]:
            _print(app, *files.samples(run, step), how)
            shown = step
        if job.is_terminal:
            app.console.say(f"job {name!r} {job.phase.lower()}")
            return
        time.sleep(LOOK_EVERY_S)
        try:
            job = view(fetch(kube, target, name))
        except MissingError:
            app.console.say(f"job {name!r} was deleted")
            return


def _run(job: JobView) -> Path:
    return files.local_path(job.run_uri, "samples")


def _print(app: App, step: int, rows: list[Row], how: How) -> None:
    if how.as_json:
        app.console.data("\n".join(json.dumps(row) for row in rows))
        return
    for row in rows[-how.last :]:
        for line in wrapped([f"step {step}", *_figures(row)], app.console.width):
            app.console.data(app.console.paint(line, "bold"))
        app.console.data(printable(str(row.get("prompt", ""))))
        for text, is_said in _turns(row):
            app.console.data(app.console.paint(printable(text), "cyan" if is_said else "dim"))
        if row.get("error"):
            app.console.data(app.console.paint(f"no reward: {printable(str(row['error']))}", "red"))
        app.console.data("")


def _figures(row: Row) -> list[str]:
    """The reward, its parts where there are several, the advantage; the length, and how the tools fared."""
    parts = row.get("rewards") or {}
    named = {"reward": row.get("reward"), **(parts if len(parts) > 1 else {}), "advantage": row.get("advantage")}
    shown = [f"{name} {number(value) or 'none'}" for name, value in named.items() if name in row or name in parts]
    if "tokens" in row:
        shown.append(f"tokens {row['tokens']}" + ("" if row.get("ended", True) else ", cut"))
    if row.get("tool_calls"):
        shown.append(f"calls {row['tool_calls']}, failed {row.get('tool_failures', 0)}")
    return shown


def wrapped(parts: list[str], width: int | None) -> list[str]:
    """As many to a line as fit; those that go on are indented."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}   {part}"
        if width is None or len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"  {part}")
    return lines


def _turns(row: Row) -> list[tuple[str, bool]]:
    """Each turn and whether the model said it: only that is trained. Without turns, the completion."""
    turns = row.get("turns")
    if not isinstance(turns, list):
        return [(str(row.get("completion", "")), True)]
    return [(f"{turn.get('role', '')}: {turn.get('content', '')}", turn.get("role") == "assistant") for turn in turns]
