"""Everything that a run holds while it trains, and what it says of a step; `opening` puts it together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from ptapi import run_directory
from ptapi.spec import PostTrainJob
from pttrainer.algorithms.algorithm import Algorithm
from pttrainer.batch import Batch
from pttrainer.checkpoint.export import Base
from pttrainer.checkpoint.retention import Saving
from pttrainer.checkpoint.store import Checkpoints, path_of, read_params, weight_digests
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import StorageError
from pttrainer.models import Model, Params
from pttrainer.rollout.disaggregated.weight_sync import Transfer
from pttrainer.runtime.distributed import processes, sharding
from pttrainer.runtime.io.storage import Place, storage_reason
from pttrainer.runtime.reporting.metrics_log import MetricsLog
from pttrainer.runtime.reporting.progress import Reporter
from pttrainer.runtime.reporting.step_faults import Fault, Kind
from pttrainer.runtime.reporting.watchdog import Watchdog
from pttrainer.train_step import nonfinite
from pttrainer.train_step.critic import Critic, beside
from pttrainer.train_step.objective import Criticised, Fallible, Guided
from pttrainer.train_step.optimizer import ema
from pttrainer.train_step.step import Layout, TrainState
from pttrainer.training import learning_record
from pttrainer.training.async_compile import Early
from pttrainer.training.learning_record import Ending, Record
from pttrainer.training.loss_spikes import Spikes
from pttrainer.training.rl_health import Watch
from pttrainer.training.run_directory import sample_log
from pttrainer.training.run_directory.sample_log import Samples
from pttrainer.training.throughput import Meter


@dataclass
class Session:
    """The parts of a run. `state` is replaced at every step; the old one's memory is reused. `frozen`: the weights
    that adapters were put on."""

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
    saving: Saving
    watchdog: Watchdog
    metrics: MetricsLog | None
    meter: Meter
    state: TrainState
    frozen: Params | None
    first_step: int
    commit: str | None
    spikes: Spikes | None
    """Of losses that are worth watching: a policy loss is about 0 and jumps as it likes."""
    watch: Watch | None
    """Of the figures of reinforcement learning."""
    samples: Samples
    transfer: Transfer | None
    """Of weights to the devices that only sample."""
    early: Early | None
    """The step for the batch that is foreseen."""
    record: Record
    """Of the steps that could learn, and those that could not."""
    _compiled: dict[Any, Any] = field(default_factory=dict)

    @property
    def params(self) -> Params:
        """All weights as they are now, as `next_batch` reads them."""
        return beside(self.model.join_params(self.frozen, self.state.params), self.state.critic)

    @property
    def critic(self) -> Critic | None:
        """What foretells rewards, where the algorithm has such a thing."""
        return self.algorithm.critic if isinstance(self.algorithm, Criticised) else None

    @property
    def judged(self) -> Params:
        """What is evaluated and exported of what is trained: its average, where the job keeps one."""
        return ema.of(self.state.optimizer, self.state.params)

    @property
    def constants(self) -> tuple[Any, ...]:
        """What the train step takes beside state and batch: weights that no step changes."""
        return constants(self.algorithm, self.frozen)

    @property
    def base(self) -> Base:
        """The model that the run started from."""
        return Base(self.job.spec.model.uri, self.commit)

    def place_batch(self, batch: Batch) -> Batch:
        """The batch on the mesh."""
        placed: Batch = sharding.put(self.layout.mesh, batch)
        return placed

    def compiled(self, batch: Batch) -> tuple[Any, float]:
        """The train step for batches of this shape, and the seconds that it took to compile it now."""
        key = (jax.tree.structure(batch), *((x.shape, str(x.dtype)) for x in jax.tree.leaves(batch)))
        if key in self._compiled:
            return self._compiled[key], 0.0
        self.reporter.stage("compiling")
        began = time.monotonic()
        with self.meter.spending("compile"):
            arguments = (self.state, batch, *self.constants)
            early = None if self.early is None else self.early.compiled(arguments)
            self._compiled[key] = early or self.train_step.lower(*arguments).compile()
        self.reporter.stage("training")
        return self._compiled[key], time.monotonic() - began

    @property
    def fault(self) -> Fault | None:
        """Why nothing can be learned from the batch that was drawn last."""
        return self.algorithm.fault if isinstance(self.algorithm, Fallible) else None

    def log(self, step: int, values: Mapping[str, float], seconds: float, batch: Batch, given: Fault | None) -> None:
        """A finished step: the metrics files, progress, the line. Raises ConfigError when too many were skipped, and
        what the last ones failed for when too many could not learn. given: the fault of the batch."""
        limit = self.job.spec.training.max_non_finite_steps
        fault = self.record.count(step, values, batch, given)
        self.saving.good = self.record.good
        spike = self.spikes.report(step, values) if self.spikes is not None else ""
        watched = self.watch.report(values) if self.watch is not None else []
        skipped = nonfinite.warning(step, values, limit)
        for warning in filter(None, (skipped or self._told(step, fault), spike, *watched)):
            self.reporter.note(warning)
        shown = {name: value for name, value in values.items() if name != nonfinite.IN_A_ROW}
        shown |= {} if self.transfer is None else self.transfer.facts()
        shown[run_directory.GOODPUT] = self.reporter.goodput()
        shown[run_directory.FAILED_STEPS] = float(self.record.failed)
        self._report_checkpoint()
        self.reporter.finished_step(step, shown, seconds)
        self.write_metrics(step, shown)  # after the line: the first time it imports TensorBoard's writer
        if values[nonfinite.IN_A_ROW] >= limit:
            file = run_directory.batch_file(step)
            if self.leader:
                self.place.write(file, nonfinite.rows(batch, self.tokenizer))
            raise nonfinite.stop(step, values, f"{self.place.uri}/{file}", self._good())
        self._end(learning_record.stop(self.record, step, self.job.spec.training.max_failed_steps))

    def check_learning(self) -> None:
        """Raises what the run failed for, where too few of its steps could learn, or none changed anything."""
        now = weight_digests(self.state)
        self._end(learning_record.verdict(self.record, self.job.spec.training.min_learning_share, now))

    def _told(self, step: int, fault: Fault | None) -> str:
        if fault is None:
            return ""
        return learning_record.warning(step, fault, self.record.in_a_row, self.job.spec.training.max_failed_steps)

    def _end(self, ending: Ending | None) -> None:
        """Raises the leader's on every process: the others do not know why a reward failed."""
        if ending is not None:
            kind, _, words = processes.from_leader(f"{ending.kind} {ending.words}").partition(" ")
            raise Ending(Kind(kind), words).error(self._good())

    def _good(self) -> str:
        """The checkpoint to go on from, in words: the newest of before the steps that failed last."""
        self.wait_for_checkpoint()
        if not self.record.learned:
            return "none, no step learned"
        steps = [step for step in self.checkpoints.steps() if step <= self.record.good]
        return (
            self.checkpoints.uri(steps[-1]) if steps else f"none, the last step that could learn was {self.record.good}"
        )

    def write_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of a step into the run directory."""
        if self.metrics is not None:
            self.metrics.write(step, values, time.time())
            table = self.samples.take()
            if table:
                self.metrics.write_text(step, sample_log.TAG, table)

    def wait_for_checkpoint(self) -> None:
        """Until the last checkpoint is committed."""
        self.checkpoints.wait()
        self._report_checkpoint()

    def take_best(self) -> None:
        """The weights of the best evaluation in place of the last ones, where the export asks for them."""
        best = self.saving.best
        if self.job.spec.export.checkpoint != "best" or best is None or best.step == int(self.state.step):
            return
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state.params)
        params, _ = read_params(path_of(f"{self.place.uri}/{run_directory.CHECKPOINTS}"), best.step, like)
        self.state = self.state._replace(params=params)
        self.reporter.note(f"exporting step {best.step}, the best: {best.value:.6g}")

    def fetch(self, tree: Any) -> Any:
        """Whole host copies of arrays, on every process."""
        return sharding.fetch(tree)

    def close(self) -> None:
        """Ends background work. What fails here has been raised before, or is only TensorBoard's last lines."""
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
            self.reporter.checkpoint(committed, self.checkpoints.uri(committed), self.saving.best)


def constants(algorithm: Algorithm, frozen: Params | None) -> tuple[Any, ...]:
    """What the train step takes beside state and batch: weights that no step changes."""
    return (frozen, algorithm.teacher) if isinstance(algorithm, Guided) else (frozen,)
