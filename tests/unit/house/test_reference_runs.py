"""Jobs that repeat published results: valid, and judged by the rule on their page."""

from pathlib import Path

import pytest
import yaml
from tests.builders.scripts import load_script

from ptapi.load import load_job
from ptctl.jobs.definition.set_field import assign_all
from pttrainer.preflight.check import judge

ROOT = Path(__file__).resolve().parents[3]
RUNS = load_script("benchmarks/reference_runs/reference_runs.py")
JOBS = sorted(path for path in RUNS.FOLDER.glob("*.yaml") if path.stem != "published")
SLIME = RUNS.published("qwen25-gsm8k-grpo")


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_each_job_is_valid_and_has_published_figures_and_a_line_on_the_page(path: Path) -> None:
    job = load_job(path.read_text())
    assert job.metadata.name == path.stem
    assert job.spec.evaluation.at_start
    assert job.spec.evaluation.at_end
    page = (ROOT / "docs/reference/reference-runs.md").read_text()
    figures = RUNS.published(path.stem)
    assert f"| `{path.stem}` |" in page
    assert f"{figures.before:g} → {figures.after:g} %" in page


SHAPES = {"hf://Qwen/Qwen2.5-0.5B-Instruct": "random://qwen2.5-0.5b", "hf://Qwen/Qwen3-1.7B": "random://qwen3-1.7b"}


@pytest.mark.parametrize("has_one_gpu", [False, True], ids=["v6e-8", "one GPU"])
@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_each_job_fits_its_chips_by_the_formula(path: Path, has_one_gpu: bool) -> None:
    changes = RUNS.published(path.stem).one_gpu if has_one_gpu else ("accelerator.type=v6e-8",)
    body = yaml.safe_load(path.read_text())
    body["spec"]["model"]["uri"] = SHAPES[body["spec"]["model"]["uri"]]
    assign_all(body, changes)
    assert judge(load_job(yaml.safe_dump(body)), "formula").fits


@pytest.mark.parametrize(
    ("runs", "code", "words"),
    [
        ([(43.6, 50.0), (43.0, 51.0), (44.2, 49.8)], 0, "repeated: 43.6 -> 50.3 %, published 43.59 -> 50.19 ± 3.2"),
        ([(45.5, 50.0)], 0, "repeated"),
        ([(45.6, 50.0)], 3, "not comparable: 45.6 % before training, published 43.59"),
        ([(43.6, 54.0)] * 3, 0, "better"),
        ([(43.6, 46.9)] * 3, 1, "worse"),
        ([(43.6, 46.9)], 0, "repeated"),  # one seed says less, so its band is wider
    ],
)
def test_the_rule(runs: list[tuple[float, float]], code: int, words: str) -> None:
    verdict = RUNS.judge(SLIME, runs)
    assert (verdict.code, verdict.text.startswith(words)) == (code, True), verdict.text
