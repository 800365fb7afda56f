"""What the operator keeps of many jobs: little of each, and nothing of everybody's with each."""

import gc
import sys
from types import FunctionType, ModuleType

import pytest
from tests.builders.operator.cloud_site import Site
from tests.builders.operator.job_steps import NAME
from tests.builders.operator.world import NAMESPACE, Api, Operator, World, job_manifest

from ptkube.resources import POSTTRAINJOBS
from ptoperator.observe import run_directory
from ptoperator.observe.watch_caches import WATCHED

MOST_BYTES = 25_000


def reachable_bytes(*roots: object) -> int:
    """Return the size of everything that these objects hold, but for code."""
    known: set[int] = set()
    waiting, total = list(roots), 0
    while waiting:
        each = waiting.pop()
        if id(each) in known or isinstance(each, type | ModuleType | FunctionType):
            continue
        known.add(id(each))
        total += sys.getsizeof(each)
        waiting += gc.get_referents(each)
    return total


def operator_of(jobs: int) -> Operator:
    """Return an operator of so many jobs, whose pods run."""
    operator = Operator(World(Api()))
    for index in range(jobs):
        output = {"uri": f"gs://lab/{index}"}
        operator.api.create(POSTTRAINJOBS, job_manifest(f"job-{index}", preflight="Skip", output=output))
    operator.work()
    operator.world.run_jobsets()
    for pod in operator.world.pods:
        operator.world.start(pod)
    operator.work()
    return operator


def kept(operator: Operator) -> int:
    """Return the size of what an operator remembers, and of its local copies."""
    copies = [operator.copies.of(each, None) for each in WATCHED]
    return reachable_bytes(operator.cache, [copy.items() for copy in copies if copy])


def test_each_running_job_takes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "_read_bytes", lambda uri: None)
    few, many = kept(operator_of(5)), kept(operator_of(25))
    assert (many - few) / 20 < MOST_BYTES


def test_no_job_keeps_a_snapshot_of_everybodys_pools(site: Site) -> None:
    """Each would keep another one, for they are read at different times."""
    site.create(NAME)
    site.run(10)
    last = site.operator.cache.last((NAMESPACE, NAME))
    assert last is not None
    assert site.gke.last() is not None
    assert last.cloud is None
