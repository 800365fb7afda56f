"""`ptctl serve`: a small server with OpenAI's API on this machine."""

import click

from ptctl.ui.command_line.command import Verb

_EXAMPLES = """
ptctl serve /tmp/runs/my-job                        # a run: its export, else its newest checkpoint
ptctl serve hf://Qwen/Qwen3-0.6B --port 9000
curl http://127.0.0.1:8000/v1/models
"""


@click.command("serve", cls=Verb, examples=_EXAMPLES)
@click.argument("model", metavar="PATH")
@click.option("--host", default="127.0.0.1", help="Address to listen on (127.0.0.1); 0.0.0.0 admits other machines.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="Port to listen on (8000); 0 picks one.")
@click.option("--name", help="The model's name for clients; by default that of the run or directory.")
@click.option("--max-length", type=click.IntRange(min=2), help="Most tokens of prompt and answer (model's, to 8192).")
def serve(model: str, host: str, port: int, name: str | None, max_length: int | None) -> int:
    """Answer OpenAI's API with a model, on this machine.

    PATH: an export or run directory, file://, gs://, hf://ORG/NAME or random://PRESET. The engine that samples in
    training answers /v1/chat/completions and /v1/completions: streams, stop strings, seeds, log-probs. Requests that
    wait are answered together. For laptops and tests; without authentication. Ctrl-C ends it at once. Needs the
    trainer's packages: pip install 'posttrain[trainer-cpu]'.
    """
    from ptctl.trainer_process import run_verb

    flags = {"host": host, "port": port, "name": name, "max-length": max_length}
    return run_verb("serve", *(f"--{flag}={value}" for flag, value in flags.items() if value is not None), "--", model)
