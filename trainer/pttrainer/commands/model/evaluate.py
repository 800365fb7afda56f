"""`python -m pttrainer eval`: models on held-out data, side by side, by the evaluation that training has."""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptapi.errors import SpecError
from ptapi.load import parse_job
from ptapi.spec import API_GROUP, API_VERSION, KIND, PostTrainJobSpec
from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.commands.model.loaded_model import length_of, open_model, uri_of
from pttrainer.errors import ConfigError
from pttrainer.runtime.io.directory import Directory

if TYPE_CHECKING:
    from pttrainer.commands.model.loaded_model import OpenedModel
    from pttrainer.rollout.context import Context

ANSWERS = ("exactMatch", "accuracy", "macroF1")
Metrics = Mapping[str, float]


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser("eval", help="measure models on held-out data, side by side")
    parser.add_argument("models", nargs="+", help="as of serve")
    parser.add_argument("--data", required=True, help="a file, or file://, gs://, hf:// of rows")
    parser.add_argument("--reward", action="append", default=[], help="a builtin reward; the first decides pass@k")
    parser.add_argument(
        "--answers", action="append", default=[], choices=ANSWERS, help="a comparison with gold answers"
    )
    parser.add_argument("--label", action="append", default=[], help="a possible label; unset, all gold answers")
    parser.add_argument("--samples", type=int, default=1, help="above 1: pass@k of this many samples of each prompt")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="most tokens of an answer (256)")
    parser.add_argument("--max-length", type=int, metavar="N", help="most tokens of prompt and answer")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.set_defaults(run=lambda options: exit_code_of(lambda: run(options)))


def run(options: argparse.Namespace) -> None:
    """Evaluate one model after the other and print all metrics."""
    if options.samples > 1 and not options.reward:
        raise ConfigError(f"--samples: {options.samples}: needs --reward, which decides what passes; accepted: 1")
    uris = [uri_of(model) for model in options.models]
    results = []
    for model, uri in zip(options.models, uris, strict=True):
        note(f"{model}: evaluating")
        results.append(measure(uri, options))
    if options.output == "json":
        pairs = zip(options.models, results, strict=True)
        print(json.dumps({"models": [{"model": model, "metrics": metrics} for model, metrics in pairs]}, indent=2))
    else:
        print(table(options.models, results))


def measure(uri: str, options: argparse.Namespace) -> Metrics:
    """Return a model's metrics, named as those of a run without `eval/`. Raises ConfigError or DataError."""
    from pttrainer.rollout.evaluation.evaluator import evaluation, job_sampler

    opened = open_model(uri)
    with tempfile.TemporaryDirectory() as directory:
        context = _context(opened, _spec(uri, options, length_of(opened.parts, options.max_length)), directory)
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


def _spec(uri: str, options: argparse.Namespace, length: int) -> PostTrainJobSpec:
    """Return the options as a job's spec, of which only the evaluation is run."""
    data = options.data if "://" in options.data else Path(options.data).absolute().as_uri()
    answers = options.answers or ([] if options.reward else ANSWERS)
    spec = {
        "model": {"uri": uri},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": data}, "eval": {"uri": data}},
        "rewards": [{"builtin": name} for name in options.reward],
        "evaluation": {
            "answers": list(answers),
            "labels": options.label,
            "samples": options.samples,
            "maxNewTokens": options.max_tokens,
        },
        "training": {"sequenceLength": length},
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
        model=parts.model,
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
