"""A reward model of ours read by transformers and trained by TRL: equal scores, loss and gradient."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tests.builders.trainer import runs
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig, RewardTrainer

TOLERANCE = 1e-5
"""Largest difference. Not to be loosened."""
CENTERING = 0.05
ROWS = [
    {"prompt": "?" * (i % 5 + 1), "chosen": "yes" + "!" * (i % 3), "rejected": "no" * (i % 4 + 1)} for i in range(16)
]


def job(home: Path, name: str, model: str, steps: int) -> Path:
    source = {"uri": f"file://{home}/rows.jsonl"}
    return runs.job(
        home,
        name,
        model={"uri": model},
        algorithm={"sft": None, "reward": {"centering": CENTERING}},
        data={"train": source, "eval": source},
        training={"steps": steps, "batchSize": 2 * len(ROWS), "microBatchSize": 8, "sequenceLength": 64},
        evaluation={"atStart": True, "atEnd": True},
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of a few steps, and the first step of a run that goes on from it: its loss and gradient."""
    home = tmp_path_factory.mktemp("reward")
    runs.write_rows(home / "rows.jsonl", ROWS)
    runs.run(job(home, "rm", "random://tiny", 6))
    runs.run(job(home, "again", f"file://{home}/runs/rm/export", 1))
    return home / "runs"


def messages(row: dict[str, str], side: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row[side]}]


def test_transformers_scores_the_export_as_the_run_did(trained: Path) -> None:
    export = trained / "rm" / "export"
    model = AutoModelForSequenceClassification.from_pretrained(export).eval()
    tokenizer = AutoTokenizer.from_pretrained(export)
    assert model.config.num_labels == 1
    last = runs.metrics(trained / "rm")[-1]
    for side in ("chosen", "rejected"):
        texts = [tokenizer.apply_chat_template(messages(row, side), tokenize=False) for row in ROWS]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            scores = model(**{name: inputs[name] for name in ("input_ids", "attention_mask")}).logits[:, 0]
        np.testing.assert_allclose(float(scores.mean()), last[f"eval/rewards/{side}"], atol=TOLERANCE)
        assert float(scores.std()) > 100 * TOLERANCE


def test_trl_has_the_same_loss_and_gradient(trained: Path, tmp_path: Path) -> None:
    export = trained / "rm" / "export"
    pairs = [{side: messages(row, side) for side in ("chosen", "rejected")} for row in ROWS]
    args = RewardConfig(
        str(tmp_path),
        per_device_train_batch_size=len(ROWS),
        max_steps=1,
        logging_steps=1,
        center_rewards_coefficient=CENTERING,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
    )
    model: Any = AutoModelForSequenceClassification.from_pretrained(export)
    tokenizer = AutoTokenizer.from_pretrained(export)
    trainer = RewardTrainer(model, args, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer)
    trainer.train()
    theirs, ours = trainer.state.log_history[0], runs.metrics(trained / "again")[-1]
    np.testing.assert_allclose(ours["loss"], theirs["loss"], atol=TOLERANCE)
    norm = np.hypot(ours["grad_norm"], ours["critic/grad_norm"])
    np.testing.assert_allclose(norm, theirs["grad_norm"], rtol=10 * TOLERANCE)
    for ours_name, name in (("rewards/margins", "margin"), ("rewards/accuracies", "accuracy")):
        np.testing.assert_allclose(ours[ours_name], theirs[name], atol=TOLERANCE)
