"""Two jobs side by side: what differs in spec, lineage and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ptctl.errors import CliError
from ptctl.jobs.view import JobView, part, view
from ptctl.runs.storage import claim, local_run
from ptctl.ui.app import App, Target
from ptctl.ui.table import table
from ptkube.resources import Manifest

_LINEAGE = "lineage.json"
_RESULTS = ("phase", "chips", "progress", "metrics", "checkpoint", "restarts", "failure", "time", "cost")
_PASSING = ("updated", "eta", "steps", "uri", "time", "pod", "node", "log")
"""Fields of the status that differ between any two runs and say nothing about either."""
Difference = dict[str, tuple[Any, Any]]


def print_differences(app: App, target: Target, first: str, second: str, form: str | None) -> None:
    """Print what differs between two jobs; nothing on stdout where nothing does."""
    jobs = [view(local_run.find(app, target, name)) for name in (first, second)]
    sections = {
        "spec": differences(*(job.raw["spec"] for job in jobs)),
        "lineage": differences(*(_lineage(app, target, job) for job in jobs)),
        "results": differences(*(lasting_results(job) for job in jobs)),
    }
    if form == "json":
        app.console.data(json.dumps(sections, indent=2))
        return
    rows = [
        (f"{section}.{path}", _text(left), _text(right))
        for section, fields in sections.items()
        for path, (left, right) in fields.items()
    ]
    if rows:
        app.console.data(_table(("FIELD", first, second), rows, app.console.width))
    else:
        app.console.say("no differences in spec, lineage and results")


def differences(first: Any, second: Any) -> Difference:
    """Return both values of each field that differs, by its path; None for a field that is absent."""
    left, right = dict(_leaves(first, "")), dict(_leaves(second, ""))
    paths = dict.fromkeys((*left, *right))
    return {path: (left.get(path), right.get(path)) for path in paths if left.get(path) != right.get(path)}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    elif path:
        yield path, value


def _lineage(app: App, target: Target, job: JobView) -> Manifest:
    """Return the lineage document; empty, with a note, where it cannot be read from here."""
    try:
        with claim.run_directory(app, target, job, _LINEAGE) as run:
            document = json.loads((run / _LINEAGE).read_text(encoding="utf-8"))
    except (CliError, OSError, ValueError) as error:
        reason = error.message if isinstance(error, CliError) else "no lineage.json that can be read"
        app.console.say(f"without the lineage of {job.name}: {reason}")
        return {}
    return document if isinstance(document, dict) else {}


def lasting_results(job: JobView) -> Manifest:
    """Return the results in the status, without what differs between any two runs."""
    status = {key: part(job.raw, "status", key, missing=None) for key in _RESULTS}
    return {key: _lasting(value) for key, value in status.items() if value is not None}


def _lasting(value: Any) -> Any:
    return {key: each for key, each in value.items() if key not in _PASSING} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def _table(headers: tuple[str, str, str], rows: list[tuple[str, str, str]], width: int | None) -> str:
    """Return the table; where it does not fit, each field with its two values below it."""
    text = table(headers, rows)
    if width is None or max(map(len, text.splitlines())) <= width:
        return text
    return "\n".join(f"{field}\n  - {left}\n  + {right}" for field, left, right in rows)
