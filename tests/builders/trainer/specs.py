"""The spec of a job whose data and output are nowhere: for parts of the trainer, without a run."""

from typing import Any

from ptapi.spec import PostTrainJobSpec


def tiny(algorithm: dict[str, Any], **parts: Any) -> PostTrainJobSpec:
    """Return the spec of a job of the tiny model on one device. Parts replace whole parts, `training` its fields."""
    samples = {"rewards": [{"builtin": "gsm8k"}], "rollout": {"max_new_tokens": 8}}
    training = {"batch_size": 4, "sequence_length": 64, "steps": 8, **parts.pop("training", {})}
    spec: dict[str, Any] = {
        "model": {"uri": "random://tiny"},
        "algorithm": algorithm,
        "data": {"train": {"uri": "file:///none"}},
        "training": training,
        "accelerator": {"type": "cpu-1"},
        "output": {"uri": "file:///none"},
        **(samples if {"grpo", "ppo", "raft", "sdpo"} & algorithm.keys() else {}),
    }
    return PostTrainJobSpec.model_validate(spec | parts)
