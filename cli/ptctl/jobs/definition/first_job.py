"""`ptctl init`: a commented job for what one wants; the fields are `workload create`'s, of flags and `--set`.

A job is built and checked before every question and before anything is written, with examples in the place of what is
not known yet, so that a wrong answer is refused where it is given.
"""

import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ptapi import accelerators
from ptapi.errors import SpecError
from ptapi.text import kubectl_yaml
from ptctl.errors import InputError
from ptctl.jobs.definition import from_flags
from ptctl.jobs.definition.file import STDIN, check
from ptctl.jobs.definition.first_job_kinds import COMMENTS, KINDS, Kind
from ptctl.ui.command_line.choices import FIRST_JOBS
from ptctl.ui.console import Console
from ptkube.resources import Manifest

Flags = Mapping[str, Any]
_QUESTIONS = {
    "algorithm": ("What do you want to do?", "sft"),
    "model": ("Which model (hf://organisation/name, gs://…, a path)?", "hf://Qwen/Qwen3-1.7B"),
    "data": ("Which training data: gs://…, hf://datasets/…, or a path?", "gs://my-bucket/data/train.jsonl"),
    "tpu_type": ("Which accelerator (`ptctl accelerators list`; cpu-1 on this machine)?", "v6e-16"),
    "output_uri": ("Where do results go: gs://… or a path?", "gs://my-bucket/runs"),
}
"""What every job needs: the question, and an answer that is proposed, or an example of what only the user knows."""
_EXAMPLES = ("data", "output_uri")
_FLAG_NAMES = {"tpu_type": "--accelerator", "output_uri": "--output"}
_ROWS = 64
"""Sequences per step of the smallest batch: the spec's default."""


def write(console: Console, flags: Flags, target: str) -> None:
    """Write the job into a new file or, for `-`, print it. Raises InputError; then nothing is written."""
    if target != STDIN and Path(target).exists():
        raise InputError(f"{target}: exists, and is not overwritten; accepted: a new file", "-o FILE, or -o - to print")
    answers = _answered(console, flags)
    job = _job(answers)
    text = commented(job, KINDS[answers["algorithm"]])
    if target == STDIN:
        console.data(text.rstrip("\n"))
        return
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}") from error
    console.say(f"written to {target}; next:")
    for verb in (*KINDS[answers["algorithm"]].checks, "workload create"):
        console.say(f"  ptctl {verb} -f {target}")


def commented(job: Manifest, kind: Kind) -> str:
    """Return the job as YAML, with a comment before each part of its spec that has one."""
    comments = {**COMMENTS, **kind.comments}
    lines = [f"# {kind.purpose}", "# Every field: docs/reference/spec.md."]
    for line in kubectl_yaml.write(job).splitlines():
        key = re.match(r"  (\w+):", line)
        lines += [f"  # {comment}" for comment in (comments.get(key[1], ()) if key else ())]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _answered(console: Console, flags: Flags) -> dict[str, Any]:
    """Return the flags with an answer for each that is missing."""
    answers = dict(flags)
    missing = [name for name in _QUESTIONS if not answers.get(name)]
    if missing and not (sys.stdin.isatty() and console.is_live):
        names = ", ".join(_FLAG_NAMES.get(name, f"--{name}") for name in missing)
        raise click.UsageError(f"not a terminal, so nothing is asked; missing: {names}", click.get_current_context())
    _job(answers)
    for name in missing:
        answers[name] = _answer(console, answers, name)
    return answers


def _answer(console: Console, answers: Flags, name: str) -> str:
    """Return an answer with which the job is valid."""
    question, default = _QUESTIONS[name]
    if name == "algorithm":
        for one in FIRST_JOBS:
            console.say(f"  {one:9} {KINDS[one].purpose}")
    elif name == "model":
        default = KINDS[answers["algorithm"]].model
    while True:
        console.say(f"{question} (for example {default})" if name in _EXAMPLES else f"{question} [{default}]")
        line = sys.stdin.readline()
        if not line:
            raise click.Abort
        answer = line.strip() or ("" if name in _EXAMPLES else default)
        if not answer:
            continue
        try:
            _job({**answers, name: answer})
        except InputError as error:
            console.error(error.message, error.hint)
        else:
            return answer


def _job(answers: Flags) -> Manifest:
    """Return the job of these answers, with examples for those that are missing. Raises InputError if it is invalid."""
    known = {name: answers.get(name) or example for name, (_, example) in _QUESTIONS.items()}
    if known["algorithm"] not in KINDS:
        raise InputError(f"{known['algorithm']!r}: accepted: {', '.join(FIRST_JOBS)}")
    kind = KINDS[known["algorithm"]]
    known["model"] = answers.get("model") or kind.model
    job = from_flags.empty_job()
    known |= {"workload": answers.get("workload") or _name(known), "batch_size": _batch(known["tpu_type"], kind)}
    reward = answers.get("reward") or kind.rewards
    settings = (*kind.settings, *(answers.get("assignments") or ()))
    from_flags.apply_flags(job, {**known, "algorithm": kind.algorithm, "reward": reward, "assignments": settings})
    job["spec"] = {key: job["spec"][key] for key in sorted(job["spec"], key=_position)}
    check(job, "the job")
    return job


def _name(known: Flags) -> str:
    """Return the model's name and the algorithm's, as Kubernetes takes names."""
    parts = [part for part in re.split(r"[/:]+", str(known["model"]).lower()) if re.search("[a-z]", part)]
    model = next((part for part in reversed(parts) if part not in ("items", "export")), "")
    plain = re.sub(r"[^a-z0-9]+", "-", f"{model[:40]}-{known['algorithm']}").strip("-")
    return plain if plain[:1].isalpha() else f"job-{plain}"


def _batch(type: str, kind: Kind) -> int:
    """Return the smallest batch that all devices, and a group's samples, divide evenly."""
    try:
        devices = accelerators.resolve(type).total_devices
    except SpecError as error:
        raise InputError(
            "; ".join(f"accelerator {one}".replace(f"{one.field}: ", "") for one in error.findings)
        ) from error
    unit = math.lcm(devices, kind.samples)
    return -(-_ROWS // unit) * unit


def _position(key: str) -> int:
    order = ("image", "runtime", "model", "algorithm", "data", "rewards", "environment", "training", "rollout")
    last = ("evaluation", "checkpoint", "accelerator", "output")
    return order.index(key) if key in order else len(order) + (last.index(key) if key in last else len(last))
