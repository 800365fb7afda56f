"""Jobs to be judged: a model's shape, chips, and a few fields."""

from typing import Any

from ptapi.spec import PostTrainJob, PostTrainJobSpec


def spec(model: str, accelerator: str, *, algorithm: str = "sft", slices: int = 1, **fields: Any) -> PostTrainJobSpec:
    """A spec with these fields of `training`; `options` are the algorithm's, `rollout` the rollout's."""
    body: dict[str, Any] = {
        "model": {"uri": f"random://{model}"},
        "algorithm": {algorithm: fields.pop("options", {})},
        "data": {"train": {"uri": "file:///data.jsonl"}},
        "rollout": fields.pop("rollout", {}),
        "training": fields,
        "accelerator": {"type": accelerator, "slices": slices},
        "output": {"uri": "file:///runs"},
    }
    return PostTrainJobSpec.model_validate(body)


def job(model: str, accelerator: str, **fields: Any) -> PostTrainJob:
    """The same as a job."""
    return PostTrainJob.model_validate(
        {
            "apiVersion": "posttrain.dev/v1alpha1",
            "kind": "PostTrainJob",
            "metadata": {"name": "asked"},
            "spec": spec(model, accelerator, **fields).model_dump(by_alias=True, exclude_unset=True),
        }
    )
