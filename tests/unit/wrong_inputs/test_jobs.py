"""Wrong jobs: fields by their path, and texts that are no job. Each answer is one finding a line."""

from typing import Any

import yaml
from tests.unit.ptapi.test_wrong_manifests import GONE, GOOD, patched
from tests.unit.wrong_inputs import tables

from ptapi.errors import SpecError
from ptapi.load import load_job, parse_job

TEXT = yaml.safe_dump(GOOD)


def test_golden_wrong_field_is_refused_with_its_value_and_what_is_accepted() -> None:
    tables.check("job_fields", _answer_to_fields)


def test_golden_text_that_is_no_job_is_refused_with_its_line() -> None:
    tables.check("job_texts", _answer_to_text)


def test_the_tables_hold_more_than_five_hundred_inputs() -> None:
    names = [path.stem for path in tables.TABLES.glob("*.txt")]
    assert sum(len(tables.cases(name)) for name in names) >= 500


def _answer_to_fields(patch: dict[str, Any]) -> str:
    # null takes a field away, as on the API server
    document = patched({path: GONE if value is None else value for path, value in patch.items()})
    try:
        parse_job(document)
    except SpecError as error:
        return str(error)
    return tables.ACCEPTED


def _answer_to_text(change: list[str]) -> str:
    how, *parts = change
    texts = {"whole": lambda: parts[0], "append": lambda: TEXT + parts[0], "replace": lambda: TEXT.replace(*parts, 1)}
    text = texts[how]()
    assert text != TEXT
    try:
        load_job(text)
    except SpecError as error:
        return str(error)
    return tables.ACCEPTED
