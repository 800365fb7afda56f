"""`ptctl eval`: models on held-out data, side by side."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.choices import BUILTIN_REWARDS, EVAL_TASKS
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, models

_EXAMPLES = """
ptctl eval /tmp/runs/my-job --data test.jsonl                                  # exact match, accuracy, macro F1
ptctl eval llama-gsm8k --step 50 --step 100 --data test.jsonl --plot eval.svg   # a job's checkpoints
ptctl eval /tmp/runs/my-job hf://Qwen/Qwen3-0.6B --data test.jsonl --reward gsm8k --samples 8
ptctl eval llama-gsm8k --task gsm8k --data gsm8k/test.jsonl --limit 200
ptctl eval llama-code --task code --data mbpp.jsonl --samples 10                # pass@1, 2, 4, 8, 10
ptctl eval /tmp/runs/my-job --data test.jsonl --answers accuracy --label yes --label no -o json
"""


@click.command("eval", cls=Verb, examples=_EXAMPLES)
@models
@click.option("--step", "steps", type=click.IntRange(1), metavar="N", multiple=True, help="A checkpoint; repeatable.")
@click.option("--data", required=True, help="Rows with gold answers: a file, or file://, gs://, hf://.")
@click.option("--task", type=click.Choice(EVAL_TASKS), help="A builtin task: prompts, and what counts.")
@click.option("--instruction", metavar="TEXT", help="What the task appends to each prompt, in place of its own words.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N rows.")
@click.option(
    "--reward",
    "rewards",
    multiple=True,
    metavar="NAME|FILE.py[:FUNCTION]",
    help=f"{', '.join(BUILTIN_REWARDS)}; the first decides pass@k.",
)
@click.option(
    "--answers",
    multiple=True,
    type=click.Choice(["exactMatch", "accuracy", "macroF1"]),
    help="A comparison with the gold answers; all three where no reward is named.",
)
@click.option("--label", "labels", multiple=True, help="A possible label; by default all gold answers.")
@click.option("--samples", type=click.IntRange(1, 1024), default=1, help="Above 1: pass@k of as many samples (1).")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens of an answer (the task's, or 256).")
@click.option("--max-length", type=click.IntRange(min=8), help="Most tokens of prompt and answer (model's, to 8192).")
@click.option("--https-images", is_flag=True, help="Rows may name images of the web by https://.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Also draw the metrics, as SVG.")
@cluster_options
@pass_app
def evaluate(
    app: App,
    target: Target,
    models: tuple[str, ...],
    steps: tuple[int, ...],
    data: str,
    task: str | None,
    instruction: str | None,
    limit: int | None,
    rewards: tuple[str, ...],
    answers: tuple[str, ...],
    labels: tuple[str, ...],
    samples: int,
    max_tokens: int | None,
    max_length: int | None,
    https_images: bool,
    output: str,
    plot: str | None,
) -> int:
    """Measure models on held-out data, side by side.

    JOB: a job in the cluster. PATH: an export or run directory (with a slash: ./NAME), file://, gs://, hf://ORG/NAME
    or random://PRESET. Each row's prompt is answered with the likeliest tokens, and the answers are measured as by the
    evaluation of a run: rewards, and gold answers. Needs the trainer's packages: pip install 'posttrain[trainer-cpu]'.
    """
    import json

    from ptctl.jobs.definition import from_flags
    from ptctl.runs.storage import model_uri
    from ptctl.trainer_process import run_verb

    own = [json.dumps(from_flags.reward(word)) for word in rewards]
    several = {"reward": own, "answers": answers, "label": labels}
    options = [f"--{name}={value}" for name, values in several.items() for value in values]
    limits = {"samples": samples, "max-tokens": max_tokens, "max-length": max_length, "limit": limit}
    single = {**limits, "plot": plot, "task": task, "instruction": instruction}
    options += [f"--{name}={value}" for name, value in single.items() if value is not None]
    options += ["--https-images"] * https_images
    uris = [model_uri.of(app, target, name, step) for name in models for step in steps or (None,)]
    return run_verb("eval", f"--data={data}", *options, f"--output={output}", "--", *uris)
