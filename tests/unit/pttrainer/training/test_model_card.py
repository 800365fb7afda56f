"""The model card beside exported weights says what the run's own documents say."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ptapi.load import parse_job
from ptapi.run_directory import LINEAGE, METRICS
from pttrainer.runtime.io.directory import Directory
from pttrainer.training.run_directory import model_card

ROWS = [
    '{"step": 1, "loss": 2.0, "eval/reward": 0.25}',
    '{"step": 2, "loss": 9.0}',
    '{"step": 2, "loss": 1.0}',
    '{"step": 3, "loss": 0.5, "eval/reward": 0.75, "eval/loss": NaN}',
    '{"step": 4, "loss": 0.',
]
LINEAGE_TEXT = """{"modelCommit": "abc123", "devices": {"count": 8, "kind": "TPU v6e"}, "parameters": 1500000,
 "data": {"train": {"uri": "gs://lab/t.jsonl", "files": [{"uri": "x", "sha256": "0123456789abcdef0123"}]}},
 "versions": {"python": "3.11.7", "jax": "0.10.2", "torch": null}}"""


def written(tmp_path: Path, step: int = 3, **spec: Any) -> str:
    document = {
        "apiVersion": "posttrain.dev/v1alpha1",
        "kind": "PostTrainJob",
        "metadata": {"name": "llama"},
        "spec": {
            "model": {"uri": "hf://org/base"},
            "algorithm": {"grpo": {"groupSize": 4}},
            "data": {"train": {"uri": "gs://lab/t.jsonl"}},
            "rewards": [{"builtin": "gsm8k"}, {"builtin": "format", "weight": 0.5}],
            "accelerator": {"type": "v6e-8"},
            "output": {"uri": "gs://lab/runs"},
            **spec,
        },
    }
    run = Directory(tmp_path)
    run.write(METRICS, "\n".join(ROWS).encode())
    run.write(LINEAGE, LINEAGE_TEXT.encode())
    model_card.write(run, Directory(tmp_path / "export"), parse_job(document), step)
    return (tmp_path / "export" / "README.md").read_text()


def test_the_head_is_what_the_hub_reads(tmp_path: Path) -> None:
    head = yaml.safe_load(written(tmp_path).split("---")[1])
    assert head == {"library_name": "transformers", "base_model": "org/base", "tags": ["posttrain", "grpo"]}
    adapters = {"training": {"lora": {"rank": 8}}, "export": {"format": "peft"}}
    text = written(tmp_path, **adapters)
    assert yaml.safe_load(text.split("---")[1])["library_name"] == "peft"
    assert "LoRA of rank 8" in text


@pytest.mark.parametrize(
    "line",
    [
        "Post-trained from `hf://org/base` at commit `abc123` with grpo: step 3, all weights.",
        "- rewards: gsm8k × 1, format × 0.5",
        "| held out | step 1 | step 3 |",
        "| reward | 0.25 | 0.75 |",
        "| loss | 2 | `█▃▁` | 0.5 |",
        "- train: `gs://lab/t.jsonl` (sha256 0123456789abcdef…)",
        "- parameters: 1,500,000",
        "- devices: 8 × TPU v6e",
        "- versions: python 3.11.7, jax 0.10.2",
    ],
)
def test_each_fact_is_that_of_the_run(tmp_path: Path, line: str) -> None:
    assert line in written(tmp_path).splitlines()


def test_the_card_of_an_earlier_checkpoint_ends_at_its_step(tmp_path: Path) -> None:
    text = written(tmp_path, step=2)
    assert "with grpo: step 2" in text
    assert "| loss | 2 | `█▁` | 1 |" in text
    assert "0.75" not in text
