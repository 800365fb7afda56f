"""What is watched of a run: ranges with one line each, sample tables for people, how often one of k samples passes."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from pttrainer.rollout.evaluation.evaluator import pass_at
from pttrainer.rollout.groups import Group, Sample
from pttrainer.rollout.rollout_metrics import reward_facts
from pttrainer.runtime.io.directory import Directory
from pttrainer.training.rl_health import FIRST, RANGES, Range, RlHealth
from pttrainer.training.run_directory.sample_log import SHOWN, SampleLog, markdown

DOCS = Path(__file__).parents[4] / "docs/reference/metrics.md"


def test_a_figure_outside_its_range_is_said_once_and_only_when_it_stays_there() -> None:
    watch = RlHealth()
    one = next(one for one in RANGES if one.metric == "truncated")
    values = [0.9] * (one.steps - 1) + [0.1] + [0.9] * (one.steps + 3)
    lines = [watch.report({"truncated": value, FIRST: 1.0}) for value in values]
    assert [len(reported) for reported in lines] == [0] * (2 * one.steps - 1) + [1, 0, 0, 0]
    (line,) = lines[2 * one.steps - 1]
    assert line.startswith("watch: truncated is 0.9 for 5 steps (healthy: at most 0.3): completions are cut")
    assert "; hint: raise rollout.maxNewTokens" in line


def test_figures_in_their_ranges_or_not_there_say_nothing() -> None:
    watch = RlHealth()
    for _ in range(10):
        healthy = {"entropy": 0.5, "kl": 0.01, "sampler/weight": 1.0, "tools/failed": float("nan")}
        assert watch.report({FIRST: 1.0, **healthy}) == []


@pytest.mark.parametrize("one", RANGES, ids=lambda one: one.metric)
def test_every_figure_is_warned_about_beyond_either_end_of_its_range(one: Range) -> None:
    for value in (one.low / 2, one.high * 1.5, math.inf):
        if one.low <= value <= one.high:
            continue
        watch, first = RlHealth(), {} if one.at == "later" else {FIRST: 1.0}
        reported = [watch.report({one.metric: value, "other": 9e9, **first}) for _ in range(one.steps)]
        assert reported[:-1] == [[]] * (one.steps - 1)
        assert reported[-1] == [
            f"watch: {one.metric} is {value:.4g} for {one.steps} steps (healthy: {one.bounds}): {one.means}; "
            f"hint: {one.attempt}"
        ]


def test_of_several_updates_of_a_rollout_each_figure_counts_where_it_is_news() -> None:
    """Two updates each: nothing is clipped at the first of them, and the samples are the same at both."""
    watch, warnings = RlHealth(), []
    for rollout in range(1, 6):
        of_samples = {"groups/all_wrong": 1.0, "clip_fraction": 0.0, FIRST: 1.0}
        reported = [*watch.report(of_samples), *watch.report({"groups/all_wrong": 1.0, "clip_fraction": 0.7})]
        warnings += [(rollout, line.split()[1]) for line in reported]
    assert warnings == [(5, "groups/all_wrong"), (5, "clip_fraction")]


@pytest.mark.parametrize("one", RANGES, ids=lambda one: one.metric)
def test_the_reference_page_knows_every_range(one: Range) -> None:
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{one.metric}` ")]
    assert any(one.bounds in line for line in rows), one


def test_one_of_k_samples_passes_as_often_as_among_all_choices_of_k() -> None:
    samples, passed = 6, [0, 2, 6]
    rates = pass_at(passed, samples)
    assert list(rates) == ["pass@1", "pass@2", "pass@4", "pass@6"]
    for k in (1, 2, 4, 6):
        shares = []
        for right in passed:
            choices = list(itertools.combinations(range(samples), k))
            shares.append(sum(any(i < right for i in choice) for choice in choices) / len(choices))
        assert rates[f"pass@{k}"] == pytest.approx(np.mean(shares))


def sample(**rewards: float) -> Sample:
    return Sample([1], np.zeros(1), True, "t", rewards, sum(rewards.values()))


def test_figures_of_every_reward_leave_out_what_is_missing() -> None:
    group = Group(None, [sample(a=1.0, b=0.0), sample(a=0.0, b=0.5), sample(a=np.nan, b=1.0)])  # type: ignore[arg-type]
    facts = reward_facts([group])
    assert facts["reward"] == 0.75
    assert facts["reward/missing"] == facts["reward/a/missing"] == pytest.approx(1 / 3)
    assert (facts["reward/a"], facts["reward/a/min"], facts["reward/a/max"]) == (0.5, 0.0, 1.0)
    assert facts["reward/a/std"] == pytest.approx(np.std([1, 0], ddof=1))
    assert (facts["reward/b"], facts["reward/b/missing"]) == (0.5, 0.0)


def test_a_reward_that_failed_for_all_is_a_gap_in_the_curve_and_no_0_which_could_be_the_best() -> None:
    lost = [Sample([1], np.zeros(1), True, "", {"a": np.nan}, np.nan)] * 2
    facts = reward_facts([Group(None, lost)])  # type: ignore[arg-type]
    of_missing = {"reward/missing", "reward/a/missing"}
    assert {name for name, value in facts.items() if value == 1.0} == of_missing
    assert all(np.isnan(facts[name]) for name in set(facts) - of_missing)


def test_a_step_s_samples_are_lines_for_programs_and_a_table_for_people(tmp_path: Path) -> None:
    row = {
        "prompt": "a|b\nc\ud800",
        "completion": "<x> *y*",
        "reward": None,
        "rewards": {"own": None},
        "advantage": 0.25,
    }
    turns = [{"role": "assistant", "content": "call"}, {"role": "tool", "content": "7"}]
    samples = SampleLog(Directory(tmp_path), leader=True)
    samples.save(3, [row, {**row, "turns": turns, "reward": 1.0}])
    assert len((tmp_path / "samples/step-00000003.jsonl").read_text().splitlines()) == 2
    assert samples.take().splitlines()[2:] == [
        r"| a\|b<br>c? | &lt;x&gt; \*y\* | none | 0.25 |",
        r"| a\|b<br>c? | assistant: call<br>tool: 7 | 1 | 0.25 |",
    ]
    assert samples.take() == ""
    assert len(markdown([row] * 100).splitlines()) == 2 + SHOWN
