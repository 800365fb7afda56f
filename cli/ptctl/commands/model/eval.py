"""`ptctl eval`: models on held-out data, side by side."""

import click

from ptctl.ui.command_line.choices import BUILTIN_REWARDS
from ptctl.ui.command_line.command import Verb

_EXAMPLES = """
ptctl eval /tmp/runs/my-job --data test.jsonl                                  # exact match, accuracy, macro F1
ptctl eval /tmp/runs/my-job hf://Qwen/Qwen3-0.6B --data test.jsonl --reward gsm8k --samples 8
ptctl eval /tmp/runs/my-job --data test.jsonl --answers accuracy --label yes --label no -o json
"""


@click.command("eval", cls=Verb, examples=_EXAMPLES)
@click.argument("models", metavar="PATH...", nargs=-1, required=True)
@click.option("--data", required=True, help="Rows with gold answers: a file, or file://, gs://, hf://.")
@click.option(
    "--reward",
    "rewards",
    multiple=True,
    type=click.Choice(BUILTIN_REWARDS),
    help="A builtin reward; the first decides pass@k.",
)
@click.option(
    "--answers",
    multiple=True,
    type=click.Choice(["exactMatch", "accuracy", "macroF1"]),
    help="A comparison with the gold answers; all three where no reward is named.",
)
@click.option("--label", "labels", multiple=True, help="A possible label; by default all gold answers.")
@click.option("--samples", type=click.IntRange(1, 1024), default=1, help="Above 1: pass@k of as many samples (1).")
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, help="Most tokens of an answer (256).")
@click.option("--max-length", type=click.IntRange(min=8), help="Most tokens of prompt and answer (model's, to 8192).")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def evaluate(
    models: tuple[str, ...],
    data: str,
    rewards: tuple[str, ...],
    answers: tuple[str, ...],
    labels: tuple[str, ...],
    samples: int,
    max_tokens: int,
    max_length: int | None,
    output: str,
) -> int:
    """Measure models on held-out data, side by side.

    PATH: an export or run directory, file://, gs://, hf://ORG/NAME or random://PRESET. Each row's prompt is answered
    with the likeliest tokens, and the answers are measured as by the evaluation of a run: rewards, and gold answers.
    Needs the trainer's packages: pip install 'posttrain[trainer-cpu]'.
    """
    from ptctl.trainer_process import run_verb

    several = {"reward": rewards, "answers": answers, "label": labels}
    options = [f"--{name}={value}" for name, values in several.items() for value in values]
    numbers = {"samples": samples, "max-tokens": max_tokens, "max-length": max_length}
    options += [f"--{name}={value}" for name, value in numbers.items() if value is not None]
    return run_verb("eval", f"--data={data}", *options, f"--output={output}", "--", *models)
