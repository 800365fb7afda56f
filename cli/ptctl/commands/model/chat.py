"""`ptctl chat`: talk to a model in the terminal."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, models

_EXAMPLES = """
ptctl chat /tmp/runs/my-job
ptctl chat llama-gsm8k --step 100                                              # a job's checkpoint
ptctl chat --compare llama-gsm8k hf://Qwen/Qwen3-0.6B                          # both answer each message
ptctl chat hf://Qwen/Qwen3-0.6B --system "Answer in one word." --temperature 0
ptctl chat /tmp/runs/my-job --message "What is 2 plus 3?" --max-tokens 20      # one answer on stdout
ptctl chat /tmp/runs/my-job --tools tools.py --tools calculator                # functions that it may call
ptctl chat hf://google/gemma-3-4b-it --image leaf.jpg --message "Which tree?"
ptctl chat llama-gsm8k --on gke                                                # by its server in the cluster
"""


@click.command("chat", cls=Verb, examples=_EXAMPLES)
@models
@click.option("--compare", is_flag=True, help="Several models, which all answer each message.")
@click.option("--on", "place", type=click.Choice(("here", "gke")), default="here", help="Where the model is (here).")
@click.option("--step", type=click.IntRange(1), metavar="N", help="The checkpoint of this step, not the export.")
@click.option("--message", help="Answer this alone, on stdout.")
@click.option(
    "--tools",
    multiple=True,
    metavar="FILE.py[:FUNCTION]",
    help="Functions that the model may call, of a file or one of them; or a builtin tool.",
)
@click.option("--image", "images", multiple=True, metavar="FILE", help="A picture with the first message.")
@click.option("--system", help="The system message.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=1.0, help="0 takes the likeliest token (1).")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens of an answer (what is left).")
@click.option("--max-length", type=click.IntRange(min=2), help="Most tokens of conversation (the model's, to 8192).")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Same seed and messages, same answer (a new one).")
@cluster_options
@pass_app
def chat(
    app: App,
    target: Target,
    models: tuple[str, ...],
    compare: bool,
    place: str,
    step: int | None,
    message: str | None,
    tools: tuple[str, ...],
    images: tuple[str, ...],
    system: str | None,
    temperature: float,
    max_tokens: int | None,
    max_length: int | None,
    seed: int | None,
) -> int:
    """Talk to a model in the terminal.

    JOB: a job in the cluster. PATH: an export or run directory (with a slash: ./NAME), file://, gs://, hf://ORG/NAME,
    random://PRESET, or http://HOST:PORT/v1 of a server with OpenAI's API. With --on gke, a server that `ptctl serve
    --on gke` made, or the job that it serves: the answers come from there, through kubectl port-forward.

    Messages are read line by line, from the terminal or a pipe; /image FILE shows a picture with the next one, /reset
    forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C at once. What the model calls is run here, and shown.
    Needs the trainer's packages: pip install 'posttrain[trainer-cpu]'.
    """
    from contextlib import ExitStack

    from ptctl.port_forwards import model_server
    from ptctl.runs.storage import model_uri
    from ptctl.trainer_process import run_verb

    if compare != (len(models) > 1):
        raise click.UsageError(f"{len(models)} models; accepted: one, or several with --compare")
    if place == "gke" and (step or max_length):
        flag = "--step" if step else "--max-length"
        raise click.UsageError(f"{flag}: a server has one model, of its own length; accepted: without --on gke")
    flags = {"message": message, "system": system, "max-tokens": max_tokens, "max-length": max_length, "seed": seed}
    options = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    options += [f"--{name}={value}" for name, values in (("tools", tools), ("image", images)) for value in values]
    with ExitStack() as forwards:
        if place == "gke":
            uris = [forwards.enter_context(model_server.forwarded(app, target, name)) for name in models]
        else:
            uris = [model_uri.of(app, target, name, step) for name in models]
        return run_verb("chat", f"--temperature={temperature}", *options, "--", *uris)
