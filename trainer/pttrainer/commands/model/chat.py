"""`python -m pttrainer chat`: talk to a model in the terminal, or get one answer on stdout."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.commands.model import serve
from pttrainer.commands.model.dialogue.conversation import Conversation, image_url
from pttrainer.commands.model.dialogue.speakers import SCHEMES, LocalModel, Options, Server, Speaker
from pttrainer.errors import ConfigError, TrainerError

RESET, IMAGE, EXIT = "/reset", "/image", "/exit"


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser("chat", help="talk to a model in the terminal, or get one answer")
    parser.add_argument(
        "models",
        nargs="+",
        help="as of serve, or http://HOST:PORT/v1 of a server; of several, each answers each message",
    )
    serve.add_length(parser)
    parser.add_argument(
        "--tools",
        action="append",
        default=[],
        metavar="FILE.py[:FUNCTION]",
        help="functions that the model may call; or a builtin tool",
    )
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help="a picture with the first message")
    parser.add_argument("--message", help="answer this alone, on stdout")
    parser.add_argument("--system", help="the system message")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest token")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer; unset, what is left")
    parser.add_argument("--seed", type=int, help="same seed, same first answer; unset, a new one each time")
    parser.set_defaults(run=lambda options: exit_code_of(lambda: run(options)))


def run(options: argparse.Namespace) -> None:
    """Check the options, load the model, and talk."""
    if not 0.0 <= options.temperature <= 2.0:
        raise ConfigError(f"--temperature: {options.temperature:g}: accepted: 0 to 2")
    if options.max_tokens is not None and options.max_tokens < 1:
        raise ConfigError(f"--max-tokens: {options.max_tokens}: accepted: a whole number of at least 1")
    if options.seed is not None and not 0 <= options.seed < 2**32:
        raise ConfigError(f"--seed: {options.seed}: accepted: 0 to {2**32 - 1}")
    images = [image_url(path) for path in options.image]
    serve.end_at_once()
    with ExitStack() as running:
        tools = None
        if options.tools:
            from pttrainer.commands.model.dialogue.tools import Tools

            tools = Tools(options.tools)
        speakers = [_speaker(model, options, running) for model in options.models]
        conversations = [Conversation(speaker, options.system, tools) for speaker in speakers]
        if options.message is not None:
            _say(conversations, options.message, images)
        else:
            _session(conversations, images)


def _speaker(model: str, options: argparse.Namespace, running: ExitStack) -> Speaker:
    """Return who answers, until the block ends. Raises ConfigError or NetworkError."""
    sampling = Options(options.temperature, options.max_tokens, options.seed)
    if model.startswith(SCHEMES):
        return Server(model, sampling)
    from pttrainer.commands.model.batches import Batches
    from pttrainer.commands.model.loaded_model import load

    loaded = load(model, None, options.max_length)
    return LocalModel(loaded, running.enter_context(Batches(loaded)), sampling)


def _say(conversations: Sequence[Conversation], text: str, images: Sequence[str]) -> None:
    """Print the model's answer, or that of one model after the other below its name. Raises TrainerError."""
    for conversation in conversations:
        if len(conversations) > 1:
            print(f"[{conversation.name}]", flush=True)
        conversation.say(text, images)


def _session(conversations: Sequence[Conversation], images: Sequence[str]) -> None:
    """Read messages until the end of the input or /exit. images: of the first message."""
    names = ", ".join(conversation.name for conversation in conversations)
    note(f"{names}: {RESET} forgets the conversation, {IMAGE} FILE shows a picture, {EXIT} or Ctrl-D ends")
    shown = list(images)
    while (line := _line()) is not None and line != EXIT:
        if line == RESET:
            for conversation in conversations:
                conversation.reset()
            shown = []
            note("forgotten")
            continue
        try:
            if line.startswith(f"{IMAGE} "):
                shown.append(image_url(line.removeprefix(IMAGE).strip()))
                note("shown with the next message")
            elif line.startswith("/"):
                note(f"{line}: no such command; accepted: {RESET}, {IMAGE} FILE, {EXIT}")
            elif line:
                message_images, shown = shown, []
                _say(conversations, line, message_images)
        except TrainerError as error:
            note(str(error))


def _line() -> str | None:
    """Return a line of the input; None at its end."""
    import readline  # noqa: F401  # arrow keys and history in `input`

    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
