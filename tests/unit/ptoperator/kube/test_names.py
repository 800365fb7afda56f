"""Names fit where Kubernetes puts them, and different jobs have different ones."""

import re

from hypothesis import given
from hypothesis import strategies as st

from ptoperator.kube import names

JOB_NAMES = st.from_regex(r"\A[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


COUNTS = st.tuples(st.integers(1, 512), st.integers(1, 2304))


@given(JOB_NAMES, COUNTS, st.just((0, 0)) | COUNTS)
def test_every_pod_name_is_a_dns_label(job: str, slices: tuple[int, int], samplers: tuple[int, int]) -> None:
    name = names.jobset(job, slices, samplers)
    for role, (count, hosts) in {"slice": slices, "sampler": samplers}.items():
        assert not count or len(f"{name}-{role}-{count - 1}-{hosts - 1}-abcde") <= 63
    assert DNS_1035.fullmatch(name)


@given(JOB_NAMES, JOB_NAMES)
def test_different_jobs_have_different_jobsets(one: str, other: str) -> None:
    assert (names.jobset(one, (1, 1)) == names.jobset(other, (1, 1))) == (one == other)


@given(JOB_NAMES)
def test_pathways_coordinator_label_fits(job: str) -> None:
    name = names.cut(job, names.PATHWAYS_JOBSET)
    assert len(f"{name}-pathways-head-0-0.{name}") <= 63


def test_a_name_that_fits_stays_and_one_that_does_not_ends_in_its_hash() -> None:
    assert names.cut("llama", 22) == "llama"
    assert names.cut("llama-3-70b-instruct-grpo-run-7", 22) == "llama-3-70b-inst-51116"
    assert names.cut("abcdefghijklmno--------x", 22).startswith("abcdefghijklmno-")
    assert "--" not in names.cut("abcdefghijklmno--------x", 22)


def test_a_job_of_the_same_name_has_a_config_map_of_its_own() -> None:
    assert names.config_map("llama", "uid-1") != names.config_map("llama", "uid-2")
