"""What is wrong with a request, in the words of OpenAI's error objects."""

from typing import Any

SHOWN = 80
"""Most characters of a value in a message."""


class RequestError(Exception):
    """A request that cannot be answered. param: the field; status: of HTTP."""

    def __init__(self, param: str | None, value: Any, accepted: str, status: int = 400) -> None:
        self.param, self.status = param, status
        self.code = "model_not_found" if status == 404 and param == "model" else None
        subject = ": ".join(part for part in (param, _short(value)) if part)
        super().__init__(f"{subject}: {accepted}")


def _short(value: Any) -> str:
    text = "" if value is None else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
