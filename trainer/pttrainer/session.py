"""Everything that a run holds while it trains, and how it is put together.

`open_session` is a sequence of steps that each can refuse the job: claim the directory, assemble the model,
lay it out, build the algorithm (reads the data), restore or initialise. Nothing is compiled before the job is
known to be whole; then the step is, while its first weights are made (`compiling`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from ptapi import rundir
from ptapi.spec import Fork, PostTrainJob, PostTrainJobSpec
from pttrainer import (
    algorithms,
    compiling,
    directory,
    distributed,
    division,
    ema,
    fork,
    freezing,
    nonfinite,
    placement,
    samples,
    sharding,
    two_meshes,
)
from pttrainer import step as steps
from pttrainer.algorithms.protocol import Algorithm, Beginning, Context, Criticised, Guided
from pttrainer.assemble import Assembled, assemble
from pttrainer.batch import Batch
from pttrainer.checkpoint import Checkpoints, path_of, read_params
from pttrainer.compiling import Early
from pttrainer.critic import Critic, beside
from pttrainer.errors import ConfigError, StorageError
from pttrainer.export import Base
from pttrainer.heartbeat import Heartbeats
from pttrainer.losses import TokenStats
from pttrainer.meter import Meter, peak_flops
from pttrainer.metrics import MetricsLog
from pttrainer.models import Model, Params
from pttrainer.origin import Origin
from pttrainer.program import Program, program
from pttrainer.progress import Reporter
from pttrainer.rollout.transfer import Transfer
from pttrainer.samples import Samples
from pttrainer.saving import Saving
from pttrainer.spikes import Spikes
from pttrainer.step import Layout, TrainState
from pttrainer.storage import Place, storage_reason
from pttrainer.tokenizer import Tokenizer
from pttrainer.watchdog import Watchdog
from pttrainer.watching import Watch


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
    _compiled: dict[Any, Any] = field(default_factory=dict)

    @property
    def params(self) -> Params:
        """All weights as they are now, as `next_batch` reads them."""
        return beside(self.model.whole(self.frozen, self.state.params), self.state.critic)

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
        return _constants(self.algorithm, self.frozen)

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

    def log(self, step: int, values: Mapping[str, float], seconds: float, batch: Batch) -> None:
        """A finished step: the metrics files, progress, the line. Raises ConfigError when too many were skipped."""
        limit = self.job.spec.training.max_non_finite_steps
        spike = self.spikes.report(step, values) if self.spikes is not None else ""
        watched = self.watch.report(values) if self.watch is not None else []
        for warning in filter(None, (nonfinite.warning(step, values, limit), spike, *watched)):
            self.reporter.note(warning)
        shown = {name: value for name, value in values.items() if name != nonfinite.IN_A_ROW}
        shown |= {} if self.transfer is None else self.transfer.facts()
        shown[rundir.GOODPUT] = self.reporter.goodput()
        self._report_checkpoint()
        self.reporter.finished_step(step, shown, seconds)
        self.write_metrics(step, shown)  # after the line: the first time it imports TensorBoard's writer
        if values[nonfinite.IN_A_ROW] >= limit:
            file = rundir.batch_file(step)
            if self.leader:
                self.place.write(file, nonfinite.rows(batch, self.tokenizer))
            raise nonfinite.stop(step, values, f"{self.place.uri}/{file}")

    def write_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of a step into the run directory."""
        if self.metrics is not None:
            self.metrics.write(step, values, time.time())
            table = self.samples.take()
            if table:
                self.metrics.write_text(step, samples.TAG, table)

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
        params, _ = read_params(path_of(f"{self.place.uri}/{rundir.CHECKPOINTS}"), best.step, like)
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


def open_session(job: PostTrainJob, place: Place) -> Session:
    """Puts a run together; raises ConfigError, DataError, UserCodeError or StorageError when it cannot be."""
    distributed.initialize()
    leader = distributed.is_leader()
    if leader:
        directory.claim(place, job)
    reporter = Reporter(place, job.metadata.uid or "", leader=leader)
    reporter.stage("loading")
    process, asked = jax.process_index(), job.spec.run_policy.hang_timeout_seconds
    heartbeats = Heartbeats(place, process) if jax.process_count() > 1 else None
    watchdog = Watchdog(reporter.beat, place, process, asked, heartbeats=heartbeats)
    training = job.spec.training
    parts = assemble(job.spec.model, training, reporter.note, directory.pinned_commits(place, job))
    shapes = placement.shapes(job.spec, parts.model, jax.device_count())
    meshes = two_meshes.meshes(shapes)
    mesh = meshes.trainer
    division.check_batch(training.batch_size, training.micro_batch_size, sharding.mesh_size(mesh, "batch"))
    experts = parts.model.config.experts
    division.check_experts(mesh.shape["expert"], None if experts is None else experts.count)
    jax.set_mesh(mesh)
    weights = sharding.weight_shardings(mesh, parts.model.abstract(), parts.model.logical_axes())
    frozen = parts.frozen(weights)
    changed = parts.quantization_errors.relative()
    if changed:
        reporter.note(_quantised(parts.model, changed))

    def initial_params() -> Params:
        return parts.model.whole(frozen, parts.trained(weights))

    data = directory.pinned_data(place, job)
    spec = job.spec.model_copy(update={"data": data})
    tables = Samples(place, leader=leader)
    transfer = _transfer(parts.model, meshes, reporter)
    context = _context(spec, place, parts, initial_params, mesh, reporter, tables, leader, transfer)
    algorithm = algorithms.build(job.spec.algorithm.kind, context)
    made = program(job.spec, parts.model, algorithm, algorithm.total_steps)
    layout = made.layout(mesh)
    origin = None if job.spec.checkpoint.fork is None else _origin(place, job.spec.checkpoint.fork)
    if leader:
        directory.write_lineage(place, job, data, _lineage(parts, shapes, made.held, changed) | _fork_facts(origin))
    saving = Saving(job.spec.checkpoint, place, leader=leader)
    checkpoints = Checkpoints(path_of(f"{place.uri}/{rundir.CHECKPOINTS}"), saving, reporter.note)
    train_step = made.train_step(layout)
    early = _early(train_step, made, layout, algorithm, frozen)
    state, first = _state(job, parts, made, layout, checkpoints, algorithm, reporter, origin)
    saving.resumed(checkpoints.steps(), first)
    return Session(
        job=job,
        place=place,
        leader=leader,
        reporter=reporter,
        model=parts.model,
        tokenizer=parts.tokenizer,
        chat_template=parts.chat.source,
        layout=layout,
        algorithm=algorithm,
        train_step=train_step,
        checkpoints=checkpoints,
        saving=saving,
        watchdog=watchdog,
        metrics=MetricsLog(place, first, tensorboard=job.spec.tensorboard.enabled) if leader else None,
        meter=Meter(parts.model, peak_flops(job.spec.accelerator)),
        state=state,
        frozen=frozen,
        first_step=first,
        commit=parts.commit,
        spikes=None if algorithm.needs_params else Spikes(training.optimizer.max_grad_norm),
        watch=Watch() if job.spec.algorithm.learns_from_rewards else None,
        samples=tables,
        transfer=transfer,
        early=early,
    )


def _context(
    spec: PostTrainJobSpec,
    place: Place,
    parts: Assembled,
    initial_params: Callable[[], Params],
    mesh: jax.sharding.Mesh,
    reporter: Reporter,
    tables: Samples,
    leader: bool,
    transfer: Transfer | None,
) -> Context:
    compiled_score = steps.score_step(parts.model, sharding.replicated(mesh))

    def score(params: Params, batch: Batch, temperature: float) -> TokenStats:
        stats: TokenStats = jax.tree.map(np.asarray, compiled_score(params, sharding.put(mesh, batch), temperature))
        return stats

    return Context(
        spec=spec,
        model=parts.model,
        mesh=mesh,
        tokenizer=parts.tokenizer,
        chat=parts.chat,
        score=score,
        initial_params=initial_params,
        place=partial(sharding.put, mesh),
        fetch=sharding.fetch,
        save_samples=tables.save,
        note=reporter.note,
        alive=reporter.alive,
        leader=leader,
        run=place,
        transfer=transfer,
    )


def _transfer(model: Model, meshes: two_meshes.Meshes, reporter: Reporter) -> Transfer | None:
    if meshes.sampler is None:
        return None
    if jax.process_count() > 1:
        raise ConfigError(
            "spec.rollout.placement: disaggregated: needs one process that drives all devices, and this run has "
            f"{jax.process_count()}; accepted: colocated; hint: pathways: {{enabled: true}}"
        )
    reporter.note(f"{meshes.trainer.size} devices train, {meshes.sampler.size} sample")
    return Transfer(model, meshes.trainer, meshes.sampler, partial(sharding.put, meshes.sampler))


def _constants(algorithm: Algorithm, frozen: Params | None) -> tuple[Any, ...]:
    return (frozen, algorithm.teacher) if isinstance(algorithm, Guided) else (frozen,)


def _early(train_step: Any, made: Program, layout: Layout, algorithm: Algorithm, frozen: Params | None) -> Early | None:
    """The step for the batch that is foreseen, on its way; None where none is, or where it cannot be under way."""
    batch = algorithm.foreseen() if compiling.is_possible() else None
    if batch is None:
        return None
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding.batch_sharding(layout.mesh, x.shape)), batch
    )
    arguments = (made.abstract_state(layout), shapes, *_constants(algorithm, frozen))
    return Early(train_step, layout.mesh, arguments)


def _state(
    job: PostTrainJob,
    parts: Assembled,
    made: Program,
    layout: Layout,
    checkpoints: Checkpoints,
    algorithm: Algorithm,
    reporter: Reporter,
    origin: fork.Source | None,
) -> tuple[TrainState, int]:
    """The newest good checkpoint, or the first state, of this run's own or of the one it forks from."""
    if job.spec.checkpoint.resume == "never":
        checkpoints.clear()
    reporter.stage("restoring")
    like = made.abstract_state(layout)
    restored = checkpoints.restore(like)
    if restored is not None:
        reporter.note(f"resuming after step {restored.step}")
        reporter.checkpoint(restored.step, checkpoints.uri(restored.step))
        algorithm.restore(restored.algorithm)
        return restored.state, restored.step
    reporter.stage("loading")
    is_whole = job.spec.checkpoint.fork is not None and job.spec.checkpoint.fork.state == "full"
    if origin is not None:
        reporter.note(f"forking from {origin.uri} ({'full state' if is_whole else 'weights'})")
    if origin is not None and is_whole:
        forked = fork.full(origin, like, algorithm.state().keys())
        algorithm.restore(forked.algorithm)
        return forked.state, forked.step
    params = (
        fork.weights(origin, like)
        if origin is not None
        else parts.trained(parts.model.whole(layout.frozen, layout.state.params))
    )
    first = jax.jit(
        partial(steps.new_state, optimizer=made.updates, learner=made.learner),
        out_shardings=layout.state,
        donate_argnums=(0,),
        donate_argnames=("critic",),
    )
    critic = None
    if isinstance(algorithm, Beginning) and layout.state.critic is not None:
        critic = algorithm.first_critic(layout.state.critic.params)
    return first(params, critic=critic), 0


def _origin(place: Place, spec: Fork) -> fork.Source:
    known = directory.known_lineage(place).get("fork") or {}
    return fork.source(spec, known.get("step"))


def _fork_facts(origin: fork.Source | None) -> dict[str, Any]:
    return {} if origin is None else {"fork": {"uri": origin.uri, "step": origin.step}}


def _adapters_from(origin: Origin | None) -> dict[str, Any]:
    return {} if origin is None else {"adaptersFrom": {"uri": origin.uri, "commit": origin.commit}}


def _quantised(model: Model, changed: Mapping[str, float]) -> str:
    each = ", ".join(f"{name} {error:.2%}" for name, error in changed.items())
    return f"frozen weights quantized to {model.quantization}: relative error {each}"


def _lineage(parts: Assembled, shapes: placement.Shapes, held: Any, changed: Mapping[str, float]) -> dict[str, Any]:
    named = {"mesh": shapes.trainer, "samplerMesh": shapes.sampler}
    return {
        "modelCommit": parts.commit,
        **_adapters_from(parts.origin),
        "parameters": parts.model.config.parameters,
        "trainedParameters": freezing.moving(parts.model.trained(parts.model.abstract()), held),
        "devices": {
            "count": jax.device_count(),
            "kind": jax.devices()[0].device_kind,
            "processes": jax.process_count(),
        },
        **{name: dict(zip(division.MESH_AXES, shape, strict=True)) for name, shape in named.items() if shape},
        "precision": {"params": parts.model.param_dtype, "compute": parts.model.compute_dtype},
        **({"quantization": {"weights": parts.model.quantization, "relativeError": dict(changed)}} if changed else {}),
    }
