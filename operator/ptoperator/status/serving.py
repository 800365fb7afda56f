"""Whether a job's model is served: decided once, when the job succeeds, and written with that. Pure.

The condition Served is the decision's record: the operator makes the objects of a job whose condition says that its
server starts, and never of one whose model did not reach the bar.
"""

from ptapi.conditions import ConditionType, Reason
from ptapi.errors import SpecError
from ptapi.run_directory import Progress
from ptapi.spec import PostTrainJobSpec
from ptapi.spec.serve import ServingBar
from ptoperator.render.layout import Layout
from ptoperator.render.serving import serving_objects
from ptoperator.render.serving.server import server_of
from ptoperator.status.builder import ConditionUpdate, ConditionUpdates
from ptoperator.status.progress import number


def decision(layout: Layout, progress: Progress | None) -> ConditionUpdates:
    """Return the condition Served of a job that has just succeeded; none for one that asks for no server."""
    if layout.job.spec.serve is None:
        return {}
    return {ConditionType.SERVED: _decided(layout, progress)}


def _decided(layout: Layout, progress: Progress | None) -> ConditionUpdate:
    if not layout.settings.model_servers:
        message = "the operator may not start servers; hint: servers.enabled=true in its chart, or `ptctl serve`"
        return ConditionUpdate(False, Reason.SERVERS_OFF, message)
    try:
        serving_objects(server_of(layout))
    except SpecError as error:
        return ConditionUpdate(False, Reason.INVALID_SPEC, str(error))
    bar = layout.job.spec.serve.bar if layout.job.spec.serve else None
    why = "" if bar is None else _below(bar, layout.job.spec, progress)
    if why:
        return ConditionUpdate(False, Reason.BAR_NOT_MET, why)
    return ConditionUpdate(False, Reason.SERVER_STARTING, "the server is about to be made")


def _below(bar: ServingBar, spec: PostTrainJobSpec, progress: Progress | None) -> str:
    """Return why the bar is not met; empty if it is."""
    value = _measured(bar.metric, spec, progress)
    wanted = f"at least {number(bar.at_least)}" if bar.at_least is not None else f"at most {number(bar.at_most or 0.0)}"
    if value is None:
        there = ", ".join(sorted(name for name in (progress.metrics if progress else {}) if name.startswith("eval/")))
        return f"serve.bar wants {bar.metric} of {wanted}, and the run measured {there or 'nothing on held-out data'}"
    is_met = value >= bar.at_least if bar.at_least is not None else value <= (bar.at_most or 0.0)
    return "" if is_met else f"{bar.metric} is {number(value)}; serve.bar: {wanted}"


def _measured(metric: str, spec: PostTrainJobSpec, progress: Progress | None) -> float | None:
    """Return the metric of the weights that are exported: after the last step, or of the best evaluation."""
    if progress is None:
        return None
    best = spec.checkpoint.best
    if spec.export.checkpoint == "best" and best is not None and best.metric == metric and progress.best is not None:
        return progress.best.value
    return progress.metrics.get(metric)
