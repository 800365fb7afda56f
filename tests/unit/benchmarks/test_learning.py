"""The harness of the learning curves: bars, the book, the page. Nothing is trained here."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ptapi import load

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "benchmarks" / "learning"))  # it is in no package

import book  # noqa: E402
import page  # noqa: E402
import picture  # noqa: E402
import run  # noqa: E402
import trial  # noqa: E402
from task import Bar, Place, Task, Trial, in_order, write_rows  # noqa: E402
from tasks import TASKS  # noqa: E402
from trial import Outcome, TrialFailed  # noqa: E402

TRIALS = [(task, trial) for task in TASKS.values() for trial in task.trials]
OUTCOME = Outcome("spelling", "grpo", 0, 4, [[0, 0.2], [4, 0.9]], [[1, 0.5]], 0.25, 20.0, 30.0, [1.0, 2.0], "2 cores")


def task(*bars: Bar) -> Task:
    trials = [Trial(f"trial-{number}", lambda place: {"training": {}}, bar) for number, bar in enumerate(bars)]
    return Task(
        "spelling", "Spelling", "Words.", lambda folder, seed: write_rows(folder / "train.jsonl", []), (*trials,)
    )


@pytest.mark.parametrize(
    ("bar", "before", "after", "missed"),
    [
        (Bar("m", least=0.8), 0.0, 0.8, 0),
        (Bar("m", least=0.8), 0.0, 0.79, 1),
        (Bar("m", least=0.8, gain=0.2), 0.7, 0.85, 1),
        (Bar("m", least=0.8, gain=0.2), 0.7, 0.75, 2),
        (Bar("m", below=0.5), 0.0, 0.5, 1),
        (Bar("m", below=0.5), 0.0, 0.49, 0),
    ],
)
def test_a_bar_counts_what_was_not_reached(bar: Bar, before: float, after: float, missed: int) -> None:
    assert len(bar.missed(before, after)) == missed


def test_a_bar_says_what_it_wants() -> None:
    assert Bar("m", least=0.8, gain=0.2).words == "≥ 80%, +20 points"
    assert Bar("m", below=0.5).words == "control: < 50%"


def test_every_trial_has_a_bar_that_can_be_missed() -> None:
    assert [
        trial.name for _, trial in TRIALS if not trial.bar.missed(0.0, 0.0) and not trial.bar.missed(1.0, 1.0)
    ] == []


@pytest.mark.parametrize(("of", "trial_"), TRIALS, ids=lambda value: value.name)
def test_every_job_is_one_that_a_user_could_write(of: Task, trial_: Trial, tmp_path: Path) -> None:
    manifest = trial.manifest(trial_, Place(tmp_path, of.name, 7))
    job = load.load_job(json.dumps(manifest))
    assert job.spec.training.seed == 7


def test_what_a_trial_needs_comes_with_its_task() -> None:
    for _, needing in TRIALS:
        for need in needing.needs:
            name, of = need.split("/")
            assert TASKS[name].trial(of).name == of


@pytest.mark.parametrize("name", ["sorting", "distillation"])
def test_the_same_seed_makes_the_same_data_and_no_word_is_in_both_files(name: str, tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        TASKS[name].write_data(tmp_path / folder, seed)
    read = {folder: (tmp_path / folder / "train.jsonl").read_text() for folder in "abc"}
    assert read["a"] == read["b"] != read["c"]
    questions = [
        {json.loads(line)["question"] for line in (tmp_path / "a" / f"{part}.jsonl").read_text().splitlines()}
        for part in ("train", "eval")
    ]
    assert not questions[0] & questions[1]


def test_the_student_of_distillation_is_shown_half_of_the_cipher_and_its_teacher_all(tmp_path: Path) -> None:
    TASKS["distillation"].write_data(tmp_path, 7)
    right = {name: share_right(tmp_path, name) for name in ("train.jsonl", "taught.jsonl")}
    assert sum(share == 1.0 for share in right["train.jsonl"]) == 13
    assert sum(share < 0.1 for share in right["train.jsonl"]) == 13
    assert all(0.7 < share < 0.9 for share in right["taught.jsonl"])


def share_right(folder: Path, name: str) -> list[float]:
    """By letter, how often a file's answers are what the held-out ones say."""
    shown = {part: [json.loads(line) for line in (folder / part).open()] for part in ("eval.jsonl", name)}
    pairs = {part: [pair for row in rows for pair in zip(*row.values(), strict=True)] for part, rows in shown.items()}
    code, answers = dict(pairs["eval.jsonl"]), pairs[name]
    return [
        sum(answer == code[letter] for shown_letter, answer in answers if shown_letter == letter)
        / sum(shown_letter == letter for shown_letter, _ in answers)
        for letter in sorted(code)
    ]


def test_an_outcome_is_read_from_the_metrics_of_its_run(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    write_rows(
        metrics,
        [
            {"step": 0, "eval/reward": 0.2},
            {"step": 1, "reward": 0.5, "clip_fraction": 0.1, "eval/reward": None},
            {"step": 2, "reward": 0.75, "clip_fraction": 0.2, "eval/reward": 0.9},
        ],
    )
    outcome = trial.read(Trial("grpo", lambda place: {}, Bar("eval/reward", least=0.5)), metrics)
    assert outcome == {"steps": 2, "curve": [[0, 0.2], [2, 0.9]], "reward": [[1, 0.5], [2, 0.75]], "clipped": 0.15}


def test_a_trial_done_again_replaces_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    book.enter([replace(OUTCOME, seed=1), OUTCOME], path)
    again = replace(OUTCOME, curve=[[0, 0.2], [4, 0.5]])
    assert book.enter([again], path) == book.load(path) == [again, replace(OUTCOME, seed=1)]


def test_a_table_has_every_seed_their_mean_and_what_was_missed() -> None:
    of = replace(task(Bar("m", least=0.8)), trials=(Trial("grpo", lambda place: {}, Bar("m", least=0.8)),))
    outcomes = [OUTCOME, replace(OUTCOME, seed=1, curve=[[0, 0.4], [4, 0.7]])]
    line = page.table(of, outcomes).splitlines()[2]
    assert line == "| grpo | 4 | 30.0% ± 14.1 | 90.0% | 70.0% (missed) | 80.0% ± 14.1 | ≥ 80% | 25.0% | 30 | 20 |"


def test_the_page_says_how_much_the_seed_decides_and_who_missed() -> None:
    bar = Bar("m", least=0.8)
    of = replace(task(bar), trials=(Trial("grpo", lambda place: {}, bar), Trial("rloo", lambda place: {}, bar)))
    outcomes = [
        replace(OUTCOME, trial=name, seed=seed, curve=[[0, 0.0], [4, after]])
        for name, values in (("grpo", (0.9, 0.9)), ("rloo", (0.7, 0.9)))
        for seed, after in enumerate(values)
    ]
    text = page.text(outcomes, {"spelling": of})
    assert (
        "Missed: spelling/rloo with seed 0. The seed decides most in spelling/rloo (± 14.1 points over 2 seeds)" in text
    )
    assert "least in spelling/grpo (± 0.0)" in text


def test_the_page_names_what_was_not_run_and_what_has_too_few_seeds() -> None:
    of = task(Bar("m", least=0.8), Bar("m", least=0.8), Bar("m", least=0.8))
    outcomes = [replace(OUTCOME, trial="trial-0"), *(replace(OUTCOME, trial="trial-2", seed=seed) for seed in range(3))]
    text = page.text(outcomes, {"spelling": of})
    assert "Not run yet: spelling/trial-1. Fewer than 3 seeds: spelling/trial-0 (1).\n" in text


def test_a_mean_curve_has_the_steps_that_every_seed_has() -> None:
    assert picture.mean_curve([[[0, 0.0], [5, 1.0]], [[0, 0.5], [4, 0.7], [5, 0.5]]]) == ([0, 5], [0.25, 0.75])


def pretend(monkeypatch: pytest.MonkeyPatch, ran: list[tuple[str, int]]) -> None:
    """No trainer is started; `ran` keeps (trial, seed). A trial called `broken` fails."""

    def pretended(of: Trial, place: Place, watch: trial.Watch) -> Outcome:
        ran.append((of.name, place.seed))
        if of.name == "broken":
            raise TrialFailed(f"{place.task}/{of.name}: ended with 1")
        return replace(OUTCOME, trial=of.name, seed=place.seed)

    monkeypatch.setattr(trial, "_run", pretended)


def test_a_missed_bar_ends_with_1_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(run.TASKS, "spelling", task(Bar("m", least=0.8), Bar("m", least=0.99)))
    pretend(monkeypatch, [])
    assert run.main(["spelling", "--seeds", "3", "--out", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "[1/2] spelling/trial-0, seed 3: m 0.200 -> 0.900 in 4 steps, 20 s, 30 CPU-s: reached its bar" in output.out
    assert f"FAILED: 1 of 2 trials reached their bar, 1 missed it; jobs, logs and runs: {tmp_path}\n" in output.out
    assert "[2/2] spelling/trial-1, seed 3: begins" in output.err
    assert "missed its bar: at least 0.99" in output.err.splitlines()[-1]


def test_a_trial_whose_need_failed_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = task(*[Bar("m", least=0.8)] * 3).trials
    trials = (
        replace(second, needs=("spelling/broken",)),
        replace(third, needs=("spelling/broken",)),
        replace(first, name="broken"),
    )
    monkeypatch.setitem(run.TASKS, "spelling", replace(task(), trials=trials))
    ran: list[tuple[str, int]] = []
    pretend(monkeypatch, ran)
    assert run.main(["spelling", "--seeds", "0", "--out", str(tmp_path)]) == 1
    assert ran == [("broken", 0)]
    output = capsys.readouterr()
    assert "spelling/trial-2, seed 0: not run, as spelling/broken failed" in output.err
    assert "FAILED: 0 of 3 trials reached their bar, 3 failed" in output.out


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(run.TASKS, "spelling", task(Bar("m", least=0.8)))

    def stopped(*_: object) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "_run", stopped)
    assert run.main(["spelling", "--seeds", "0", "--out", str(tmp_path)]) == 130
    assert "interrupted after 0 of 1 trials\nhint: the same command keeps" in capsys.readouterr().err


def test_an_interrupted_trial_takes_its_trainer_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text(f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\nexec sleep 600\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(trial.sys, "executable", str(sleeper))

    def impatient(of: Trial, place: Place) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial.perform(task(), task(Bar("m", least=0.8)).trials[0], 0, tmp_path, impatient)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        (["cooking"], "'arithmetic', 'sorting'"),
        (["sorting", "--seeds", "3,4"], "whole numbers from 0, with spaces between: 3 4 7"),
        (["sorting", "--seeds", "1.5"], "whole numbers from 0"),
        (["preferences", "--trials", "cispo"], "preferences has no trial 'cispo' (choose from dpo"),
    ],
    ids=" ".join,
)
def test_wrong_words_are_refused_with_what_is_accepted(
    words: list[str], accepted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(words)
    assert accepted.replace("'", "") in capsys.readouterr().err.replace("'", "")


def test_what_is_finished_is_not_run_again_until_its_job_or_a_need_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, int]] = []
    pretend(monkeypatch, ran)
    first, second = task(Bar("m", least=0.8), Bar("m", least=0.8)).trials
    second = replace(second, needs=("spelling/trial-0",))
    of = replace(task(), trials=(first, second))

    def performed(*trials: Trial) -> list[tuple[str, int]]:
        ran.clear()
        for trial_ in trials:
            trial.perform(of, trial_, 0, tmp_path)
        return list(ran)

    both = [("trial-0", 0), ("trial-1", 0)]
    assert performed(first, second) == both
    assert performed(first, second) == []
    longer = replace(first, spec=lambda place: {"training": {"steps": 9}})
    assert performed(longer, second) == both
    assert performed(longer, replace(second, spec=lambda place: {"training": {"steps": 9}})) == both[1:]


def test_what_is_needed_comes_first_and_once() -> None:
    first, second, third = task(*[Bar("m", least=0.8)] * 3).trials
    needing = [replace(trial_, needs=("spelling/trial-0",)) for trial_ in (second, third)]
    tasks = {"spelling": replace(task(), trials=(*needing, first))}
    wanted = [("spelling", name) for name in ("trial-2", "trial-1")]
    assert [name for _, name in in_order(tasks, wanted)] == ["trial-0", "trial-2", "trial-1"]


def test_a_job_that_fails_shows_the_end_of_its_log(tmp_path: Path) -> None:
    wrong = Trial("wrong", lambda place: {"training": {"steps": -1}}, Bar("m", least=0.8))
    with pytest.raises(TrialFailed, match=r"spelling/wrong, seed 0: ended with \d+:[\s\S]*steps"):
        trial.perform(task(), wrong, 0, tmp_path)


def test_the_page_is_that_of_the_book() -> None:
    assert page.PAGE.read_text() == page.text(book.load(), TASKS), "hint: python benchmarks/learning/run.py --page"


def test_the_book_holds_no_trial_that_is_gone() -> None:
    done = {(outcome.task, outcome.trial) for outcome in book.load()}
    assert done <= {(of.name, trial_.name) for of, trial_ in TRIALS}


def test_pictures_are_there_and_small() -> None:
    for name in {outcome.task for outcome in book.load()}:
        assert 1_000 < (page.DOCS / page.PICTURES / f"{name}.png").stat().st_size < 60_000
