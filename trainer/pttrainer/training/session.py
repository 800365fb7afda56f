"""The parts of a run while it trains, and what is logged of each step; `setup` builds it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array

from ptapi import run_directory
from ptapi.spec import PostTrainJob
from pttrainer.algorithms.algorithm import Algorithm
from pttrainer.batch import Batch
from pttrainer.checkpoint.retention import CheckpointPolicy
from pttrainer.checkpoint.store import Checkpoints, path_of, read_params, weight_digests
from pttrainer.errors import StorageError
from pttrainer.models import Model, Params
from pttrainer.rollout.disaggregated.finished_rollouts import FinishedRollouts
from pttrainer.rollout.disaggregated.separate.remote_engine import RemoteEngine
from pttrainer.rollout.disaggregated.weight_sync import WeightSync
from pttrainer.runtime.distributed import processes, sharding
from pttrainer.runtime.io.storage_errors import storage_reason
from pttrainer.runtime.reporting import spans
from pttrainer.runtime.reporting.metrics_log import MetricsLog
from pttrainer.runtime.reporting.progress import Reporter
from pttrainer.runtime.reporting.step_faults import Fault, Kind
from pttrainer.runtime.reporting.watchdog import Watchdog
from pttrainer.train_step import nonfinite
from pttrainer.train_step.critic import Critic
from pttrainer.train_step.objective import HasCritic, HasFault
from pttrainer.train_step.optimizer import ema
from pttrainer.train_step.state import TrainState, all_params
from pttrainer.training import compiled_scores, learning_record
from pttrainer.training.claim_and_load import ClaimedRun, PlacedModel
from pttrainer.training.compiled_steps import StepPrograms
from pttrainer.training.learning_record import LearningRecord, RunFailure
from pttrainer.training.loss_spikes import LossSpikes
from pttrainer.training.rl_health import RlHealth
from pttrainer.training.run_directory import sample_log
from pttrainer.training.run_directory.sample_log import SampleLog
from pttrainer.training.throughput import Meter


@dataclass(frozen=True)
class RunStorage:
    """What a run writes into its directory.

    metrics: None on processes that do not write; rollouts: None where nothing keeps them.
    """

    checkpoints: Checkpoints
    policy: CheckpointPolicy
    samples: SampleLog
    metrics: MetricsLog | None
    rollouts: FinishedRollouts | None


@dataclass(frozen=True)
class Monitors:
    """What watches a run: hangs, throughput, and figures that leave their range.

    spikes: None for policy losses, which are about 0 and noisy; rl_health: None where nothing learns from rewards.
    """

    watchdog: Watchdog
    meter: Meter
    spikes: LossSpikes | None
    rl_health: RlHealth | None

    def warnings(self, step: int, values: Mapping[str, float]) -> list[str]:
        """Return what is unusual about the metrics of a step; none is empty."""
        spike = "" if self.spikes is None else self.spikes.report(step, values)
        return [spike] * bool(spike) + ([] if self.rl_health is None else self.rl_health.report(values))


@dataclass
class Session:
    """The parts of a run.

    `state` is replaced at every step, and the old one's memory is reused. transfer: moves weights to devices or pods
    that only sample. record: counts the steps that could learn, and those that could not.
    """

    run: ClaimedRun
    loaded: PlacedModel
    algorithm: Algorithm
    programs: StepPrograms
    storage: RunStorage
    monitors: Monitors
    transfer: WeightSync | RemoteEngine | None
    state: TrainState
    first_step: int
    record: LearningRecord

    @property
    def job(self) -> PostTrainJob:
        """Return the job that is run."""
        return self.run.job

    @property
    def reporter(self) -> Reporter:
        """Return what tells people and the operator of the run."""
        return self.run.reporter

    @property
    def model(self) -> Model:
        """Return the model that is trained."""
        return self.loaded.parts.model

    @property
    def params(self) -> Params:
        """Return all current weights, as `next_batch` reads them."""
        return self.with_heads(self.state.params)

    def with_heads(self, trained: Params) -> Params:
        """Return all weights, with these as the trained ones: the model's, a critic's, a reference's, a head's."""
        return all_params(self.model, self.loaded.frozen, self.state._replace(params=trained))

    @property
    def critic(self) -> Critic | None:
        """Return the critic, if the algorithm has one."""
        return self.algorithm.critic if isinstance(self.algorithm, HasCritic) else None

    @property
    def score_head(self) -> Any:
        """Return the head of a reward model [D], or None if the algorithm trains none."""
        if self.job.spec.algorithm.reward is None or self.state.critic is None:
            return None
        return self.state.critic.params["value"]["weight"]

    @property
    def evaluated_params(self) -> Params:
        """Return the trained weights to evaluate and export: their average, if the job keeps one."""
        return ema.averaged_params(self.state.optimizer, self.state.params)

    def place_batch(self, batch: Batch) -> Batch:
        """Return the batch on the mesh."""
        placed: Batch = sharding.put(self.programs.layout.mesh, batch)
        return placed

    def compiled(self, batch: Batch) -> tuple[Any, float]:
        """Return the train step for batches of this shape, and the seconds spent on compiling it now."""
        program = self.programs.of(batch)
        if program is not None:
            return program, 0.0
        self.reporter.stage("compiling")
        began = time.monotonic()
        with self.monitors.meter.spending("compile"), spans.span("compile"):
            program = self.programs.compile(self.state, batch)
        self.reporter.stage("training")
        return program, time.monotonic() - began

    def expect_answers(self) -> None:
        """Begin to compile what the coming evaluations sample with."""
        when, mesh = self.job.spec.evaluation, self.programs.layout.mesh
        if when.every_steps or when.at_end:
            compiled_scores.expect_answers(self.algorithm, jax.tree.map(_shape, self.params), mesh, is_first=False)

    @property
    def fault(self) -> Fault | None:
        """Return why nothing can be learned from the last batch, or None."""
        return self.algorithm.fault if isinstance(self.algorithm, HasFault) else None

    @property
    def missing(self) -> Fault | None:
        """Return how many samples of the last batch have no reward; None where there are no rewards."""
        return self.algorithm.missing if isinstance(self.algorithm, HasFault) else None

    def watch(self, missing: Fault | None) -> None:
        """Count a step's samples without a reward."""
        self.record.watch(missing, self.job.spec.training.circuit_breaker.samples)

    def open_breaker(self, step: int) -> RunFailure | None:
        """Return the failure of a run of which too many samples have no reward, or None."""
        breaker = self.job.spec.training.circuit_breaker
        return learning_record.broken(self.record, step, breaker.max_missing, breaker.samples)

    def log(
        self, step: int, values: Mapping[str, float], seconds: float, batch: Batch, batch_fault: Fault | None
    ) -> None:
        """Log a finished step: metrics files, progress, console line. batch_fault: the fault of its batch.

        Raises ConfigError if too many steps were skipped, and the last steps' fault if too many could not learn.
        """
        fault = self.record.count(step, values, batch, batch_fault)
        self.storage.policy.good = self.record.good
        self._warn(step, values, fault)
        logged = {name: value for name, value in values.items() if name != nonfinite.IN_A_ROW}
        logged |= {} if self.transfer is None else self.transfer.facts()
        logged[run_directory.GOODPUT] = self.reporter.goodput()
        logged[run_directory.FAILED_STEPS] = float(self.record.failed)
        self._report_checkpoint()
        self.reporter.finished_step(step, logged, seconds)
        self.write_metrics(step, logged)  # after the line: the first time it imports TensorBoard's writer
        self._check_finite(step, values, batch)
        self.end(learning_record.stop(self.record, step, self.job.spec.training.max_failed_steps))

    def check_learning(self) -> None:
        """Raise the run's failure if too few of its steps could learn, or none changed a weight."""
        now = weight_digests(self.state)
        self.end(learning_record.verdict(self.record, self.job.spec.training.min_learning_share, now))

    def _warn(self, step: int, values: Mapping[str, float], fault: Fault | None) -> None:
        """Log what is wrong with a step."""
        skipped = nonfinite.warning(step, values, self.job.spec.training.max_non_finite_steps)
        warning = skipped or self._fault_warning(step, fault)
        for line in filter(None, (warning, *self.monitors.warnings(step, values))):
            self.reporter.note(line)

    def _check_finite(self, step: int, values: Mapping[str, float], batch: Batch) -> None:
        """Raise ConfigError, and write the batch, if too many steps in a row were skipped."""
        if values[nonfinite.IN_A_ROW] < self.job.spec.training.max_non_finite_steps:
            return
        file = run_directory.batch_file(step)
        if self.run.leader:
            self.run.place.write(file, nonfinite.rows(batch, self.loaded.parts.tokenizer))
        raise nonfinite.stop(step, values, f"{self.run.place.uri}/{file}", self._good_checkpoint())

    def _fault_warning(self, step: int, fault: Fault | None) -> str:
        if fault is None:
            return ""
        return learning_record.warning(step, fault, self.record.in_a_row, self.job.spec.training.max_failed_steps)

    def end(self, failure: RunFailure | None) -> None:
        """Raise the leader's failure on every process: the others do not know why a reward failed."""
        if failure is not None:
            kind, _, message = processes.from_leader(f"{failure.kind} {failure.message}").partition(" ")
            raise RunFailure(Kind(kind), message).error(self._good_checkpoint())

    def _good_checkpoint(self) -> str:
        """Describe the checkpoint to resume from: the newest before the steps that failed last."""
        self.wait_for_checkpoint()
        if not self.record.learned:
            return "none, no step learned"
        checkpoints, good = self.storage.checkpoints, self.record.good
        steps = [step for step in checkpoints.steps() if step <= good]
        return checkpoints.uri(steps[-1]) if steps else f"none, the last step that could learn was {good}"

    def write_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a step into the run directory."""
        metrics = self.storage.metrics
        if metrics is not None:
            metrics.write(step, values, time.time())
            table = self.storage.samples.take()
            if table:
                metrics.write_text(step, sample_log.TAG, table)

    def wait_for_checkpoint(self) -> None:
        """Wait until the last checkpoint is committed."""
        self.storage.checkpoints.wait()
        self._report_checkpoint()

    @property
    def exported_step(self) -> int:
        """Return the step whose weights are exported, once `take_best` was called."""
        best = self.storage.policy.best
        is_best = self.job.spec.export.checkpoint == "best" and best is not None
        return best.step if is_best and best is not None else int(self.state.step)

    def take_best(self) -> None:
        """Replace the last weights by those of the best evaluation, if the export asks for them."""
        best = self.storage.policy.best
        if self.job.spec.export.checkpoint != "best" or best is None or best.step == int(self.state.step):
            return
        like = jax.tree.map(_shape, self.state.params)
        params, _ = read_params(path_of(f"{self.run.place.uri}/{run_directory.CHECKPOINTS}"), best.step, like)
        self.state = self.state._replace(params=params)
        self.reporter.note(f"exporting step {best.step}, the best: {best.value:.6g}")

    def close(self, *, is_failed: bool) -> None:
        """Stop background work. Errors here were raised before, or concern only TensorBoard's last lines."""
        self.monitors.watchdog.stop()
        if isinstance(self.transfer, RemoteEngine):
            self.transfer.close()
        self.reporter.close()
        metrics = self.storage.metrics
        end_metrics = partial(metrics.close, is_failed=is_failed) if metrics else None
        end_rollouts = self.storage.rollouts.close if self.storage.rollouts else None
        for close in (end_metrics, end_rollouts, self.storage.checkpoints.close):
            try:
                if close is not None:
                    close()
            except (OSError, ValueError, StorageError) as error:
                self.reporter.note(f"warning: {storage_reason(error)}")

    def _report_checkpoint(self) -> None:
        committed = self.storage.checkpoints.committed()
        if committed is not None:
            self.reporter.checkpoint(committed, self.storage.checkpoints.uri(committed), self.storage.policy.best)
            if self.storage.rollouts is not None and self.run.leader:
                self.storage.rollouts.forget(committed)


def _shape(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
