"""`ptctl demo`: the flags."""

from pathlib import Path

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb

_EXAMPLES = """
ptctl demo
ptctl demo --seed 2
ptctl demo --down                # stop the cluster at the end
ptctl demo 2>&1 | tee demo.log   # plain lines instead of the live view
"""


@click.command("demo", cls=Verb, examples=_EXAMPLES)
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of data and training."
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-output"),
    show_default=True,
    help="Directory for data, runs and picture.",
)
@click.option("--down", is_flag=True, help="Stop the cluster at the end instead of keeping it.")
@pass_app
def demo(app: App, seed: int, folder: Path, down: bool) -> None:
    """Teach a small model to add, and watch it learn.

    Starts the cluster of `ptctl local up`, generates word problems, and applies two PostTrainJobs: SFT, where half of
    the examples reason step by step, and GRPO, whose reward teaches the model that reasoning pays. Takes two to five
    minutes on two cores. Ctrl-C stops everything that the demo started. Another demo replaces its results.
    """
    from ptctl.demo.script import run_demo

    run_demo(app, folder, seed, is_down_at_end=down)
