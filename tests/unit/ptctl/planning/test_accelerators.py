"""`ptctl accelerators`: the table for people and programs, and the smallest slices for a job, with the real formula."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.trainer.preflight import job

from ptapi import accelerators

Invoke = Callable[..., Any]


@pytest.fixture
def grpo_file(tmp_path: Path) -> Path:
    """GRPO of an 8 B model."""
    requested = job("llama3.1-8b", "v6e-16", algorithm="grpo", batchSize=48, sequenceLength=2048)
    body = requested.model_dump(mode="json", by_alias=True, exclude_unset=True)
    body["spec"]["rewards"] = [{"builtin": "gsm8k"}]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def ptctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ptctl", *words], capture_output=True, text=True, timeout=900)


def test_the_list_has_every_type_of_the_table_once(invoke: Invoke) -> None:
    names = invoke("accelerators", "list", "-o", "name").out.split()
    assert names == [name for generation in accelerators.table() for name in accelerators.names(generation)]


def test_a_generation_by_an_alias_and_each_row_is_what_the_type_resolves_to(invoke: Invoke) -> None:
    rows = json.loads(invoke("accelerators", "list", "--generation", "Trillium", "-o", "json").out)
    assert [row["type"] for row in rows] == accelerators.names("v6e")
    for row in rows:
        one = accelerators.resolve(row["type"])
        assert (row["chips"], row["hosts"], row["topology"]) == (one.chips, one.vms, one.topology)
        assert (row["machineType"], row["hbmGib"]) == (one.machine_type, 32 * one.chips)
        assert all(accelerators.resolve(alias) == one for alias in row["aliases"])


def test_the_table_for_people_and_its_wide_form(invoke: Invoke) -> None:
    lines = invoke("accelerators", "list", "--generation", "v6e").out.splitlines()
    assert re.split(r" {3,}", lines[0]) == ["TYPE", "CHIPS", "HOSTS", "TOPOLOGY", "HBM GIB/CHIP", "MACHINE TYPE"]
    assert lines[4].split() == ["v6e-16", "16", "4", "4x4", "32", "ct6e-standard-4t"]
    assert "trillium-16 v6e-4x4" in invoke("accelerators", "list", "--generation", "v6e", "-o", "wide").out


def test_a_page_of_a_type_in_three_forms(invoke: Invoke) -> None:
    page = invoke("accelerators", "describe", "trillium-16").out
    assert re.search(r"^Type: +v6e-16$", page, re.MULTILINE)
    assert re.search(r"^HBM GiB: +512$", page, re.MULTILINE)
    document = json.loads(invoke("accelerators", "describe", "v6e-16", "-o", "json").out)
    assert yaml.safe_load(invoke("accelerators", "describe", "v6e-16", "-o", "yaml").out) == document
    assert invoke("accelerators", "describe", "v6e-4x4", "-o", "name").out == "v6e-16\n"
    assert "HBM" not in invoke("accelerators", "describe", "cpu-8").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["describe", "v6e-17"], "TYPE: v6e-17: does not exist; nearest: v6e-16 (16 chips), v6e-32"),
        (["describe", "V6E_16"], "hint: did you mean v6e-16?"),
        (["list", "--generation", "v6"], "hint: did you mean v6e?"),
        (["list", "--fits"], "hint: --fits -f job.yaml"),
        (["list", "-f", "job.yaml"], "hint: --fits -f job.yaml"),
        (["list", "--set", "queue=a"], "hint: --fits -f job.yaml"),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest(invoke: Invoke, words: list[str], message: str) -> None:
    result = invoke("accelerators", *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_each_smallest_slice_holds_the_job_with_its_changes_and_the_next_smaller_does_not(grpo_file: Path) -> None:
    listed = ptctl("accelerators", "list", "--fits", "-f", str(grpo_file), "-o", "json")
    rows = {row["generation"]: row for row in json.loads(listed.stdout)}
    assert (listed.returncode, {"v5p", "v5e", "v6e"} <= set(rows)) == (0, True)
    v5e = rows["v5e"]
    assert f"`ptctl plan -f {grpo_file} --set accelerator.type=TYPE`" in listed.stderr
    assert v5e["peakGibPerChip"] <= v5e["availableGibPerChip"]
    sets = ["--set", f"accelerator.type={v5e['type']}", *(f"--set={word}".replace("'", "") for word in v5e["changes"])]
    assert ptctl("plan", "-f", str(grpo_file), "--quick", *sets).returncode == 0
    smaller = accelerators.names("v5e")[accelerators.names("v5e").index(v5e["type"]) - 1]
    assert ptctl("plan", "-f", str(grpo_file), "--quick", "--set", f"accelerator.type={smaller}").returncode == 1


def test_no_type_for_a_job_ends_with_1_and_names_what_helps(grpo_file: Path) -> None:
    sets = ["--set", "model.uri=random://llama3.1-70b", "--set", "training.sequenceLength=131072"]
    result = ptctl("accelerators", "list", "--fits", "-f", str(grpo_file), "--generation", "v5e", *sets)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"hint: `ptctl plan fit -f {grpo_file} {' '.join(sets)}`" in result.stderr
