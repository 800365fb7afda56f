"""Names fit where Kubernetes puts them, and different jobs have different ones."""

import re

from hypothesis import given
from hypothesis import strategies as st

from ptapi.spec.pods.services import RESERVED_NAMES
from ptoperator.kube import names

JOB_NAMES = st.from_regex(r"\A[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


COUNTS = st.tuples(st.integers(1, 512), st.integers(1, 2304))


ROLES = st.dictionaries(st.sampled_from(["slice", "sampler", "a-long-judge"]), COUNTS, min_size=1)


@given(JOB_NAMES, ROLES)
def test_every_pod_name_is_a_dns_label(job: str, roles: dict[str, tuple[int, int]]) -> None:
    name = names.jobset(job, roles)
    for role, (count, hosts) in roles.items():
        assert len(f"{name}-{role}-{count - 1}-{hosts - 1}-abcde") <= 63
    assert DNS_1035.fullmatch(name)


@given(JOB_NAMES, JOB_NAMES)
def test_different_jobs_have_different_jobsets(one: str, other: str) -> None:
    alone = {"slice": (1, 1)}
    assert (names.jobset(one, alone) == names.jobset(other, alone)) == (one == other)


def test_no_service_is_called_as_the_jobs_own_pods() -> None:
    own = {names.REPLICATED_JOB, names.SAMPLER, names.CONTAINER, names.SANDBOX, names.PREFLIGHT, names.STAGE}
    assert own <= set(RESERVED_NAMES)
    assert min(map(len, (names.PATHWAYS_HEAD, names.PATHWAYS_WORKER))) > 12, "longer than a service's name"


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
