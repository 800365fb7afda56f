"""`python -m pttrainer serve`: a small server with OpenAI's API, for laptops and tests."""

import argparse
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.errors import ConfigError

if TYPE_CHECKING:
    from aiohttp import web

INTERRUPTED = 130


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser("serve", help="answer OpenAI's API with a model, sampled by the training engine")
    parser.add_argument("model", help="an export or run directory, file://, gs://, hf://ORG/NAME or random://PRESET")
    add_length(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 admits other machines")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 picks a free one")
    parser.add_argument("--name", help="the model's name for clients; by default that of the run or directory")
    parser.add_argument("--image-files", type=Path, metavar="DIR", help="requests may name images there by file://")
    parser.add_argument("--https-images", action="store_true", help="requests may name images of the web by https://")
    parser.set_defaults(run=lambda options: exit_code_of(lambda: run(options)))


def add_length(parser: argparse.ArgumentParser) -> None:
    """Add the option of the model's longest conversation."""
    parser.add_argument(
        "--max-length", type=int, metavar="N", help="most tokens of prompt and answer; by default the model's, to 8192"
    )


def run(options: argparse.Namespace) -> None:
    """Load the model and serve it until the process is told to end."""
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port: {options.port}: accepted: 0 to 65535")
    if options.image_files is not None and not options.image_files.is_dir():
        raise ConfigError(f"--image-files: {options.image_files}: accepted: a directory")
    end_at_once()
    import asyncio

    from aiohttp import web

    from pttrainer.commands.model.batches import Batches
    from pttrainer.commands.model.loaded_model import load
    from pttrainer.commands.model.openai_api.http_server import application
    from pttrainer.commands.model.openai_api.messages import ImageAccess

    access = ImageAccess(options.image_files, options.https_images)
    model = load(options.model, options.name, options.max_length)
    # A client that goes away ends its answer.
    with Batches(model) as batches:
        runner = web.AppRunner(application(model, batches, access), handler_cancellation=True, access_log=None)
        asyncio.run(_serve(runner, options.host, options.port, model.name))


async def _serve(runner: "web.AppRunner", host: str, port: int, name: str) -> None:
    import asyncio

    from aiohttp import web

    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"--host, --port: {host}:{port}: {reason}; accepted: an address of this machine and a free port; "
            "hint: --port 0 picks one"
        ) from error
    address = runner.addresses[0]
    note(f"{name}: serving OpenAI's API at http://{address[0]}:{address[1]}/v1; Ctrl-C ends it")
    await asyncio.Event().wait()


def end_at_once() -> None:
    """End the process at SIGINT and SIGTERM, whatever its threads compute: there is nothing to save."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(INTERRUPTED))
