"""What is trained on, and how rows are read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import DataUri, Name, PositiveInt, SpecModel

DataFormat = Literal["auto", "messages", "prompt-completion", "prompt-answer", "preference", "text"]
Column = Annotated[str, Field(min_length=1, max_length=256)]


class Columns(SpecModel):
    """Names of the data's columns where they are not the usual ones."""

    messages: Column | None = None
    """List of `{role, content}`. Usual: `messages`, `conversations`."""
    prompt: Column | None = None
    """The question. Usual: `prompt`, `question`, `instruction`."""
    completion: Column | None = None
    """What the model should say. Usual: `completion`, `response`, `output`."""
    answer: Column | None = None
    """The gold answer that rewards compare with. Usual: `answer`, `solution`."""
    chosen: Column | None = None
    """The preferred completion. Usual: `chosen`."""
    rejected: Column | None = None
    """The other completion. Usual: `rejected`."""
    text: Column | None = None
    """Plain text. Usual: `text`."""


class DataSource(SpecModel):
    """One data set."""

    uri: DataUri
    """`file://` or `gs://` of a JSONL file. `hf://` comes later."""
    format: DataFormat = "auto"
    """How a row is read; `auto` looks at the column names and says what it found."""
    columns: Columns = Columns()
    """Names of columns, where they differ from the usual ones."""
    split: Name | None = None
    """Split of an `hf://` data set."""
    limit: PositiveInt | None = None
    """Use only the first `limit` rows."""


class DataSpec(SpecModel):
    """Training data and, where wanted, held-out data."""

    train: DataSource
    """What is trained on (for GRPO: the prompts)."""
    eval: DataSource | None = None
    """Held-out rows for `evaluation`."""
    system_prompt: Annotated[str, Field(max_length=8192)] | None = None
    """Put before every conversation that has no system message of its own."""
