"""`pathways.enabled: auto`: on where sampling on several hosts needs one process, off everywhere else."""

from typing import Any

import pytest

from ptapi.accelerators import one_process
from ptapi.spec import PostTrainJobSpec

APART = {"rollout": {"placement": "disaggregated"}}
CODE = {"uri": "file:///code.py", "function": "look"}


def spec(chips: str = "v6e-16", algorithm: str = "grpo", **fields: Any) -> PostTrainJobSpec:
    return PostTrainJobSpec.model_validate(
        {
            "model": {"uri": "random://tiny"},
            "algorithm": {algorithm: {}},
            "data": {"train": {"uri": "file:///data.jsonl"}},
            "accelerator": {"type": chips, "slices": fields.pop("slices", 1)},
            "output": {"uri": "gs://bucket/runs"},
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            APART,
            "rollout.placement: disaggregated needs one process that moves weights, and v6e-16 (16 chips) is 4 hosts",
        ),
        ({"environment": {"python": {"uri": "file:///e.py"}}}, "Python of the environment runs in one process, and"),
        ({"environment": {"gymnasium": {"id": "Taxi-v3"}}}, "Python of the environment runs in one process, and"),
        ({"environment": {"tools": [{"python": CODE}]}}, "Python of the environment runs in one process, and"),
        ({"environment": {"mcp": [{"name": "a", "url": "http://a:80/mcp"}]}}, "one process holds the sessions"),
        ({"rollout": {"engine": "vllm", "vllm": {"endpoint": "http://v:8000"}}}, "one process gives vLLM's server"),
        (APART | {"chips": "v6e-4", "slices": 2}, "and 2 x v6e-4 (8 chips) is 2 hosts"),
    ],
    ids=["split", "class", "gymnasium", "python-tool", "mcp", "vllm", "slices"],
)
def test_what_needs_one_process_on_several_hosts_takes_pathways_and_it_is_written_why(
    fields: dict[str, Any], why: str
) -> None:
    of = spec(**fields)
    assert one_process.uses_pathways(of)
    assert why in (one_process.reason(of) or "")
    refused = spec(**fields, pathways={"enabled": False})
    assert (one_process.uses_pathways(refused), one_process.reason(refused)) == (False, None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"algorithm": "sft"},
        APART | {"chips": "v6e-4"},
        APART | {"chips": "h100-16"},
        APART | {"chips": "cpu-4"},
        {"environment": {"tools": [{"builtin": "calculator"}]}},
        {"rollout": {"engine": "vllm", "vllm": {}}},
        {"rollout": {"placement": "separate", "separate": {}}},
        APART | {"runtime": {"maxtext": {"modelName": "m"}}},
        APART | {"chips": "no-such-chip"},
    ],
    ids=str,
)
def test_other_jobs_have_a_trainer_on_each_host(fields: dict[str, Any]) -> None:
    assert not one_process.uses_pathways(spec(**fields))


def test_a_job_that_says_so_takes_pathways_without_a_reason_of_ours() -> None:
    explicit = spec(algorithm="sft", pathways={"enabled": True})
    assert (one_process.uses_pathways(explicit), one_process.reason(explicit)) == (True, None)
