"""`ptctl chat`: talk to a model in the terminal."""

import click

from ptctl.ui.command_line.command import Verb

_EXAMPLES = """
ptctl chat /tmp/runs/my-job
ptctl chat hf://Qwen/Qwen3-0.6B --system "Answer in one word." --temperature 0
ptctl chat /tmp/runs/my-job --message "What is 2 plus 3?" --max-tokens 20      # one answer on stdout
"""


@click.command("chat", cls=Verb, examples=_EXAMPLES)
@click.argument("model", metavar="PATH")
@click.option("--message", help="Answer this alone, on stdout.")
@click.option("--system", help="The system message.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=1.0, help="0 takes the likeliest token (1).")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens of an answer (what is left).")
@click.option("--max-length", type=click.IntRange(min=2), help="Most tokens of conversation (the model's, to 8192).")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Same seed and messages, same answer (a new one).")
def chat(
    model: str,
    message: str | None,
    system: str | None,
    temperature: float,
    max_tokens: int | None,
    max_length: int | None,
    seed: int | None,
) -> int:
    """Talk to a model in the terminal.

    PATH: an export or run directory, file://, gs://, hf://ORG/NAME or random://PRESET. Messages are read line by line,
    from the terminal or a pipe; /reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C at once. Needs the
    trainer's packages: pip install 'posttrain[trainer-cpu]'.
    """
    from ptctl.trainer_process import run_verb

    flags = {"message": message, "system": system, "max-tokens": max_tokens, "max-length": max_length, "seed": seed}
    options = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    return run_verb("chat", f"--temperature={temperature}", *options, "--", model)
