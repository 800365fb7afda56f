"""Every mistake that was found in peers has a test here, and the table at the end of docs/reference/algorithms.md says
which."""

import re
from pathlib import Path

import pytest

from ptapi.errors import SpecError
from ptapi.load import load_job

ROOT = Path(__file__).resolve().parents[4]
LISTED = (ROOT / "docs" / "reference" / "algorithms.md").read_text().split("## Mistakes found in peers")[1]
TABLE = {
    int(number): re.findall(r"`([^`:]+)::(test_\w+)`", tests)
    for number, tests in re.findall(r"^\| (\d+) \| (.*) \|$", LISTED, re.MULTILINE)
}


@pytest.mark.parametrize("number", sorted(TABLE))
def test_the_mistake_has_its_test(number: int) -> None:
    assert TABLE[number]
    for file, name in TABLE[number]:
        assert f"\ndef {name}(" in (ROOT / file).read_text(), (file, name)


def test_no_mistake_of_the_list_is_left_out_and_each_has_a_test_of_its_own() -> None:
    numbers = [int(digits) for digits in re.findall(r"^(\d+)\. ", LISTED, re.MULTILINE)]
    assert numbers == list(TABLE) == list(range(1, 21))
    first = [tests[0] for tests in TABLE.values()]
    assert len(set(first)) == len(first)


def test_a_group_is_never_split_across_micro_batches() -> None:
    """Mistake 17: 8 rows of groups of 4 in micro-batches of 2."""
    job = (ROOT / "manifests" / "examples" / "grpo-cpu.yaml").read_text()
    with pytest.raises(SpecError, match=r"training.microBatchSize: 4: .*a group is never split"):
        load_job(job.replace("batchSize: 192", "batchSize: 192\n    microBatchSize: 4"))
