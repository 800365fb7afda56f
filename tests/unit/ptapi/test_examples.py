"""Every example is a job as it stands."""

from pathlib import Path

import pytest

from ptapi.accelerators.table import family_of
from ptapi.load import dump_job, load_job, manifest, parse_accepted

EXAMPLES = sorted((Path(__file__).parents[3] / "manifests" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_accepted_and_named_as_its_file(path: Path) -> None:
    job = load_job(path.read_text())
    assert job.metadata.name == path.stem
    assert load_job(dump_job(job)) == job


def test_there_are_examples_for_each_algorithm_and_kind_of_accelerator() -> None:
    jobs = [load_job(path.read_text()) for path in EXAMPLES]
    assert {job.spec.algorithm.kind for job in jobs} == {
        "sft",
        "dpo",
        "kto",
        "reward",
        "grpo",
        "distill",
        "ppo",
        "raft",
    }
    families = {family_of(job.spec.accelerator.type)[0] for job in jobs}
    assert families == {"cpu", "v5p", "v6e", "tpu7x", "rtx-pro-6000"}
    assert any(job.spec.accelerator.slices > 1 for job in jobs)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_that_an_earlier_version_accepted_is_read_as_the_same_job(path: Path) -> None:
    job = load_job(path.read_text())
    assert parse_accepted(manifest(job)) == job
