"""The image with vLLM for TPUs: its pins are of the version that samplers run, and are compared with what resolves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptoperator.render.pods.beside import vllm_sampler

HERE = Path(__file__).resolve().parents[3] / "scripts/images/vllm_tpu"
PINS = (HERE / "requirements.txt").read_text().splitlines()[1:]


def test_pins_are_of_the_samplers_version_and_name_no_index() -> None:
    version = vllm_sampler.TPU_IMAGE.rpartition(":v")[2]
    assert {f"vllm-tpu=={version}", f"tpu-inference=={version}"} <= set(PINS)
    assert [pin for pin in PINS if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[A-Za-z0-9.!+]+", pin)] == []


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (PINS, 0, f"{len(PINS)} packages resolve together"),
        ([*PINS[1:], "zebra==1.0"], 1, f"requirements.txt: {PINS[0]}: nothing needs it"),
        ([*PINS[1:], "zebra==1.0"], 1, "requirements.txt: zebra==1.0: missing"),
    ],
)
def test_what_resolves_otherwise_is_named(answer: list[str], code: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("\n".join(answer) + "\n")
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\ncat '{tmp_path / 'answer.txt'}'\n")
    uv.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, str(HERE / "resolve.py")]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert words in done.stdout + done.stderr
