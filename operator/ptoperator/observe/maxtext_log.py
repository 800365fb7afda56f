"""Parse MaxText's log as progress. Pure. MaxText writes no progress document, so the operator reads the end of a log.

Why the log, and not a wrapper around the program or a sidecar beside it: nothing runs in the user's image that could
stop the run, nothing is installed there, and the price is one request per reconcile (`settings.progress_seconds`). What
is lost: the numbers of a deleted pod, until the next one logs. Lines as MaxText e591f30 prints them
(common/metric_logger.py, trainers/post_train/rl): train_sft logs every step, train_rl only its evaluations, and Tunix's
progress bar if it is shown.
"""

import re
from collections.abc import Callable, Iterable

from ptapi import run_directory
from ptapi.run_directory import Progress

Metrics = dict[str, float]

_NUMBER = r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))"
_STEP = re.compile(r"completed step: (\d+), seconds: " + _NUMBER)
_SHOWN = {
    run_directory.LOSS: re.compile(r"\bloss: " + _NUMBER),
    run_directory.PERPLEXITY: re.compile(r"\bperplexity: " + _NUMBER),
    "tokens_per_device": re.compile(r"Tokens/s/device: " + _NUMBER),
}
_EVAL = re.compile(rf"Completed eval after train step (\d+), loss={_NUMBER}")
_RL_EVAL = re.compile(rf"(Pre RL Training|Post RL Training|Intermediate Eval \(step=(\d+)\)):.*mean_reward={_NUMBER}")
_BAR = re.compile(r"\|\s*(\d+)/(\d+) \[")
_STARTED = "Starting RL training..."
_ENDED = "RL Training Completed Successfully!"


def read(lines: Iterable[str], total_steps: int, devices: int) -> Progress | None:
    """Return the progress that the lines show, or None. Each line begins with its time."""
    values: Metrics = {}
    updated = ""
    for line in lines:
        time, _, text = line.partition(" ")
        line_metrics = _metrics(text, total_steps)
        values |= line_metrics or {}
        if line_metrics is not None or updated:  # after the first step any line is a heartbeat
            updated = time or updated
    if not updated:
        return None
    step, seconds, per_device = (
        int(values.pop("step", 0)),
        values.pop("seconds", None),
        values.pop("tokens_per_device", None),
    )
    rate = {} if per_device is None else {run_directory.TOKENS_PER_SECOND: per_device * devices}
    return Progress(
        stage="training",
        step=step,
        total_steps=total_steps,
        seconds_per_step=seconds,
        eta_seconds=None if seconds is None else max(0, total_steps - step) * seconds,
        metrics=values | rate,
        updated=updated,
    )


def _metrics(text: str, total_steps: int) -> Metrics | None:
    """Return a line's numbers; empty if it only says that training began, None for any other line."""
    metrics = next((each for parse in _PARSERS if (each := parse(text, total_steps)) is not None), None)
    return {} if metrics is None and _STARTED in text else metrics


def _sft(text: str, _: int) -> Metrics | None:
    match = _STEP.search(text)
    if match is None:
        return None
    shown = {name: pattern.search(text) for name, pattern in _SHOWN.items()}
    values = {name: float(each.group(1)) for name, each in shown.items() if each}
    return {"step": float(match.group(1)), "seconds": float(match.group(2)), **values}


def _sft_eval(text: str, _: int) -> Metrics | None:
    match = _EVAL.search(text)
    return {run_directory.EVAL_LOSS: float(match.group(2))} if match else None


def _rl_eval(text: str, total_steps: int) -> Metrics | None:
    match = _RL_EVAL.search(text)
    if match is None:
        return {"step": float(total_steps)} if _ENDED in text else None
    reward = {run_directory.EVAL_REWARD: float(match.group(3))}
    return {**reward, "step": float(match.group(2))} if match.group(2) else reward


def _bar(text: str, total_steps: int) -> Metrics | None:
    """Return the latest step of the training's bar; other bars (of downloads) count to another total."""
    of_training = [each for each in _BAR.finditer(text) if int(each.group(2)) == total_steps]
    return {"step": float(of_training[-1].group(1))} if of_training else None


_PARSERS: tuple[Callable[[str, int], Metrics | None], ...] = (_sft, _sft_eval, _rl_eval, _bar)
