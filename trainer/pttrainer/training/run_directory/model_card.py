"""The model card beside exported weights: README.md as the hub shows it, made from the run's own documents.

It says what the model was trained from and on, how, what it measured, and what the run consisted of, so that the
weights explain themselves wherever they are copied to. Left out: what nobody measured, such as intended use.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ptapi import run_directory
from ptapi.spec import PostTrainJob
from pttrainer.runtime.io.place import Place
from pttrainer.training.run_directory import run_files

NAME = "README.md"
_BARS = "▁▂▃▄▅▆▇█"
_CURVES = ("loss", "reward", "kl", "entropy", "completion_length")
_WIDTH = 40
"""Characters of a curve."""
Row = Mapping[str, Any]


def write(run: Place, target: Place, job: PostTrainJob, step: int) -> None:
    """Write the card of a run's weights of a step into their directory."""
    rows = _rows(run.read(run_directory.METRICS) or b"", step)
    target.write(NAME, card(job, run_files.read_lineage(run), rows, step).encode())


def _rows(content: bytes, step: int) -> list[Row]:
    """Return the rows up to a step; of one that was repeated after a restart, the later row."""
    rows: dict[int, Row] = {}
    for line in content.splitlines():
        try:
            row = json.loads(line)
            rows[int(row["step"])] = row
        except (ValueError, KeyError, TypeError):  # a kill cut it in half
            continue
    return [rows[each] for each in sorted(rows) if each <= step]


def card(job: PostTrainJob, lineage: Mapping[str, Any], rows: Sequence[Row], step: int) -> str:
    """Return the card. rows: of metrics.jsonl; step: that of the exported weights."""
    parts = [_front_matter(job), f"# {job.metadata.name}\n", _summary(job, lineage, step)]
    parts += [_evaluation(rows), _curves(rows), _data(lineage), _lineage(lineage)]
    return "\n".join(part for part in parts if part)


def _front_matter(job: PostTrainJob) -> str:
    """Return the head that the hub reads."""
    uri = job.spec.model.uri
    facts: dict[str, Any] = {"library_name": "peft" if job.spec.export.format == "peft" else "transformers"}
    if uri.startswith("hf://"):
        facts["base_model"] = uri.removeprefix("hf://")
    facts["tags"] = ["posttrain", job.spec.label]
    return f"---\n{yaml.safe_dump(facts, sort_keys=False)}---\n"


def _summary(job: PostTrainJob, lineage: Mapping[str, Any], step: int) -> str:
    spec, commit = job.spec, lineage.get("modelCommit")
    base = f"`{spec.model.uri}`{f' at commit `{commit}`' if commit else ''}"
    lora = spec.training.lora
    trained = f"LoRA of rank {lora.rank}" if lora else "all weights"
    rate = spec.training.optimizer.learning_rate
    learning_rate = "" if rate is None else f", learning rate {rate:g}"
    facts = [
        f"Post-trained from {base} with {spec.label}: step {step}, {trained}.\n",
        f"- batch {spec.training.batch_size}, sequence length {spec.training.sequence_length}{learning_rate}, "
        f"{spec.training.optimizer.name}, seed {spec.training.seed}",
    ]
    if spec.rewards:
        facts.append(f"- rewards: {', '.join(f'{reward.label} × {reward.weight:g}' for reward in spec.rewards)}")
    return "\n".join(facts) + "\n"


def _evaluation(rows: Sequence[Row]) -> str:
    """Return the first and last held-out numbers; nothing for a run that measured none."""
    measured = [row for row in rows if any(name.startswith("eval/") for name in row)]
    if not measured:
        return ""
    first, last = measured[0], measured[-1]
    names = sorted(name for name in last if name.startswith("eval/"))
    lines = [f"| {name[5:]} | {_number(first.get(name))} | {_number(last[name])} |" for name in names]
    head = f"| held out | step {first['step']} | step {last['step']} |\n| --- | --- | --- |"
    return "\n".join(["## Evaluation\n", head, *lines, ""])


def _curves(rows: Sequence[Row]) -> str:
    lines = []
    for name in _CURVES:
        values = [float(row[name]) for row in rows if isinstance(row.get(name), int | float)]
        if len(values) > 1:
            lines.append(f"| {name} | {_number(values[0])} | `{_curve(values)}` | {_number(values[-1])} |")
    head = ["## Training\n", "| | first step | | last step |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *lines, ""]) if lines else ""


def _curve(values: Sequence[float]) -> str:
    """Return bars between minimum and maximum; the mean of several steps where they do not fit."""
    count = min(_WIDTH, len(values))
    edges = [len(values) * at // count for at in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low = min(means)
    span = (max(means) - low) or 1.0
    return "".join(_BARS[round((mean - low) / span * (len(_BARS) - 1))] for mean in means)


def _data(lineage: Mapping[str, Any]) -> str:
    lines = []
    for part, source in (lineage.get("data") or {}).items():
        files = source.get("files") or []
        digest = ", ".join(f"sha256 {str(file['sha256'])[:16]}…" for file in files[:3] if file.get("sha256"))
        more = f" and {len(files) - 3} more files" if len(files) > 3 else ""
        lines.append(f"- {part}: `{source.get('uri')}`{f' ({digest}{more})' if digest else ''}")
    return "\n".join(["## Data\n", *lines, ""]) if lines else ""


def _lineage(lineage: Mapping[str, Any]) -> str:
    """Return what the run consisted of: chips, versions, number formats."""
    devices, precision = lineage.get("devices") or {}, lineage.get("precision") or {}
    versions = ", ".join(f"{name} {version}" for name, version in (lineage.get("versions") or {}).items() if version)
    facts = {
        "parameters": lineage.get("parameters"),
        "trained parameters": lineage.get("trainedParameters"),
        "devices": " × ".join(str(devices[key]) for key in ("count", "kind") if key in devices),
        "weights and computation": ", ".join(str(value) for value in precision.values()),
        "image": lineage.get("image"),
        "versions": versions,
    }
    lines = [
        f"- {name}: {value:,}" if isinstance(value, int) else f"- {name}: {value}"
        for name, value in facts.items()
        if value
    ]
    return "\n".join(["## Lineage\n", *lines, ""]) if lines else ""


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"
