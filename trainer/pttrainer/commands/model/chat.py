"""`python -m pttrainer chat`: talk to a model in the terminal, or get one answer on stdout."""

import argparse
import secrets
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.commands.model import serve
from pttrainer.errors import ConfigError, TrainerError

if TYPE_CHECKING:
    from pttrainer.commands.model.batches import Batches
    from pttrainer.commands.model.loaded_model import LoadedModel

Message = dict[str, str]
RESET, EXIT = "/reset", "/exit"


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser("chat", help="talk to a model in the terminal, or get one answer")
    serve.add_model(parser)
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
    serve.end_at_once()
    from pttrainer.commands.model.batches import Batches
    from pttrainer.commands.model.loaded_model import load

    model = load(options.model, None, options.max_length)
    with Batches(model) as batches:
        conversation = Conversation(model, batches, options)
        if options.message is not None:
            conversation.say(options.message)
        else:
            _session(conversation)


class Conversation:
    """A model, and what was exchanged with it so far."""

    def __init__(self, model: "LoadedModel", batches: "Batches", options: argparse.Namespace) -> None:
        self.model, self._batches, self._options = model, batches, options
        self.messages: list[Message] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        system = self._options.system
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    def say(self, text: str) -> None:
        """Print the answer to a message while it is sampled, and remember both. Raises ConfigError on a long one."""
        from pttrainer.commands.model.answers import Request
        from pttrainer.commands.model.openai_requests import RequestError, within

        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self.model.chat.prompt_ids(messages)
        try:
            limit = within(prompt, self._options.max_tokens, self.model.length)
        except RequestError as error:
            raise ConfigError(f"{error}; hint: {RESET} forgets the conversation") from error
        seed = secrets.randbits(32) if self._options.seed is None else self._options.seed
        answer = ""
        for piece in _pieces(self._batches, self.model, Request(prompt, limit, self._options.temperature, seed=seed)):
            answer += piece
            sys.stdout.write(piece)
            sys.stdout.flush()
        print()
        self.messages = [*messages, {"role": "assistant", "content": answer}]


def _pieces(batches: "Batches", model: "LoadedModel", request: Any) -> Iterator[str]:
    """Yield the answer's text, piece by piece."""
    from pttrainer.commands.model.answers import Answer

    changed, shown, is_done = threading.Semaphore(0), 0, False
    answer = Answer(request, model.chat.tokenizer, changed.release)
    batches.submit(answer)
    while not is_done:
        changed.acquire()
        is_done = answer.is_done  # before the text: the last piece may come between the two
        text = answer.state.text
        yield text[shown:]
        shown = len(text)
    if answer.error is not None:
        raise answer.error


def _session(conversation: Conversation) -> None:
    """Read messages until the end of the input or /exit."""
    note(f"{conversation.model.name}: {RESET} forgets the conversation, {EXIT} or Ctrl-D ends")
    while (line := _line()) is not None and line != EXIT:
        if line == RESET:
            conversation.reset()
            note("forgotten")
        elif line.startswith("/"):
            note(f"{line}: no such command; accepted: {RESET}, {EXIT}")
        elif line:
            try:
                conversation.say(line)
            except TrainerError as error:
                note(str(error))


def _line() -> str | None:
    """Return a line of the input; None at its end."""
    import readline  # noqa: F401  # arrow keys and history in `input`

    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
