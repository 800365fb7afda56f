"""Read the rows of a source."""

from collections.abc import Iterator, Sequence

from ptapi.spec import DataSource, DataSpec
from pttrainer.data.rows import columns, record_to_row
from pttrainer.data.rows.row import Row, Rows
from pttrainer.data.sources import files, formats
from pttrainer.data.sources.formats.record import Record
from pttrainer.data.sources.images.references import Origin
from pttrainer.errors import DataError


def of_job(data: DataSpec, part: str, note: files.Note) -> Rows | None:
    """Return the job's `data.train` or `data.eval`; None if it names no such data. Raise DataError."""
    source: DataSource | None = getattr(data, part)
    if source is None:
        return None
    skip_bad = data.on_bad_row == "skip"
    return load(
        source, f"spec.data.{part}", data.system_prompt, skip_bad=skip_bad, note=note, https=data.allow_https_images
    )


def load(
    source: DataSource,
    field: str,
    system_prompt: str | None = None,
    *,
    skip_bad: bool = False,
    note: files.Note = files.silent,
    https: bool = False,
) -> Rows:
    """Read a source; `field` is where the job names it (`spec.data.train`). Raise DataError.

    A bad row is an error, or counted with `skip_bad`. A file that cannot be read at all is always an error. https:
    rows may name images on the web.
    """
    data_files = files.find(source, field, note)
    rows: list[Row] = []
    bad: list[DataError] = []
    reading: columns.Reading | None = None
    for file, record in records(data_files):
        try:
            if isinstance(record.value, DataError):
                raise record.value
            reading = reading or columns.recognise(source, record.value, record.where, field)
            rows.append(record_to_row.convert(reading, record, record.value, system_prompt, Origin(file, https)))
        except DataError as error:
            if not skip_bad:
                raise
            bad.append(error)
        if len(rows) == source.limit:
            break
    if reading is None or not rows:
        raise DataError(_no_rows(source, field, bad))
    names = [file.uri for file in data_files]
    return Rows(source.uri, reading.format, reading.used, rows, names, bad, skip_bad)


def skipped(bad: Sequence[DataError]) -> str:
    """Return the log's text about skipped rows, or an empty string."""
    return f"; {len(bad)} bad rows skipped, the first: {bad[0]}" if bad else ""


def records(data_files: Sequence[files.DataFile]) -> Iterator[tuple[str, Record]]:
    """Yield every record, with the URI of its file."""
    for file in data_files:
        for record in formats.read(file.path.name, files.read(file), file.uri):
            yield file.uri, record


def _no_rows(source: DataSource, field: str, bad: Sequence[DataError]) -> str:
    if bad:
        return f"{field}.uri: {source.uri}: none of the {len(bad)} rows can be read; the first: {bad[0]}"
    return f"{field}.uri: {source.uri}: is empty; accepted: JSON Lines or another known format, with at least one row"
