"""Time as the API server tells it, whatever this machine's clock says."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from ptkube import timestamps
from ptkube.server_clock import ServerClock

THERE = datetime(2031, 5, 1, 12, 0, 0, tzinfo=UTC)


class Network:
    """A server's time, and a monotonic clock beside it."""

    def __init__(self) -> None:
        self.seconds, self.skew_s = 5000.0, 0.0
        self.clock = ServerClock(lambda: self.seconds)

    @property
    def there(self) -> datetime:
        return THERE + timedelta(seconds=self.seconds - 5000.0 + self.skew_s)

    def ask(self, there_s: float = 0.0, back_s: float = 0.0) -> None:
        """Send a request that takes so long each way."""
        sent = self.seconds
        self.seconds += there_s
        date = format_datetime(self.there.replace(microsecond=0), usegmt=True)
        self.seconds += back_s
        self.clock.hear(date, sent)

    @property
    def error_s(self) -> float:
        return (self.clock.now() - self.there).total_seconds()


def test_before_the_first_answer_it_is_this_machines_time() -> None:
    assert abs((ServerClock().now() - timestamps.utc_now()).total_seconds()) < 5


def test_time_goes_on_between_answers_and_does_not_follow_this_machines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network()
    network.ask()
    network.seconds += 3600
    monkeypatch.setattr(timestamps, "utc_now", lambda: THERE - timedelta(days=1))
    assert abs(network.error_s) < 1


def test_answers_at_any_moment_of_a_second_and_slow_ones_leave_it_within_a_second() -> None:
    network = Network()
    for there_s, back_s in [(0.3, 0.0), (0.0, 0.9), (20.0, 0.1), (0.1, 20.0), (7.3, 8.4), (0.05, 0.05)] * 3:
        network.ask(there_s, back_s)
        assert abs(network.error_s) <= 1 + min(back_s, 1), (there_s, back_s)


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_a_server_whose_clock_is_set_is_followed_with_its_next_answer(step_s: float) -> None:
    network = Network()
    network.ask()
    network.skew_s = step_s
    network.ask(0.01, 0.01)
    assert abs(network.error_s) <= 1.1


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_an_answer_without_a_readable_date_changes_nothing(date: str | None) -> None:
    network = Network()
    network.ask()
    network.clock.hear(date, network.seconds)
    assert abs(network.error_s) < 1
