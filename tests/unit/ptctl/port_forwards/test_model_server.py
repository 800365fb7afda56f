"""Which model of a server a chat talks to."""

from typing import Any

import pytest

from ptctl.errors import MissingError
from ptctl.port_forwards import model_server
from ptoperator.kube import labels


def deployment(job: str, *names: str) -> dict[str, Any]:
    """A server's, of a base model and adapters."""
    base, *adapters = names
    modules = ["--lora-modules", *(f"{name}=/models/{name}" for name in adapters)] if adapters else []
    container = {"command": ["vllm", "serve", "/models/model", "--served-model-name", base, *modules]}
    metadata = {"name": "s", "labels": {labels.JOB_SERVED: job} if job else {}}
    return {"metadata": metadata, "spec": {"template": {"spec": {"containers": [container]}}}}


def test_a_chat_talks_to_the_jobs_adapters_unless_it_names_another_model() -> None:
    adapters = deployment("llama", "org/base", "llama", "math")
    assert [model_server._model(adapters, wanted) for wanted in ("", "math", "org/base")] == [
        "llama",
        "math",
        "org/base",
    ]
    assert model_server._model(deployment("llama", "llama", "math"), "") == "llama"
    assert model_server._model(deployment("", "Qwen/Qwen3-8B"), "") == "Qwen/Qwen3-8B"
    with pytest.raises(MissingError, match="s#code: the server has no such model; accepted: org/base, llama, math"):
        model_server._model(adapters, "code")
