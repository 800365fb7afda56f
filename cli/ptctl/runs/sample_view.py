"""Print samples of a run: of one step, or of every step as it arrives, until the job ends."""

import json
import time
from typing import Any, NamedTuple

from ptapi.text.terminal import printable
from ptctl.errors import CliError, MissingError
from ptctl.jobs.view import view
from ptctl.runs.metric_table import number
from ptctl.runs.storage import claim, directory, local_run
from ptctl.ui.app import App, Target

POLL_S = 1.0
Row = dict[str, Any]


class SampleOptions(NamedTuple):
    """last: how many of a step's samples to show (all of them as JSON lines)."""

    last: int
    as_json: bool


def show(app: App, target: Target, name: str, step: int | None, options: SampleOptions) -> None:
    """Print the samples of a step (None: the newest)."""
    job = view(local_run.find(app, target, name))
    pattern = f"samples/step-{'*' if step is None else f'{step:08d}'}.jsonl"
    with claim.run_directory(app, target, job, pattern, newest=1) as run:
        samples = directory.samples(run, step)
    _print(app, *samples, options)


def follow(app: App, target: Target, name: str, options: SampleOptions) -> None:
    """Print the newest step's samples and those of every later step, up to the job's last."""
    job = view(local_run.find(app, target, name))
    if claim.is_elsewhere(job):
        raise CliError(f"-f cannot follow {job.run_uri}, which a pod must read each time", "leave out -f")
    run, last_step = directory.local_path(job.run_uri, "samples"), -1
    if not directory.sample_steps(run) and not job.is_terminal:
        app.console.say(f"job {job.name!r} has no samples yet (phase {job.phase})")
    while True:
        steps = directory.sample_steps(run)
        for step in steps[-1:] if last_step < 0 else [step for step in steps if step > last_step]:
            _print(app, *directory.samples(run, step), options)
            last_step = step
        if job.is_terminal:
            app.console.say(f"job {job.name!r} {job.phase.lower()}")
            return
        time.sleep(POLL_S)
        try:
            job = view(local_run.find(app, target, name))
        except MissingError:
            app.console.say(f"job {job.name!r} was deleted")
            return


def _print(app: App, step: int, rows: list[Row], options: SampleOptions) -> None:
    if options.as_json:
        app.console.data("\n".join(json.dumps(row) for row in rows))
        return
    for row in rows[-options.last :]:
        for line in wrap_parts([f"step {step}", *_headline(row)], app.console.width):
            app.console.data(app.console.paint(line, "bold"))
        app.console.data(printable(str(row.get("prompt", ""))))
        for text, is_model in _split_turns(row):
            app.console.data(app.console.paint(printable(text), "cyan" if is_model else "dim"))
        if row.get("error"):
            app.console.data(app.console.paint(f"no reward: {printable(str(row['error']))}", "red"))
        app.console.data("")


def _headline(row: Row) -> list[str]:
    """Return the reward, its components if several, the advantage, the length, and the tool calls."""
    rewards = row.get("rewards")
    parts: Row = rewards if isinstance(rewards, dict) else {}
    named = {"reward": row.get("reward"), **(parts if len(parts) > 1 else {}), "advantage": row.get("advantage")}
    parts_shown = [f"{name} {number(value) or 'none'}" for name, value in named.items() if name in row or name in parts]
    if "tokens" in row:
        parts_shown.append(f"tokens {row['tokens']}" + ("" if row.get("ended", True) else ", cut"))
    if row.get("tool_calls"):
        parts_shown.append(f"calls {row['tool_calls']}, failed {row.get('tool_failures', 0)}")
    return parts_shown


def wrap_parts(parts: list[str], width: int | None) -> list[str]:
    """Put as many parts on a line as fit; indent continuation lines."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}   {part}"
        if width is None or len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"  {part}")
    return lines


def _split_turns(row: Row) -> list[tuple[str, bool]]:
    """Return each turn and True if the model wrote it (only those are trained); without turns, the completion."""
    turns = row.get("turns")
    if not isinstance(turns, list):
        return [(str(row.get("completion", "")), True)]
    spoken = [turn for turn in turns if isinstance(turn, dict)]
    return [(f"{turn.get('role', '')}: {turn.get('content', '')}", turn.get("role") == "assistant") for turn in spoken]
