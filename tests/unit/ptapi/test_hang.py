"""How long a run may be silent."""

from typing import get_args

from ptapi.hang_timeout import limit_s
from ptapi.run_directory import Stage


def test_a_step_may_take_ten_minutes_or_five_typical_ones_or_what_the_job_says() -> None:
    assert limit_s("training", 2.0, None) == 600.0
    assert limit_s("training", 300.0, None) == 1500.0
    assert limit_s("training", 300.0, 45) == 45


def test_other_stages_and_the_first_step_have_generous_limits_of_their_own() -> None:
    for stage in set(get_args(Stage)) - {"training", "done"}:
        assert limit_s(stage, 2.0, 45) >= 3600.0, stage
    assert limit_s("training", None, None) == limit_s("compiling", 2.0, None)
    assert limit_s("evaluating", 2.0, 9000) == 9000
    assert limit_s("done", 2.0, 1) == float("inf")
