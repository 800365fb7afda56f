"""Another value of a word, and what the user sees of what it becomes: for tests that no word is dropped."""

from collections.abc import Callable
from typing import Any

from ptctl.errors import InputError
from ptctl.importers.draft import Draft
from ptctl.importers.draft_text import document


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool) or str(value).lower() in ("true", "false"):
        return str(value).lower() != "true"
    if isinstance(value, list):
        return [*value, "another"]
    if isinstance(value, dict):
        return {**value, "another": 1}
    try:
        return float(value) * 2 + 3
    except ValueError:
        return f"{value}-other"


def outcome(make: Callable[[], Draft]) -> str:
    """What the user sees of a draft."""
    try:
        draft = make()
        return document(draft) + str(sorted(draft.secrets))
    except InputError as error:
        return error.message
