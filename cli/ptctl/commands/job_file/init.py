"""`ptctl init`: write a commented job file, from flags or after at most five questions."""

from __future__ import annotations

from typing import Any

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.choices import BUILTIN_REWARDS, FIRST_JOBS
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import assignments, configured

_EXAMPLES = """
# asks for what no flag says
ptctl init

ptctl init --algorithm grpo --model hf://Qwen/Qwen3-1.7B --data gs://my-bucket/gsm8k/train.jsonl \\
    --accelerator v6e-16 --output gs://my-bucket/runs -o job.yaml

# to standard output, with one more field
ptctl init --algorithm sft --model random://tiny --data train.jsonl --accelerator cpu-1 --output /tmp/runs \\
    --set training.steps=50 -o - | ptctl validate -f -
"""


@click.command("init", cls=Verb, examples=_EXAMPLES)
@click.option("--algorithm", type=click.Choice(FIRST_JOBS), metavar="NAME", help=f"{', '.join(FIRST_JOBS)}.")
@click.option("--model", metavar="URI", help="hf://, gs://, file:// or a path; random://tiny to try things out.")
@click.option("--data", metavar="URI", help="Training data: gs://, hf://datasets/…, file:// or a path.")
@click.option(
    "--accelerator",
    "--tpu-type",
    "tpu_type",
    metavar="TYPE",
    help="v5p-128, v6e-16, ...; cpu-1 on a laptop.",
    default=configured("accelerator"),
)
@click.option(
    "--output",
    "output_uri",
    metavar="URI",
    help="Results go to URI/NAME: gs://, file:// or a path.",
    default=configured("output"),
)
@click.option("--workload", metavar="NAME", help="Name of the job; by default the model's and the algorithm's.")
@click.option(
    "--reward", multiple=True, metavar="NAME|FILE.py[:FUNCTION]", help=f"{', '.join(BUILTIN_REWARDS)}; repeatable."
)
@assignments
@click.option("-o", "target", metavar="FILE", default="job.yaml", show_default=True, help="File to write; - prints it.")
@pass_app
def init(app: App, /, target: str, **flags: Any) -> None:
    """Write a commented job file: SFT, LoRA, DPO, KTO, reward, GRPO, PPO, RAFT, SDPO, distillation, tools, images.

    On a terminal it asks for what no flag says: algorithm, model, data, accelerator, output. What it writes passes
    `ptctl validate`; a file that exists is never overwritten.
    """
    from ptctl.jobs.definition.first_job import write

    write(app.console, flags, target)
