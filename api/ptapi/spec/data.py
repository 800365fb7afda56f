"""The training and held-out data, and how rows are read."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import DataUri, Name, PositiveInt, Revision, SpecModel

DataFormat = Literal["auto", "messages", "prompt-completion", "prompt-answer", "preference", "text", "prompt-only"]
Column = Annotated[str, Field(min_length=1, max_length=256)]


class Columns(SpecModel):
    """Names of the data's columns, where they differ from the usual ones."""

    messages: Column | None = None
    """List of `{role, content}`. Usual: `messages`, `conversations`."""
    prompt: Column | None = None
    """The question. Usual: `prompt`, `question`, `instruction`."""
    completion: Column | None = None
    """The text that the model should write. Usual: `completion`, `response`, `output`."""
    answer: Column | None = None
    """The gold answer that rewards compare with. Usual: `answer`, `solution`."""
    chosen: Column | None = None
    """The preferred completion. Usual: `chosen`."""
    rejected: Column | None = None
    """The other completion. Usual: `rejected`."""
    label: Column | None = None
    """For kto: whether the completion is good: true or false, 1 or 0. Usual: `label`."""
    text: Column | None = None
    """Plain text. Usual: `text`."""
    images: Column | None = None
    """A row's images: one or a list. Usual: `images`, `image`."""


class DataSource(SpecModel):
    """One data set."""

    uri: DataUri
    """A file, a pattern or a directory: `gs://bucket/part-*.jsonl`, `file:///dir`, `hf://datasets/org/name`.

    JSON Lines, JSON, CSV, TSV, Parquet, Arrow, by suffix; each also compressed (`.gz`, `.bz2`, `.xz`, `.zst`).
    """
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` data set. Unset: the default branch; the commit is pinned in the lineage."""
    format: DataFormat = "auto"
    """How a row is read; `auto` decides by the column names and logs the result."""
    columns: Columns = Columns()
    """Names of columns, where they differ from the usual ones."""
    split: Name | None = None
    """Read only files whose names contain this split: `train-00000-of-00002.parquet`, `test/part.jsonl`."""
    limit: PositiveInt | None = None
    """Use only the first `limit` rows."""


class DataSpec(SpecModel):
    """Training data and, optionally, held-out data."""

    train: DataSource
    """Training data (for GRPO: the prompts)."""
    eval: DataSource | None = None
    """Held-out rows for `evaluation`."""
    system_prompt: Annotated[str, Field(max_length=8192)] | None = None
    """System message of every conversation that has none of its own."""
    allow_https_images: bool = False
    """Fetch images that rows name by `https://` addresses. Others are in the rows, beside their file or on `gs://`."""
    on_bad_row: Literal["fail", "skip"] = "fail"
    """What happens to an unreadable row. `fail`: the run ends, so that no error goes unnoticed; `skip`: the row is
    counted and left out."""
