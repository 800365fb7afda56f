"""A table that only the tool can read: `row["table"]`, a map from keys to texts, or its JSON text."""

from collections.abc import Mapping
from typing import Any

from pttrainer.environments.tool import Tool, ToolError, schema
from pttrainer.runtime.io import json_text

COLUMN = "table"


def call(arguments: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return the entry of `arguments["key"]`; raise ToolError."""
    table = row.get(COLUMN)
    if isinstance(table, str):
        try:
            table = json_text.loads(table)
        except ValueError:
            table = None
    if not isinstance(table, Mapping):
        raise ToolError(f"the row has no {COLUMN} to look in")
    key = arguments["key"].strip()
    if table.get(key) is None:
        raise ToolError(f"no entry {key[:60]!r}")
    return str(table[key])


TOOL = Tool(
    schema("lookup", "Look a key up in the table.", {"key": {"type": "string", "description": "What to look up."}}),
    call,
)
