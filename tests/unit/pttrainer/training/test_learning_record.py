"""Which steps could learn, what becomes of a run whose steps could not, and how that survives in a checkpoint."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ptapi.failures import ExitCode
from pttrainer.batch import Batch
from pttrainer.data.prompts import Question
from pttrainer.rewards import Verdict
from pttrainer.rollout.groups import EpisodeInfo, Group, Sample
from pttrainer.rollout.rollout_data import Rollout, all_missing, missing_rewards
from pttrainer.runtime.reporting import step_faults
from pttrainer.runtime.reporting.step_faults import Fault, Kind
from pttrainer.train_step import nonfinite
from pttrainer.training import learning_record
from pttrainer.training.learning_record import LearningRecord

KILLED = Fault(Kind.REWARD, "reward own", "its process died (SIGKILL)", 16, 16)
AWAY = Fault(Kind.SERVICE, "reward judge", "no connection", 16, 16)
FIRST, NOW = [1, 2], [1, 3]


def batch(weight: float = 1.0, advantages: Sequence[float] | None = None) -> Batch:
    one = np.zeros((1, 2), np.int32)
    weights = np.full((1, 2), weight, np.float32)
    return Batch(one, one, one, one, weights, weights, None if advantages is None else np.array([advantages]))


def counted(record: LearningRecord, what: Sequence[Any]) -> LearningRecord:
    """Of each step its fault, or its gradient's norm: NaN where it is skipped."""
    for one in what:
        given, norm = (one, 0.0) if isinstance(one, Fault) else (None, one)
        values = {"loss": 1.0, "grad_norm": norm, nonfinite.IN_A_ROW: float(np.isnan(norm))}
        record.count(record.steps + 1, values, batch(), given)
    return record


def verdict(record: LearningRecord, least: float = 0.5, now: Sequence[int] = NOW) -> learning_record.RunFailure | None:
    return learning_record.verdict(record, least, now)


@pytest.mark.parametrize(
    ("steps", "least", "is_well"),
    [
        ([0.1, 0.1, KILLED, KILLED], 0.5, True),
        ([0.1, KILLED, 0.1, KILLED, KILLED], 0.5, False),
        ([0.1, *[KILLED] * 99], 0.0, True),
        ([KILLED] * 3, 0.0, False),
        ([0.0, KILLED, KILLED], 0.0, False),  # nothing learned, and rewards that failed are why
        ([0.1, 0.1, KILLED], 1.0, False),
        ([0.1, 0.1], 1.0, True),
        ([np.nan] * 3, 0.5, False),
        ([0.0] * 9 + [0.1], 0.5, True),  # mastered
        ([0.0] * 3, 0.5, False),
        ([], 0.5, True),
    ],
)
def test_a_run_is_well_if_enough_of_its_steps_could_learn_and_one_did(
    steps: list[Any], least: float, is_well: bool
) -> None:
    assert (verdict(counted(LearningRecord(FIRST), steps), least) is None) == is_well


def test_rewards_that_are_all_equal_are_nobodys_fault_and_so_is_a_run_of_nothing_else() -> None:
    record = LearningRecord(FIRST)
    for step in range(1, 4):
        values = {"loss": 0.0, "grad_norm": 0.0, nonfinite.IN_A_ROW: 0.0}
        assert record.count(step, values, batch(advantages=[0.0, 0.0]), None) is None
    assert (record.level, record.learned, record.failed) == (3, 0, 0)
    assert verdict(record, 1.0, FIRST) is None


def test_weights_that_no_step_changed_fail_a_run_whose_steps_had_gradients() -> None:
    ending = verdict(counted(LearningRecord(FIRST), [0.1, 0.1]), now=FIRST)
    assert ending.kind == Kind.UNCHANGED
    assert "no weight changed: 2 of 2 steps had a gradient" in ending.message


def test_a_batch_without_a_token_to_train_on_is_a_fault_of_the_data() -> None:
    fault = LearningRecord().count(1, {"loss": 0.0, "grad_norm": 0.0, nonfinite.IN_A_ROW: 0.0}, batch(weight=0.0), None)
    assert step_faults.ENDS[fault.kind].error.exit_code == ExitCode.DATA_ERROR


def test_the_most_common_fault_gives_class_and_words() -> None:
    ending = verdict(counted(LearningRecord(FIRST), [0.1, KILLED, AWAY, KILLED, np.nan]))
    error = ending.error("file:///runs/a/checkpoints/1")
    assert error.exit_code == ExitCode.USER_CODE
    assert str(error).startswith(
        "spec.training.minLearningShare: 0.5: 4 of 5 steps could not learn; 2 of them for this reason: reward own: "
        "32 of 32 samples have no reward, the last: its process died (SIGKILL); last good checkpoint: "
        "file:///runs/a/checkpoints/1; nothing is exported; hint: call the function"
    )


def test_steps_in_a_row_end_the_run_for_the_fault_of_the_row() -> None:
    record = counted(LearningRecord(FIRST), [KILLED, KILLED, KILLED, 0.1, AWAY, np.nan])
    assert learning_record.stop(record, 6, 3) is None
    ending = learning_record.stop(counted(record, [AWAY]), 7, 3)
    assert ending.error("x").exit_code == ExitCode.SERVICE_LOST
    assert ending.message.startswith(
        "spec.training.maxFailedSteps: 3: 3 steps in a row could not learn, the last of them"
    )
    assert "2 of them for this reason: reward judge: 32 of 32 samples have no reward" in ending.message


def test_a_record_in_a_checkpoint_is_the_same_and_an_older_checkpoint_begins_a_new_one() -> None:
    record = counted(LearningRecord(FIRST), [0.1, KILLED, 0.0, np.nan, AWAY])
    assert learning_record.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert learning_record.from_json({}) == LearningRecord()


def rollout(rewards_PG: Sequence[Sequence[float]], error: str = "", is_lost: bool = False) -> Rollout:
    episode = EpisodeInfo([1], [True], [], 1, 0, 0, error, None, is_lost) if error else None
    question = Question([1], "q", {})
    groups = [
        Group(question, [Sample([1], np.zeros(1), True, "", {"own": r}, r, episode) for r in row]) for row in rewards_PG
    ]
    return Rollout(0, groups, failures={"own": Verdict(None, "late", stopped=True, kind=Kind.SERVICE)})


NONE = float("nan")


@pytest.mark.parametrize(
    ("rewards", "of_groups", "of_samples"),
    [
        ([[NONE, NONE], [NONE, NONE]], True, True),
        ([[1.0, NONE], [NONE, 0.0]], True, False),  # nobody to be compared with
        ([[1.0, 1.0], [NONE, NONE]], False, False),
    ],
)
def test_a_group_needs_two_samples_with_a_reward_and_ppo_one(
    rewards: list[list[float]], of_groups: bool, of_samples: bool
) -> None:
    scored = rollout(rewards)
    assert (missing_rewards(scored, 2) is not None) == of_groups
    assert (missing_rewards(scored, 1) is not None) == of_samples


def test_the_fault_is_that_of_the_reward_or_of_the_environment_that_failed() -> None:
    assert missing_rewards(rollout([[NONE, NONE]]), 2) == Fault(Kind.SERVICE, "reward own", "late", 2, 2)
    lost = missing_rewards(rollout([[NONE, NONE]], "no world"), 2)
    assert lost == Fault(Kind.ENVIRONMENT, "environment", "no world", 2, 2)
    away = missing_rewards(rollout([[NONE, NONE]], "no connection", is_lost=True), 2)
    assert away == Fault(Kind.SERVICE, "environment", "no connection", 2, 2)


def test_samples_without_a_reward_are_counted_beside_those_that_others_learn_from() -> None:
    assert all_missing(rollout([[1.0, 1.0], [NONE, 0.0]])) == Fault(Kind.SERVICE, "reward own", "late", 1, 4)
    assert all_missing(rollout([[1.0, 1.0]])).missing == 0


def watched(missing: Sequence[Fault], samples: int = 32) -> LearningRecord:
    record = LearningRecord(FIRST)
    for fault in missing:
        record.watch(fault, samples)
    return record


def of(missing: int, fault: Fault = AWAY) -> Fault:
    return fault._replace(missing=missing, of=16)


@pytest.mark.parametrize(
    ("missing", "is_open"),
    [
        ([16], False),  # too few samples to judge by
        ([16, 16], True),
        ([16, 0], False),  # exactly half
        ([16, 1], True),
        ([16, 16, 0, 0], False),  # what is long ago is forgotten
        ([0, 0, 0, 16, 9], True),
        ([0, 0], False),
    ],
)
def test_the_breaker_opens_where_too_many_of_the_last_samples_have_no_reward(missing: list[int], is_open: bool) -> None:
    assert (learning_record.broken(watched([of(n) for n in missing]), 9, 0.5, 32) is not None) == is_open


def test_a_share_of_one_never_opens_the_breaker() -> None:
    assert learning_record.broken(watched([of(16)] * 4), 4, 1.0, 32) is None


def test_what_failed_most_gives_the_breaker_its_class_and_words() -> None:
    record = watched([of(9, KILLED), of(16)])
    ending = learning_record.broken(record, 7, 0.5, 32)
    error = ending.error("file:///runs/a/checkpoints/7")
    assert error.exit_code == ExitCode.SERVICE_LOST
    assert str(error).startswith(
        "spec.training.circuitBreaker.maxMissing: 0.5: 25 of the last 32 samples have no reward at step 7, 16 "
        "of them of reward judge, the last: no connection; last good checkpoint: file:///runs/a/checkpoints/7; "
        "nothing is exported"
    )
    assert learning_record.from_json(json.loads(json.dumps(record.to_json()))) == record
