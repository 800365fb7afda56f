"""A PostTrainJob for a benchmark, and a reward for reinforcement learning: what is measured says what differs."""

from typing import Any

REWARD = '''"""The reward of every side: it costs nothing."""

import zlib


def reward(prompt, completion, row):
    return zlib.crc32(completion.encode()) % 1000 / 1000
'''


def manifest(name: str, *, data: str, output: str, **spec: Any) -> dict[str, Any]:
    """A job of SFT that trains on `data` and writes to `output` (URIs); further fields of the spec as given."""
    return {
        "apiVersion": "posttrain.dev/v1alpha1",
        "kind": "PostTrainJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "model": {"uri": "random://tiny"},
            "algorithm": {"sft": {}},
            "data": {"train": {"uri": data}},
            "accelerator": {"type": "cpu-1"},
            "output": {"uri": output},
            **spec,
        },
    }
