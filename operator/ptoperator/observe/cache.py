"""What the operator remembers between reconciles. All of it may be lost; no decision rests on it alone.

Why pods failed (a restarting JobSet deletes them within a moment), registries' errors, which job has which run
directory, and the last observation of each job, so that reading progress costs no API call. Safe to share between
threads.
"""

import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ptapi.conditions import ConditionType
from ptkube.objects import label
from ptkube.resources import EVENTS, POSTTRAINJOBS, Manifest, Resource
from ptkube.watch_cache import version_of
from ptoperator.capacity.waiting_line.fair_order import Claim, Standing, claim_of
from ptoperator.capacity.waiting_line.sorted_claims import Claims
from ptoperator.failures.node_failures import NodeFailureHint
from ptoperator.failures.pod_failures import PodFailure, pod_failure, pull_errors
from ptoperator.job import JobObject, read_job
from ptoperator.kube import labels
from ptoperator.monitoring.job_gauges import JobNumbers, numbers_of
from ptoperator.observe.state import Observed
from ptoperator.observe.watch_caches import WATCHED

Key = tuple[str, str]
"""Namespace and name of a PostTrainJob."""
_FAILURES_KEPT = 64
_STILL_FRESH = timedelta(seconds=1)
"""What was read from the API server, or written, so long ago need not be read again."""
_MAX_NODES_INSPECTED = 8
"""At a time: of a slice that went away as a whole, some nodes speak for all."""


@dataclass(frozen=True)
class _Entry:
    job: JobObject
    claim: Claim | None

    @property
    def age(self) -> tuple[str, str]:
        """Return what orders jobs by their creation."""
        return self.job.created, self.job.uid

    @property
    def is_refused(self) -> bool:
        """Return True if the job never ran, because its spec is invalid or its run directory is another job's."""
        validated = self.job.status.condition(ConditionType.VALIDATED)
        return validated is not None and validated.status == "False"


@dataclass
class JobCache:
    """Filled by the event handlers, read by reconcile."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _jobs: dict[Key, _Entry] = field(default_factory=dict)
    _uids: dict[str, Key] = field(default_factory=dict)
    _runs: dict[str, set[Key]] = field(default_factory=lambda: defaultdict(set))
    _failures: dict[str, deque[PodFailure]] = field(default_factory=dict)
    _pulls: dict[str, dict[str, str]] = field(default_factory=dict)
    _last: dict[Key, Observed] = field(default_factory=dict)
    _progress_times: dict[Key, tuple[str, datetime]] = field(default_factory=dict)
    _written: dict[Key, str] = field(default_factory=dict)
    _read: dict[Key, dict[Resource, datetime]] = field(default_factory=dict)
    _resynced: dict[Key, datetime] = field(default_factory=dict)
    _outdated: set[Key] = field(default_factory=set)
    _changed_queues: set[str] = field(default_factory=set)
    _claims: Claims = field(default_factory=Claims)
    _all_read: datetime | None = None
    admission_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a turn in a line is given: from reading everybody's place to writing it."""

    def note_job(self, manifest: Manifest) -> JobObject:
        """Read a job, and record it as it is now."""
        key = _key(manifest)
        known = self._jobs.get(key)
        if known is not None and known.job.manifest is manifest:
            return known.job
        job = read_job(manifest, known.job if known else None)
        claim = claim_of(job)
        with self._lock:
            newer = self._jobs.get(key)
            if newer is not None and newer.job.uid == job.uid and version_of(newer.job.manifest) > version_of(manifest):
                return newer.job  # another thread was faster
            self._forget_run(key)
            self._forget_failures(key, unless=job.uid)
            self._note_claim(key, claim)
            self._jobs[key] = _Entry(job, claim)
            self._uids[job.uid] = key
            if job.run_uri:
                self._runs[job.run_uri].add(key)
        return job

    def note_pod(self, pod: Manifest) -> None:
        """Record a pod's registry errors, and why it failed if it is the trainer's."""
        uid = label(pod, labels.JOB_UID)
        self._note_pull(uid, pull_errors(pod))
        failure = pod_failure(pod)
        if not uid or failure is None or labels.is_before_chips(pod):
            return
        with self._lock:
            if uid not in self._uids:  # a job that is gone, whose last pods end now
                return
            known = self._failures.setdefault(uid, deque(maxlen=_FAILURES_KEPT))
            same = [each for each in known if each.pod == failure.pod]
            if any(each.is_settled and each.exit_code == failure.exit_code for each in same):
                return  # its node was asked since, and may be whole again
            for older in same:
                known.remove(older)
            known.append(failure)

    def nodes_to_inspect(self, uid: str) -> tuple[str, ...]:
        """Return nodes that may explain pod failures of this job, those of the earliest failures first."""
        failures = sorted((each for each in self.failures(uid) if each.needs_node_check), key=lambda each: each.time)
        return tuple(dict.fromkeys(each.node for each in failures))[:_MAX_NODES_INSPECTED]

    def note_node(self, uid: str, node: str, hint: NodeFailureHint | None) -> None:
        """Record what a node says about the pods that failed on it."""
        with self._lock:
            known = self._failures.get(uid)
            if known is None:
                return
            explained = [
                each.with_node_hint(hint) if each.node == node and each.needs_node_check else each for each in known
            ]
            known.clear()
            known.extend(explained)

    def forget(self, key: Key) -> None:
        """Drop everything about a deleted job."""
        with self._lock:
            self._forget_run(key)
            self._forget_failures(key)
            self._note_claim(key, None)
            self._jobs.pop(key, None)
            self._last.pop(key, None)
            self._progress_times.pop(key, None)
            self._written.pop(key, None)
            self._read.pop(key, None)
            self._resynced.pop(key, None)
            self._outdated.discard(key)

    def failures(self, uid: str) -> tuple[PodFailure, ...]:
        """Return the pod failures of a job."""
        with self._lock:
            return tuple(self._failures.get(uid, ()))

    def pull_errors(self, uid: str) -> dict[str, str]:
        """Return the latest registry error by image."""
        with self._lock:
            return dict(self._pulls.get(uid, {}))

    def run_directory_owner(self, key: Key) -> str:
        """`namespace/name` of an older job with the same run directory, or nothing."""
        with self._lock:
            mine = self._jobs.get(key)
            if mine is None or not mine.job.run_uri:
                return ""
            others = [self._jobs[other] for other in self._runs[mine.job.run_uri] if other != key]
        older = [each for each in others if not each.is_refused and each.age < mine.age]
        return "/".join(min(older, key=lambda each: each.age).job.key) if older else ""

    def standing(self, job: JobObject) -> Standing | None:
        """Return where a job stands in line, as of the latest events; None if it waits in none."""
        claim = claim_of(job)
        if claim is None or not claim.is_waiting:
            return None
        with self._lock:
            return self._claims.standing(claim)

    def note_all_read(self, now: datetime) -> None:
        """Record that all jobs are read from the API server from now on."""
        self._all_read = now

    def doubt_turns(self) -> None:
        """Record that a turn may have been given that is not noted here: by another operator, or by a failed call."""
        self._all_read = None

    def are_turns_known(self, now: datetime, every_s: float) -> bool:
        """Return True if all jobs were read within so many seconds, and each turn since then is noted."""
        return self._all_read is not None and 0 <= (now - self._all_read).total_seconds() < every_s

    def next_in_queue(self) -> list[Key]:
        """Return jobs that may be next, because their queue changed since the last call."""
        with self._lock:
            changed, self._changed_queues = self._changed_queues, set()
            heads = filter(None, map(self._claims.first, sorted(changed)))
            return [self._uids[uid] for uid in heads]

    def known_jobs(self) -> list[Key]:
        """Return the keys of all jobs."""
        with self._lock:
            return list(self._jobs)

    def numbers(self) -> list[JobNumbers]:
        """Return all jobs' numbers for Prometheus."""
        with self._lock:
            jobs = [entry.job for entry in self._jobs.values()]
        return [numbers_of(job) for job in jobs]

    def last(self, key: Key) -> Observed | None:
        """Return the last observation of a job, or None."""
        with self._lock:
            return self._last.get(key)

    def remember(self, key: Key, state: Observed | None) -> None:
        """Keep an observation for the next reconcile; None makes that one observe everything.

        Without the cloud's snapshot, which is read again where it matters: a thousand jobs would keep as many of them,
        each with everybody's pools.
        """
        with self._lock:
            if state is None:
                self._last.pop(key, None)
            else:
                self._last[key] = replace(state, cloud=None)

    def first_observed(self, key: Key, updated: str, now: datetime) -> datetime:
        """Return when a run's progress document was first seen, by our own clock: that of its nodes may differ."""
        with self._lock:
            known = self._progress_times.get(key)
            if known is None or known[0] != updated:
                known = self._progress_times[key] = (updated, now)
            return known[1]

    def note_written(self, job: Manifest, now: datetime) -> None:
        """Record our own write, so that its event causes no reconcile."""
        with self._lock:
            self._written[_key(job)] = str(job["metadata"].get("resourceVersion") or "")
            self._read.setdefault(_key(job), {})[POSTTRAINJOBS] = now

    def note_read(self, key: Key, kinds: frozenset[Resource], now: datetime) -> None:
        """Record that what a job has of these kinds was read from the API server."""
        with self._lock:
            self._read.setdefault(key, {}).update(dict.fromkeys(kinds, now))

    def just_read(self, key: Key, now: datetime) -> frozenset[Resource]:
        """Return the kinds whose local copies are as good as what the API server would answer."""
        with self._lock:
            times = self._read.get(key, {})
            return frozenset(kind for kind, time in times.items() if timedelta(0) <= now - time <= _STILL_FRESH)

    def note_outdated(self, key: Key) -> None:
        """Record that a call failed, perhaps because of an old local copy, so that the next reconcile reads anew."""
        with self._lock:
            self._outdated.add(key)

    def kinds_due(self, key: Key, now: datetime, every_s: float) -> frozenset[Resource]:
        """Return the kinds to read from the API server whatever the plan: all after a failed call, and now and then."""
        with self._lock:
            age_s = (now - self._resynced.setdefault(key, now)).total_seconds()
            if 0 <= age_s < every_s and key not in self._outdated:
                return frozenset()
            self._outdated.discard(key)
            self._resynced[key] = now
            return frozenset((*WATCHED, EVENTS))

    def is_own_write(self, job: Manifest) -> bool:
        """Return True if the job is as we last wrote it."""
        version = str(job["metadata"].get("resourceVersion") or "")
        with self._lock:
            return bool(version) and self._written.get(_key(job)) == version

    def _note_claim(self, key: Key, claim: Claim | None) -> None:
        known = self._jobs.get(key)
        before = known.claim if known else None
        if before != claim:
            self._claims.replace(before, claim)
            self._changed_queues |= {each.queue for each in (before, claim) if each is not None}

    def _note_pull(self, uid: str | None, errors: dict[str, str]) -> None:
        with self._lock:
            if uid in self._uids and errors:
                self._pulls.setdefault(uid, {}).update(errors)

    def _forget_run(self, key: Key) -> None:
        entry = self._jobs.get(key)
        run = entry.job.run_uri if entry else ""
        if run:
            self._runs[run].discard(key)
            if not self._runs[run]:
                del self._runs[run]

    def _forget_failures(self, key: Key, unless: str = "") -> None:
        entry = self._jobs.get(key)
        if entry and entry.job.uid != unless:
            self._uids.pop(entry.job.uid, None)
            self._failures.pop(entry.job.uid, None)
            self._pulls.pop(entry.job.uid, None)


def _key(job: Manifest) -> Key:
    return str(job["metadata"]["namespace"]), str(job["metadata"]["name"])
