"""The trainer without the folder `cpu_kernels`: JAX computes what its machine code computes for a CPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders.trainer import quick, runs

import pttrainer

RUN_ALL = (
    "import sys; from pttrainer.__main__ import main; from pttrainer.models.decoding import decode_backend\n"
    "assert decode_backend.host_kernels() is None\n"
    "sys.exit(max(main(['run', job]) for job in sys.argv[1:]))"
)
REWARD = "import zlib\n\ndef reward(prompt, completion, row):\n    return zlib.crc32(completion.encode()) / 2**32\n"
"""Differs wherever a single token does."""
TOLERANCE = 1e-5
"""That of a sample's log-probs in the kernels' own tests."""


def jobs(home: Path) -> list[Path]:
    """Two steps each: GRPO of all weights, and QLoRA evaluated by sampled answers."""
    rows = [{"prompt": f"{i}?", "completion": str(i), "answer": str(i)} for i in range(16)]
    train = {"uri": f"file://{runs.write_rows(home / 'train.jsonl', rows)}"}
    training = {"steps": 2, "sequenceLength": 48, "optimizer": {"learningRate": 1e-3}}
    common = {
        "training": training,
        "rollout": {"maxNewTokens": 12},
        "export": {"format": "none"},
        "tensorboard": {"enabled": False},
    }
    qlora = {"lora": {"rank": 4}, "quantization": {"weights": "nf4"}}
    evaluated = {"data": {"eval": train}, "evaluation": {"answers": ["accuracy"], "maxNewTokens": 12}}
    grpo = {"sft": None, "grpo": {"groupSize": 4}}
    return [
        runs.job(home, "grpo", common, algorithm=grpo, rewards=runs.own_reward(home, REWARD, 10)),
        runs.job(home, "qlora", common, evaluated, training=qlora),
    ]


def test_training_and_sampling_agree_with_and_without_the_folder(tmp_path: Path) -> None:
    homes = {name: tmp_path / name for name in ("with", "without")}
    for home in homes.values():
        home.mkdir()
    shutil.copytree(
        Path(pttrainer.__file__).parent,
        tmp_path / "source" / "pttrainer",
        ignore=shutil.ignore_patterns("cpu_kernels", "__pycache__"),
    )
    command = [sys.executable, "-c", RUN_ALL, *map(str, jobs(homes["without"]))]
    environment = {
        "PYTHONPATH": str(tmp_path / "source"),
        "XLA_FLAGS": quick.FLAGS,
        "JAX_COMPILATION_CACHE_DIR": runs.compiled(),
    }
    for path in jobs(homes["with"]):
        runs.run(path)
    without = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert without.returncode == 0, without.stderr
    for name in ("grpo", "qlora"):
        kernels, plain = (runs.metrics(home / "runs" / name) for home in homes.values())
        assert kernels, name
        for one, other in zip(kernels, plain, strict=True):
            assert one == pytest.approx(other, rel=TOLERANCE, abs=TOLERANCE), name
