"""`python -m pttrainer eval`: models on held-out data, side by side, by the evaluation that training has."""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptapi.errors import SpecError
from ptapi.load import parse_job
from ptapi.spec import API_GROUP, API_VERSION, KIND, DataSource, PostTrainJobSpec
from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.commands.model import eval_tasks, metric_bars
from pttrainer.commands.model.loaded_model import length_of, name_of, of_length, open_model, uri_of
from pttrainer.errors import ConfigError
from pttrainer.runtime.io.directory import Directory

if TYPE_CHECKING:
    from pttrainer.commands.model.loaded_model import OpenedModel
    from pttrainer.models.loading.model_loader import LoadedModel as ModelParts
    from pttrainer.rollout.context import Context

ANSWERS = ("exactMatch", "accuracy", "macroF1")
Metrics = Mapping[str, float]


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser("eval", help="measure models on held-out data, side by side")
    parser.add_argument("models", nargs="+", help="as of serve")
    parser.add_argument("--data", required=True, help="a file, or file://, gs://, hf:// of rows")
    parser.add_argument("--task", choices=eval_tasks.TASKS, help="a builtin task: prompts, rewards and metrics")
    parser.add_argument("--instruction", metavar="TEXT", help="what a task appends to each prompt, in place of its own")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N rows")
    parser.add_argument(
        "--reward", action="append", default=[], help="a builtin, or a reward as JSON; the first decides pass@k"
    )
    parser.add_argument(
        "--answers", action="append", default=[], choices=ANSWERS, help="a comparison with gold answers"
    )
    parser.add_argument("--label", action="append", default=[], help="a possible label; unset, all gold answers")
    parser.add_argument("--samples", type=int, default=1, help="above 1: pass@k of this many samples of each prompt")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer (the task's, or 256)")
    parser.add_argument("--max-length", type=int, metavar="N", help="most tokens of prompt and answer")
    parser.add_argument("--https-images", action="store_true", help="rows may name images of the web by https://")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the metrics, as SVG")
    parser.set_defaults(run=lambda options: exit_code_of(lambda: run(options)))


def run(options: argparse.Namespace) -> None:
    """Evaluate one model after the other and print all metrics."""
    _check(options)
    uris = [uri_of(model) for model in options.models]
    names = [_label(*each) for each in zip(options.models, uris, strict=True)]
    results = []
    with tempfile.TemporaryDirectory() as directory:
        data = _data(options, Path(directory))
        for name, uri in zip(names, uris, strict=True):
            note(f"{name}: evaluating")
            results.append(measure(uri, data, options))
    if options.output == "json":
        rows = zip(uris, names, results, strict=True)
        models = [{"model": name, "uri": uri, "metrics": metrics} for uri, name, metrics in rows]
        print(json.dumps({"models": models}, indent=2))
    else:
        print(table(names, results))
    if options.plot is not None:
        options.plot.write_text(metric_bars.svg_of(names, results), encoding="utf-8")


def _check(options: argparse.Namespace) -> None:
    task = eval_tasks.TASKS.get(options.task)
    if options.samples > 1 and not (options.reward or (task and task.rewards)):
        raise ConfigError(f"--samples: {options.samples}: needs --reward, which decides what passes; accepted: 1")
    if options.instruction is not None and task is None:
        raise ConfigError(f"--instruction: {options.instruction!r}: needs --task, whose own words it replaces")
    if options.plot is not None and not options.plot.parent.is_dir():
        raise ConfigError(f"--plot: {options.plot}: accepted: a file in a directory that exists")


def _data(options: argparse.Namespace, directory: Path) -> str:
    """Return the URI of the rows: those of --data, or what the task makes of them. Raises DataError."""
    uri = options.data if "://" in options.data else f"file://{Path(options.data).absolute()}"
    if options.task is None:
        return uri
    source = DataSource(uri=uri, limit=options.limit)
    return eval_tasks.prepared(eval_tasks.TASKS[options.task], source, options.label, options.instruction, directory)


def _label(model: str, uri: str) -> str:
    """Return the model's column: a path as it was given, a checkpoint or a run by its name."""
    return name_of(uri) if model.startswith(("file://", "gs://")) else model


def measure(uri: str, data: str, options: argparse.Namespace) -> Metrics:
    """Return a model's metrics, named as those of a run without `eval/`. Raises ConfigError or DataError."""
    from pttrainer.rollout.evaluation.evaluator import evaluation, job_sampler

    opened = open_model(uri)
    with tempfile.TemporaryDirectory() as directory:
        context = _context(opened, _spec(uri, data, options, opened.parts), directory)
        evaluate = evaluation(context, job_sampler(context))
        assert evaluate is not None
        metrics = evaluate.run(opened.params)
    return {name.removeprefix("eval/"): float(value) for name, value in sorted(metrics.items())}


def table(models: Sequence[str], results: Sequence[Metrics]) -> str:
    """Return a line for each metric and a column for each model."""
    names = list(dict.fromkeys(name for metrics in results for name in metrics))
    rows = [["metric", *models]]
    rows += [[name, *(f"{metrics[name]:.4g}" if name in metrics else "-" for metrics in results)] for name in names]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _spec(uri: str, data: str, options: argparse.Namespace, parts: "ModelParts") -> PostTrainJobSpec:
    """Return the options as a job's spec, of which only the evaluation is run. Raises ConfigError."""
    task = eval_tasks.TASKS.get(options.task)
    rewards = [*(task.rewards if task else ()), *options.reward]
    answers = options.answers or (task.answers if task else () if rewards else ANSWERS)
    limit = {} if options.limit is None else {"limit": options.limit}
    spec = {
        "model": {"uri": uri, "images": parts.chat.images is not None},
        "algorithm": {"sft": {}},
        "data": {
            "train": {"uri": data},
            "eval": {"uri": data, **limit},
            "allowHttpsImages": options.https_images,
        },
        "rewards": [json.loads(reward) if reward.startswith("{") else {"builtin": reward} for reward in rewards],
        "evaluation": {
            "answers": list(answers),
            "labels": options.label,
            "samples": options.samples,
            "maxNewTokens": options.max_tokens or (task.max_tokens if task else 256),
        },
        "training": {"sequenceLength": length_of(parts, options.max_length)},
        "accelerator": {"type": "cpu-1"},
        "output": {"uri": "file:///unused"},
    }
    document = {"apiVersion": f"{API_GROUP}/{API_VERSION}", "kind": KIND, "metadata": {"name": "eval"}, "spec": spec}
    try:
        return parse_job(document).spec
    except SpecError as error:
        raise ConfigError(str(error)) from error


def _context(opened: "OpenedModel", spec: PostTrainJobSpec, directory: str) -> "Context":
    """Return what the evaluation needs of a run; it never scores log-probs, and keeps no samples."""
    from pttrainer.rollout.context import Context

    def unused(*_: Any) -> Any:
        raise AssertionError("an evaluation of answers needs no log-probs of another model")

    parts = opened.parts
    return Context(
        spec=spec,
        model=of_length(parts.model, spec.training.sequence_length),
        mesh=opened.mesh,
        chat=parts.chat,
        score=unused,
        initial_params=unused,
        save_samples=lambda step, rows: None,
        note=note,
        alive=lambda: None,
        leader=True,
        run=Directory(Path(directory)),
    )
