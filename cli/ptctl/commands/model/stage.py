"""`ptctl model stage`: a model of the hub into a bucket, before chips wait for it."""

import click

from ptctl.ui.command_line.command import Verb

_EXAMPLES = """
ptctl model stage hf://google/gemma-3-27b-it gs://my-bucket/models/gemma-3-27b-it
ptctl model stage hf://Qwen/Qwen3-8B gs://my-bucket/models/qwen3-8b --revision main
"""


@click.command("stage", cls=Verb, examples=_EXAMPLES)
@click.argument("source", metavar="hf://ORG/NAME")
@click.argument("target", metavar="gs://BUCKET/DIR")
@click.option("--revision", help="Branch, tag or commit; by default the default branch.")
def stage(source: str, target: str, revision: str | None) -> int:
    """Copy a model of the hub into a bucket.

    Several files at once, each checked; interrupted, the same command goes on; complete, it ends at once. A directory
    holds one model at one commit. For a gated model, HF_TOKEN is needed. Jobs then read it with model: {uri:
    gs://BUCKET/DIR}. Needs the trainer's packages: pip install 'posttrain[trainer-cpu]'.
    """
    from ptctl.trainer_process import run_verb

    return run_verb("stage", source, target, *([] if revision is None else [f"--revision={revision}"]))
