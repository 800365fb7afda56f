"""Account for time and cost: sums that survive an operator that is away for a while.

Time since the last update goes to what the job did then: waiting for quota, waiting for nodes, or holding nodes. The
trainer reports how the held time was spent (compiling, training, restoring). Money is the product of those sums and the
current price table.
"""

from ptapi.conditions import ConditionType, Phase
from ptapi.run_directory import Progress
from ptapi.status import CostStatus, PostTrainJobStatus, TimeStatus
from ptkube import timestamps
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.settings import prices

_WAITING = (Phase.PENDING, Phase.PREFLIGHT, Phase.PROVISIONING)


def account_time(state: Observed, layout: Layout | None) -> dict[str, object]:
    """Return the updates of `time`, `cost` and `accounted_until`."""
    old = state.status
    if old.accounted_until is None:
        return {"accounted_until": timestamps.to_text(state.now)}
    delta = round(timestamps.seconds_since(old.accounted_until, state.now) or 0.0)
    sums = {"queueing": old.time.queueing, "provisioning": old.time.provisioning, "held": old.time.held}
    kind = _kind(old)
    if kind:
        sums[kind] += delta
    held = _allocated_seconds(state, delta if kind == "held" else 0)
    time = TimeStatus(**sums, **_by_trainer(state.run.progress, old), goodput="")
    time = time.model_copy(update={"goodput": _goodput(time)})
    return {
        "time": time,
        "cost": _cost(held, time, layout) or old.cost,
        "accounted_until": timestamps.to_text(state.now),
    }


def _kind(old: PostTrainJobStatus) -> str:
    if old.phase is Phase.QUEUED:
        return "queueing"
    if old.holds(ConditionType.CAPACITY_READY) and not old.phase.is_terminal and old.phase is not Phase.SUSPENDED:
        return "held"
    return "provisioning" if old.phase in _WAITING or old.phase is Phase.RESTARTING else ""


def _by_trainer(progress: Progress | None, old: PostTrainJobStatus) -> dict[str, int]:
    if progress is None:
        return old.time.model_dump(include={"compiling", "training", "restoring", "repeated", "fewer_slices"})
    split = progress.time
    return {
        "compiling": round(split.compiling),
        "training": round(split.training),
        "restoring": round(split.loading + split.restoring),
        "repeated": round(split.repeated),
        "fewer_slices": round(split.fewer_slices),
    }


def _goodput(time: TimeStatus) -> str:
    return f"{min(100, round(100 * time.training / time.held))}%" if time.held and time.training else ""


def _allocated_seconds(state: Observed, seconds: int) -> dict[str, int]:
    """Return the held seconds by option, with the newest ones."""
    held = dict(state.status.cost.held)
    if seconds:
        option = state.capacity_option
        held[option] = held.get(option, 0) + seconds
    return held


def _cost(held: dict[str, int], time: TimeStatus, layout: Layout | None) -> CostStatus | None:
    if layout is None or not layout.held_chips:
        return None
    chips = sum(layout.held_chips.values())
    amount = prices.parse(layout.settings.prices).amount(layout.held_chips, held)
    return CostStatus(chip_hours=f"{time.held * chips / 3600:.2f}", held=held, amount=amount)
