"""How many optimizer steps a run has."""

import pytest

from ptapi.spec import Training
from pttrainer.train_step.optimizer.transformation import total_steps


@pytest.mark.parametrize(
    ("epochs", "rows", "at_once", "wanted"),
    [
        (None, 12, 4, 3),  # one epoch
        (None, 13, 4, 4),  # the last batch begins another
        (2.5, 12, 4, 8),
        (0.01, 12, 4, 1),  # never none
        (7, 29, 7, 29),  # in floats 7 * (29 / 7) is a little more than 29
        (0.1, 30, 3, 1),  # and 0.1 * 30 a little more than 3
    ],
)
def test_epochs_come_to_whole_batches(epochs: float | None, rows: int, at_once: int, wanted: int) -> None:
    training = Training(epochs=epochs)
    assert total_steps(training, rows, at_once) == wanted
    assert total_steps(training, rows, at_once, updates=4) == 4 * wanted


def test_steps_of_the_job_count_updates_and_no_rows() -> None:
    assert total_steps(Training(steps=5), 1000, 1, updates=4) == 5
