"""Preflight of services: the weights of served models against their chips, and the chips that a job holds with them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer.preflight import job

from ptapi.spec import PostTrainJob
from pttrainer.errors import ConfigError
from pttrainer.preflight.check import judge
from pttrainer.preflight.memory import service_memory
from pttrainer.preflight.shapes.job_shapes import shapes_of

QWEN3_8B = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000, "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip


def served(folder: Path, accelerator: str, config: dict[str, Any] = QWEN3_8B) -> PostTrainJob:
    """Return a job on a v6e-4 beside two replicas of this model."""
    model = folder / "judge"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    body = job("llama3.2-1b", "v6e-4", batchSize=64, steps=10).model_dump(by_alias=True, exclude_unset=True)
    accelerators = {"type": accelerator}
    body["spec"] |= {
        "services": [
            {"name": "judge", "replicas": 2, "model": {"uri": f"file://{model}"}, "accelerator": accelerators}
        ],
        "volumes": [{"name": "m", "mountPath": str(folder), "persistentVolumeClaim": {"claimName": "m"}}],
    }
    return PostTrainJob.model_validate(body)


def test_weights_that_fit_are_told_of_beside_what_vllm_may_use(tmp_path: Path) -> None:
    (line,) = service_memory.check(served(tmp_path, "v6e-4").spec)
    assert line.startswith("service judge: 15.3 GiB of weights in bfloat16, where vLLM may use 112.5 GiB")
    assert line in judge(served(tmp_path, "v6e-4"), "formula").assumptions


def test_weights_that_do_not_fit_are_refused_by_the_field_of_the_chips(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"spec.services\[0\].accelerator.type: v5litepod-1 .1 chip.: vLLM may use 14.2 GiB"
    ):
        judge(served(tmp_path, "v5e-1"), "formula")


def test_a_model_of_no_known_family_is_not_checked_and_it_is_written(tmp_path: Path) -> None:
    (line,) = service_memory.check(served(tmp_path, "v6e-1", {"model_type": "mamba"}).spec)
    assert line.startswith("the memory of service judge is not checked: spec.services[0].model.uri")


def test_the_chips_of_services_are_paid_for(tmp_path: Path) -> None:
    of = shapes_of(served(tmp_path, "v6e-4").spec)
    assert (of.held_chips, of.service_chips) == (4, 2 * 4)
    made = judge(served(tmp_path, "v6e-4"), "formula", 2.0)
    assert "8 more chips are the services', for which the run's chip-hours pay as well" in made.assumptions
    estimated = made.estimate
    assert estimated is not None
    assert estimated.chip_hours == pytest.approx(estimated.seconds * 10 * 12 / 3600)
