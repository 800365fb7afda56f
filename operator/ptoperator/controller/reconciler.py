"""Reconcile one job once: observe, plan, apply, report. Every event, and the timer, ends here."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ptapi.status import PostTrainJobStatus
from ptkube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from ptkube.resources import EVENTS, JOBSETS, POSTTRAINJOBS, PROVISIONING_REQUESTS, Manifest, Resource
from ptoperator.capacity.cloud import Answer, CloudAction, CloudProvider
from ptoperator.controller.freshness import kinds_to_read
from ptoperator.kube import actions
from ptoperator.kube.actions import Action, Create
from ptoperator.kube.audited_client import KubeClient
from ptoperator.observe.cache import JobCache, Key
from ptoperator.observe.competing_jobs import with_competing_jobs, with_fresh_claims
from ptoperator.observe.observed_parts import Estimate
from ptoperator.observe.observer import observe, observe_progress
from ptoperator.observe.state import Observed
from ptoperator.observe.watch_caches import CachedReader, Copies
from ptoperator.plan.job_plan import plan, with_failed_write
from ptoperator.plan.step_result import Plan
from ptoperator.settings import Settings
from ptoperator.status import events

logger = logging.getLogger(__name__)

_SOON_S = 1.0
_KINDS = {
    JOBSETS: "JobSet must be installed in the cluster (https://jobset.sigs.k8s.io)",
    PROVISIONING_REQUESTS: "GKE serves autoscaling.x-k8s.io/v1 from 1.32.2-gke.1652000 on",
}
"""What to do where the API server does not know a kind."""


@dataclass(frozen=True)
class Reconciler:
    """Reconciles any job; holds no state of its own. now: the API server's time, with which all others are compared."""

    client: KubeClient
    copies: Copies
    cache: JobCache
    settings: Settings
    now: Callable[[], datetime]
    cloud: CloudProvider | None = None
    namespaces: Sequence[str] = ()
    on_report: Callable[[PostTrainJobStatus, PostTrainJobStatus], None] = lambda old, new: None
    estimate: Callable[[Observed], Estimate | None] = lambda state: None

    def reconcile(self, key: Key, *, has_event: bool = True) -> float | None:
        """Reconcile a job. Return the seconds until the next time, or None. Raises ApiError to be retried.

        has_event: an event of the job arrived since the last time, so observe everything.
        """
        due = self.cache.kinds_due(key, self.now(), self.settings.resync_seconds)
        try:
            return self._reconcile(key, has_event=has_event or bool(due), live=due)
        except ApiError:
            self.cache.note_outdated(key)
            raise

    def _reconcile(self, key: Key, *, has_event: bool, live: frozenset[Resource]) -> float | None:
        """live: the kinds that are read from the API server, not from local copies."""
        state = self._observe(key, has_event, live)
        if state is None:
            self.cache.forget(key)
            return None
        planned = plan(state, self.settings)
        if not has_event and _changes_more_than_numbers(planned):  # not on what was known some seconds ago
            return self._reconcile(key, has_event=True, live=live)
        if missing := kinds_to_read(state, planned) - live - self.cache.just_read(key, self.now()):
            return self._reconcile(key, has_event=True, live=live | missing)
        if planned.gives_turn:
            return self._give_turn(key, state)
        return self._carry_out(key, state, planned)

    def _give_turn(self, key: Key, state: Observed) -> float | None:
        """Give a job its turn if it is still the first when all turns are known; one job at a time."""
        with self.cache.admission_lock:
            try:
                reader, every_s = CachedReader(self.client, self.copies), self.settings.resync_seconds
                state = with_fresh_claims(reader, self.cache, state, self.namespaces, every_s)
                return self._carry_out(key, state, plan(state, self.settings))
            except Exception:  # it may have been written all the same
                self.cache.doubt_turns()
                raise

    def _carry_out(self, key: Key, state: Observed, planned: Plan) -> float | None:
        planned = self._apply(state, planned)
        state = self._report(state, planned.status)
        self.cache.remember(key, state if planned.progress_only else None)
        for action in planned.optional:
            self._apply_action(state, action)
        return planned.requeue_after

    def _observe(self, key: Key, has_event: bool, live: frozenset[Resource]) -> Observed | None:
        last, now = None if has_event else self.cache.last(key), self.now()
        reader = CachedReader(self.client, self.copies, live)
        if last is not None:
            state: Observed | None = observe_progress(reader, last, now, self.cloud)
        else:
            state = observe(reader, self.cache, key, self.settings, now, self.cloud)
        if state is None:
            return None
        self.cache.note_read(key, live if state.jobset else live - {JOBSETS}, now)
        if state.run.progress is not None:
            since = self.cache.first_observed(key, state.run.progress.updated, state.now)
            state = replace(state, run=replace(state.run, progress_since=since))
        state = replace(state, preflight=replace(state.preflight, estimate=self.estimate(state)))
        return with_competing_jobs(self.client, self.cache, state)

    def _apply(self, state: Observed, planned: Plan) -> Plan:
        """Carry out the actions. If the API server rejects a create, plan again with its message.

        Any other failed write is reported and raised, to be tried again after a pause.
        """
        answers: list[Answer] = []
        for action in planned.actions:
            if isinstance(action, CloudAction):
                assert self.cloud is not None
                answers.append(self.cloud.carry_out(action))
                continue
            try:
                self._apply_action(state, action)
            except Conflict:
                raise
            except ApiError as error:
                message = _rejection(action, error)
                if isinstance(action, Create) and isinstance(error, Invalid | Forbidden | NotFound):
                    return plan(replace(state, rejection=message), self.settings)
                self._report(state, with_failed_write(state, message))
                raise
        return self._replan(state, planned, answers) if answers else planned

    def _apply_action(self, state: Observed, action: Action) -> None:
        logger.info("%s/%s: %s", state.job.namespace, state.job.name, actions.describe(action))
        actions.apply(self.client, action)

    def _replan(self, state: Observed, planned: Plan, answers: list[Answer]) -> Plan:
        """Plan again with the cloud's results; more actions wait for the next reconcile."""
        assert state.cloud is not None
        again = plan(replace(state, cloud=state.cloud.after(answers)), self.settings)
        if again.actions:
            return replace(planned, status=None, requeue_after=_SOON_S)
        return again

    def _report(self, state: Observed, status: PostTrainJobStatus | None) -> Observed:
        """Write events, then status: if the status is lost, the retry writes the same events under the same names."""
        if status is None:
            return state
        for event in events.events_between(state.status, status):
            self._create_event(events.manifest(state, event))
        if status.phase is not state.status.phase:
            logger.info("%s/%s: %s", state.job.namespace, state.job.name, status.phase)
        written = self.client.replace_status(POSTTRAINJOBS, {**state.job.manifest, "status": _document(status)})
        self.on_report(state.status, status)
        self.cache.note_written(written, self.now())
        return replace(state, job=self.cache.note_job(self.copies.record(POSTTRAINJOBS, written)))

    def _create_event(self, event: Manifest) -> None:
        try:
            self.client.create(EVENTS, event)
        except AlreadyExists:
            return
        except ApiError as error:  # an event is a courtesy
            logger.debug("event %s: %s", event["reason"], error)


def _changes_more_than_numbers(planned: Plan) -> bool:
    """Return True if the plan changes more than numbers."""
    return (
        bool(planned.actions) or planned.gives_turn or (planned.status is not None and planned.status.phase.is_terminal)
    )


def _rejection(action: Action, error: ApiError) -> str:
    hint = _KINDS.get(action.resource, "") if isinstance(error, NotFound) and isinstance(action, Create) else ""
    return f"{actions.describe(action)}: {error.message}{f'; hint: {hint}' if hint else ''}"


def _document(status: PostTrainJobStatus) -> Manifest:
    """Return the status as it is stored: without empty fields, but always with the phase."""
    document = status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    return {"phase": str(status.phase), "observedGeneration": status.observed_generation, **document}
