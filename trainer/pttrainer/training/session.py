"""The parts of a run while it trains, and what is logged of each step; `setup` builds it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from ptapi import run_directory
from ptapi.spec import PostTrainJob
from pttrainer.algorithms.algorithm import Algorithm
from pttrainer.batch import Batch
from pttrainer.checkpoint.retention import CheckpointPolicy
from pttrainer.checkpoint.store import Checkpoints, path_of, read_params, weight_digests
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import StorageError
from pttrainer.models import Model, Params
from pttrainer.rollout.disaggregated.weight_sync import WeightSync
from pttrainer.runtime.distributed import processes, sharding
from pttrainer.runtime.io.storage import Place, storage_reason
from pttrainer.runtime.reporting.metrics_log import MetricsLog
from pttrainer.runtime.reporting.progress import Reporter
from pttrainer.runtime.reporting.step_faults import Fault, Kind
from pttrainer.runtime.reporting.watchdog import Watchdog
from pttrainer.train_step import nonfinite
from pttrainer.train_step.critic import Critic, with_critic_params
from pttrainer.train_step.objective import HasCritic, HasFault, HasTeacher
from pttrainer.train_step.optimizer import ema
from pttrainer.train_step.state import Layout, TrainState
from pttrainer.training import learning_record
from pttrainer.training.async_compile import BackgroundCompile
from pttrainer.training.learning_record import LearningRecord, RunFailure
from pttrainer.training.loss_spikes import LossSpikes
from pttrainer.training.rl_health import RlHealth
from pttrainer.training.run_directory import sample_log
from pttrainer.training.run_directory.sample_log import SampleLog
from pttrainer.training.throughput import Meter


@dataclass
class Session:
    """The parts of a run.

    `state` is replaced at every step, and the old one's memory is reused. `frozen`: the weights that adapters are
    added to.
    """

    job: PostTrainJob
    place: Place
    leader: bool
    reporter: Reporter
    model: Model
    tokenizer: Tokenizer
    chat_template: str | None
    layout: Layout
    algorithm: Algorithm
    train_step: Any
    checkpoints: Checkpoints
    checkpoint_policy: CheckpointPolicy
    watchdog: Watchdog
    metrics: MetricsLog | None
    meter: Meter
    state: TrainState
    frozen: Params | None
    first_step: int
    commit: str | None
    spikes: LossSpikes | None
    """None for policy losses, which are about 0 and noisy."""
    rl_health: RlHealth | None
    """Checks of reinforcement learning metrics."""
    sample_log: SampleLog
    transfer: WeightSync | None
    """Moves weights to devices that only sample."""
    background_compile: BackgroundCompile | None
    """The step for the expected batch."""
    record: LearningRecord
    """Counts the steps that could learn, and those that could not."""
    _compiled: dict[Any, Any] = field(default_factory=dict)

    @property
    def params(self) -> Params:
        """Return all current weights, as `next_batch` reads them."""
        return with_critic_params(self.model.join_params(self.frozen, self.state.params), self.state.critic)

    @property
    def critic(self) -> Critic | None:
        """Return the critic, if the algorithm has one."""
        return self.algorithm.critic if isinstance(self.algorithm, HasCritic) else None

    @property
    def evaluated_params(self) -> Params:
        """Return the trained weights to evaluate and export: their average, if the job keeps one."""
        return ema.averaged_params(self.state.optimizer, self.state.params)

    @property
    def constants(self) -> tuple[Any, ...]:
        """Return the weights that the train step takes and no step changes."""
        return constants(self.algorithm, self.frozen)

    def place_batch(self, batch: Batch) -> Batch:
        """Return the batch on the mesh."""
        placed: Batch = sharding.put(self.layout.mesh, batch)
        return placed

    def compiled(self, batch: Batch) -> tuple[Any, float]:
        """Return the train step for batches of this shape, and the seconds spent on compiling it now."""
        key = (jax.tree.structure(batch), *((x.shape, str(x.dtype)) for x in jax.tree.leaves(batch)))
        if key in self._compiled:
            return self._compiled[key], 0.0
        self.reporter.stage("compiling")
        began = time.monotonic()
        with self.meter.spending("compile"):
            arguments = (self.state, batch, *self.constants)
            background_compile = (
                None if self.background_compile is None else self.background_compile.compiled(arguments)
            )
            self._compiled[key] = background_compile or self.train_step.lower(*arguments).compile()
        self.reporter.stage("training")
        return self._compiled[key], time.monotonic() - began

    @property
    def fault(self) -> Fault | None:
        """Return why nothing can be learned from the last batch, or None."""
        return self.algorithm.fault if isinstance(self.algorithm, HasFault) else None

    def log(
        self, step: int, values: Mapping[str, float], seconds: float, batch: Batch, batch_fault: Fault | None
    ) -> None:
        """Log a finished step: metrics files, progress, console line. batch_fault: the fault of its batch.

        Raises ConfigError if too many steps were skipped, and the last steps' fault if too many could not learn.
        """
        fault = self.record.count(step, values, batch, batch_fault)
        self.checkpoint_policy.good = self.record.good
        self._warn(step, values, fault)
        logged = {name: value for name, value in values.items() if name != nonfinite.IN_A_ROW}
        logged |= {} if self.transfer is None else self.transfer.facts()
        logged[run_directory.GOODPUT] = self.reporter.goodput()
        logged[run_directory.FAILED_STEPS] = float(self.record.failed)
        self._report_checkpoint()
        self.reporter.finished_step(step, logged, seconds)
        self.write_metrics(step, logged)  # after the line: the first time it imports TensorBoard's writer
        self._check_finite(step, values, batch)
        self._end(learning_record.stop(self.record, step, self.job.spec.training.max_failed_steps))

    def check_learning(self) -> None:
        """Raise the run's failure if too few of its steps could learn, or none changed a weight."""
        now = weight_digests(self.state)
        self._end(learning_record.verdict(self.record, self.job.spec.training.min_learning_share, now))

    def _warn(self, step: int, values: Mapping[str, float], fault: Fault | None) -> None:
        """Log what is wrong with a step."""
        skipped = nonfinite.warning(step, values, self.job.spec.training.max_non_finite_steps)
        spike = self.spikes.report(step, values) if self.spikes is not None else ""
        health_warnings = self.rl_health.report(values) if self.rl_health is not None else []
        for warning in filter(None, (skipped or self._fault_warning(step, fault), spike, *health_warnings)):
            self.reporter.note(warning)

    def _check_finite(self, step: int, values: Mapping[str, float], batch: Batch) -> None:
        """Raise ConfigError, and write the batch, if too many steps in a row were skipped."""
        if values[nonfinite.IN_A_ROW] < self.job.spec.training.max_non_finite_steps:
            return
        file = run_directory.batch_file(step)
        if self.leader:
            self.place.write(file, nonfinite.rows(batch, self.tokenizer))
        raise nonfinite.stop(step, values, f"{self.place.uri}/{file}", self._good_checkpoint())

    def _fault_warning(self, step: int, fault: Fault | None) -> str:
        if fault is None:
            return ""
        return learning_record.warning(step, fault, self.record.in_a_row, self.job.spec.training.max_failed_steps)

    def _end(self, failure: RunFailure | None) -> None:
        """Raise the leader's failure on every process: the others do not know why a reward failed."""
        if failure is not None:
            kind, _, message = processes.from_leader(f"{failure.kind} {failure.message}").partition(" ")
            raise RunFailure(Kind(kind), message).error(self._good_checkpoint())

    def _good_checkpoint(self) -> str:
        """Describe the checkpoint to resume from: the newest before the steps that failed last."""
        self.wait_for_checkpoint()
        if not self.record.learned:
            return "none, no step learned"
        steps = [step for step in self.checkpoints.steps() if step <= self.record.good]
        return (
            self.checkpoints.uri(steps[-1]) if steps else f"none, the last step that could learn was {self.record.good}"
        )

    def write_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a step into the run directory."""
        if self.metrics is not None:
            self.metrics.write(step, values, time.time())
            table = self.sample_log.take()
            if table:
                self.metrics.write_text(step, sample_log.TAG, table)

    def wait_for_checkpoint(self) -> None:
        """Wait until the last checkpoint is committed."""
        self.checkpoints.wait()
        self._report_checkpoint()

    def take_best(self) -> None:
        """Replace the last weights by those of the best evaluation, if the export asks for them."""
        best = self.checkpoint_policy.best
        if self.job.spec.export.checkpoint != "best" or best is None or best.step == int(self.state.step):
            return
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state.params)
        params, _ = read_params(path_of(f"{self.place.uri}/{run_directory.CHECKPOINTS}"), best.step, like)
        self.state = self.state._replace(params=params)
        self.reporter.note(f"exporting step {best.step}, the best: {best.value:.6g}")

    def close(self) -> None:
        """Stop background work. Errors here were raised before, or concern only TensorBoard's last lines."""
        self.watchdog.stop()
        self.reporter.close()
        for part in (self.metrics, self.checkpoints):
            try:
                if part is not None:
                    part.close()
            except (OSError, ValueError, StorageError) as error:
                self.reporter.note(f"warning: {storage_reason(error)}")

    def _report_checkpoint(self) -> None:
        committed = self.checkpoints.committed()
        if committed is not None:
            self.reporter.checkpoint(committed, self.checkpoints.uri(committed), self.checkpoint_policy.best)


def constants(algorithm: Algorithm, frozen: Params | None) -> tuple[Any, ...]:
    """Return the weights that the train step takes and no step changes."""
    return (frozen, algorithm.teacher_params) if isinstance(algorithm, HasTeacher) else (frozen,)
