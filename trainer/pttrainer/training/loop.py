"""The training loop: the same for every algorithm.

    take the lease of the run directory → assemble model and data → restore or initialise → step, step, step → export

It knows steps, checkpoints, evaluations and signals; what a batch is and what its loss is, the algorithm knows
(`algorithms.algorithm`). The metrics of a step are fetched while the next step computes, so the devices never wait for
the log; they are flushed before every checkpoint, so the log never lacks a step that a checkpoint holds.
"""

import time
from dataclasses import dataclass, field

from jax import Array

from ptapi import run_directory
from ptapi.spec import PostTrainJob
from pttrainer.batch import Batch
from pttrainer.checkpoint.model_export import (
    BaseModelRef,
    ExportWriter,
    TokenizerFiles,
    export,
    export_adapters,
    export_critic,
)
from pttrainer.data.loss_weights import perplexity
from pttrainer.errors import Preempted
from pttrainer.models.shapes.structure import Remat
from pttrainer.runtime.distributed import processes, sharding
from pttrainer.runtime.io import storage
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting import spans
from pttrainer.runtime.reporting.step_faults import Fault
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.training.profiler import Trace
from pttrainer.training.run_directory import lease, model_card
from pttrainer.training.session import Session
from pttrainer.training.setup import build_session
from pttrainer.training.throughput import Work


def train(job: PostTrainJob, place: Place, attempt: Attempt, stop: StopRequest, remat: Remat | None = None) -> None:
    """Run the job to its last step and export the model. remat: what `training.remat: auto` is on these chips.

    Raises Preempted when asked to stop, and the most common fault of its steps when too few of them could learn.
    """
    lease.take(place, job, attempt, stop)
    session = build_session(job, place, remat)
    attempt.step = session.first_step
    is_failed = True
    try:
        _steps(session, attempt, stop)
        session.check_learning()
        _export(session)
        is_failed = False
    finally:
        session.close(is_failed=is_failed)


@dataclass
class _Log:
    """The step whose metrics are still on the devices, and the clock."""

    session: Session
    attempt: Attempt
    step: int = 0
    metrics: dict[str, Array] | None = None
    facts: dict[str, float] = field(default_factory=dict)
    batch: Batch | None = None
    fault: Fault | None = None
    missing: Fault | None = None
    work: Work | None = None
    started: float = field(default_factory=time.monotonic)
    update_ns: int = 0

    def begin(self, step: int, metrics: dict[str, Array], facts: dict[str, float], batch: Batch) -> None:
        """Keep a dispatched step until `flush`."""
        self.step, self.metrics, self.facts, self.batch = step, metrics, facts, batch
        self.fault, self.missing = self.session.fault, self.session.missing
        self.work = self.session.monitors.meter.of_batch(batch)

    def flush(self) -> None:
        """Wait for the kept step and log it."""
        if self.metrics is None or self.batch is None or self.work is None:
            return
        values = {name: float(value) for name, value in self.metrics.items()}
        spans.add("update", self.step, self.update_ns)
        if run_directory.NLL in values:
            values[run_directory.PERPLEXITY] = perplexity(values[run_directory.NLL])
        now = time.monotonic()
        seconds, self.started, self.metrics = now - self.started, now, None
        values |= {**self.session.monitors.meter.facts(self.work, seconds), **self.facts}
        self.attempt.step = self.step
        self.session.watch(self.missing)
        self.session.log(self.step, values, seconds, self.batch, self.fault)

    def leave_out(self, seconds: float) -> None:
        """Exclude seconds that were just spent on something else."""
        self.started += seconds

    def restart_clock(self) -> None:
        """Restart the clock, so that time spent on other things does not count for the next step."""
        self.started = time.monotonic()


def _steps(session: Session, attempt: Attempt, stop: StopRequest) -> None:
    total, algorithm = session.algorithm.total_steps, session.algorithm
    session.reporter.start(session.first_step, total)
    trace = Trace(session.job.spec.training.profile, session.run.place, total, leader=session.run.leader)
    if session.first_step == 0 and session.job.spec.evaluation.at_start:
        facts = _evaluate(session, 0)
        if facts:
            session.write_metrics(0, facts)
    session.reporter.stage("training")
    if session.open_breaker(session.first_step) is not None:
        session.record.recent.clear()  # a restart looks anew
    log = _Log(session, attempt)
    for step in range(session.first_step, total):
        if processes.any_process(stop.signal is not None):
            log.flush()
            _stop(session, step, stop.signal or "signal on another process")
        if algorithm.needs_params:
            log.flush()
            _end_if_broken(session, step)
        spans.at_step(step + 1)
        spent = "rollout" if algorithm.needs_params else "data_wait"
        with session.monitors.meter.spending(spent), spans.span(spent):
            batch, batch_facts = algorithm.next_batch(step, session.params)
        if trace.is_edge(step):
            log.flush()
            trace.before(step)
        placed = session.place_batch(batch)
        compiled, compile_s = session.compiled(placed)
        log.leave_out(compile_s)
        update_ns = spans.now_ns()
        session.state, metrics = compiled(session.state, placed, *session.programs.constants)
        if step == session.first_step:  # all that it needs is compiled
            session.expect_answers()
        log.flush()
        done = step + 1
        log.begin(done, metrics, dict(batch_facts), batch)
        log.update_ns = update_ns
        evaluated = _evaluate(session, done) if _is_due(session, done, total) else {}
        log.facts |= evaluated
        if session.storage.policy.is_due(done, total, evaluated):
            log.flush()
            _save(session, done)
            log.restart_clock()
    log.flush()
    trace.before(total)


def _is_due(session: Session, done: int, total: int) -> bool:
    evaluation = session.job.spec.evaluation
    every = evaluation.every_steps
    return (every > 0 and done % every == 0 and done != total) or (done == total and evaluation.at_end)


def _evaluate(session: Session, done: int) -> dict[str, float]:
    session.reporter.stage("evaluating")
    with spans.span("evaluate"):
        facts = dict(session.algorithm.evaluate(session.with_heads(session.evaluated_params)))
    session.reporter.evaluated(done, facts)
    session.reporter.stage("training")
    return facts


def _save(session: Session, done: int) -> None:
    session.reporter.stage("saving")
    session.storage.policy.began()
    with spans.span("checkpoint"):
        session.storage.checkpoints.save(done, session.state, session.algorithm.state(), session.record.to_json())
    session.reporter.stage("training")


def _stop(session: Session, done: int, reason: str) -> None:
    """Save a checkpoint and end the run.

    Nothing is saved before the attempt's first step, nor after a step that already has its checkpoint.
    """
    if done > session.first_step and done not in session.storage.checkpoints.steps():
        _save(session, done)
    session.wait_for_checkpoint()
    saved = "checkpoint saved" if done else "nothing to save yet"
    raise Preempted(f"stopped by {reason} at step {done}: {saved}, run again to continue")


def _end_if_broken(session: Session, done: int) -> None:
    """End a run of which too many samples have no reward, at a checkpoint: what it learned from the others is good."""
    failure = session.open_breaker(done)
    if failure is None:
        return
    if done > session.first_step and done not in session.storage.checkpoints.steps():
        _save(session, done)
    session.end(failure)


def _export(session: Session) -> None:
    session.wait_for_checkpoint()
    session.reporter.stage("exporting")
    session.take_best()
    kind = session.job.spec.export.format
    if kind != "none":
        target = storage.below(session.run.place, run_directory.EXPORT)
        tokenizer_files = TokenizerFiles(session.loaded.parts.tokenizer, session.loaded.parts.chat.source)
        writer = ExportWriter(sharding.fetch, session.run.leader)
        if kind == "peft":
            base = BaseModelRef(session.job.spec.model.uri, session.loaded.parts.commit)
            export_adapters(target, session.model, base, session.evaluated_params, tokenizer_files, writer)
        else:
            export(
                target,
                session.model,
                session.model.join_params(session.loaded.frozen, session.evaluated_params),
                tokenizer_files,
                writer,
                session.score_head,
            )
        if session.critic is not None and session.state.critic is not None and session.score_head is None:
            critic_target = storage.below(target, run_directory.CRITIC)
            export_critic(critic_target, session.critic, session.state.critic.params, session.loaded.frozen, writer)
        if session.run.leader:
            model_card.write(session.run.place, target, session.job, session.exported_step)
        session.reporter.note(f"exported to {target.uri}")
    session.reporter.stage("done")
