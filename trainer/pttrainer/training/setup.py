"""How a run is put together: a sequence of steps that each can refuse the job.

    claim the directory → load the model, lay it out → build the algorithm (reads the data) → restore or initialise

Nothing is compiled before the job is known to be whole; then the step is, while its first weights are made
(`compiling`). What comes of it is the `Session`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from ptapi import run_directory
from ptapi.spec import DataSpec, PostTrainJob
from pttrainer import algorithms
from pttrainer.algorithms.algorithm import Algorithm
from pttrainer.batch import Batch
from pttrainer.checkpoint import fork
from pttrainer.checkpoint.retention import Saving
from pttrainer.checkpoint.store import Checkpoints, path_of, weight_digests
from pttrainer.errors import ConfigError
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.disaggregated.device_meshes import Meshes
from pttrainer.rollout.disaggregated.weight_sync import Transfer
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.io.storage import Place
from pttrainer.runtime.reporting.heartbeat import Heartbeats
from pttrainer.runtime.reporting.metrics_log import MetricsLog
from pttrainer.runtime.reporting.progress import Reporter
from pttrainer.runtime.reporting.watchdog import Watchdog
from pttrainer.train_step import step as steps
from pttrainer.train_step.objective import Beginning
from pttrainer.train_step.program import Program, program
from pttrainer.train_step.step import Layout, TrainState
from pttrainer.training import async_compile, learning_record, loss_spikes
from pttrainer.training.async_compile import Early
from pttrainer.training.learning_record import Record
from pttrainer.training.load import Claimed, Loaded, claim, lineage, load
from pttrainer.training.rl_health import Watch
from pttrainer.training.run_directory import run_files
from pttrainer.training.run_directory.sample_log import Samples
from pttrainer.training.session import Session, constants
from pttrainer.training.throughput import Meter, peak_flops


def open_session(job: PostTrainJob, place: Place) -> Session:
    """Puts a run together; raises ConfigError, DataError, UserCodeError or StorageError when it cannot be."""
    run = claim(job, place)
    watchdog = _watchdog(run)
    loaded = load(run)
    model, frozen = loaded.parts.model, loaded.frozen
    data = run_files.pinned_data(place, job)
    tables = Samples(place, leader=run.leader)
    transfer = _transfer(model, loaded.meshes, run.reporter)
    algorithm = algorithms.build(job.spec.algorithm.kind, _context(run, loaded, data, tables, transfer))
    made = program(job.spec, model, algorithm, algorithm.total_steps)
    layout = made.layout(loaded.meshes.trainer)
    origin = _origin(run)
    if run.leader:
        step = None if run.resumed is None else run.resumed.at.step
        for change in run_files.write_lineage(place, job, data, lineage(loaded, made.held, origin), step):
            run.reporter.note(f"changed since the last attempt: {change}")
    saving = Saving(job.spec.checkpoint, place, leader=run.leader)
    checkpoints = Checkpoints(
        path_of(f"{place.uri}/{run_directory.CHECKPOINTS}"), saving, run.reporter.note, place.fence
    )
    train_step = made.train_step(layout)
    early = _early(train_step, made, layout, algorithm, frozen)
    state, first, record = _state(run, loaded, made, layout, checkpoints, algorithm, origin)
    record.first = record.first or weight_digests(state)
    saving.resumed(checkpoints.steps(), first, record.good)
    return Session(
        job=job,
        place=place,
        leader=run.leader,
        reporter=run.reporter,
        model=model,
        tokenizer=loaded.parts.tokenizer,
        chat_template=loaded.parts.chat.source,
        layout=layout,
        algorithm=algorithm,
        train_step=train_step,
        checkpoints=checkpoints,
        saving=saving,
        watchdog=watchdog,
        metrics=MetricsLog(place, first, tensorboard=job.spec.tensorboard.enabled) if run.leader else None,
        meter=Meter(model, peak_flops(job.spec.accelerator)),
        state=state,
        frozen=frozen,
        first_step=first,
        commit=loaded.parts.commit,
        spikes=loss_spikes.of_job(job.spec),
        watch=Watch() if job.spec.algorithm.learns_from_rewards else None,
        samples=tables,
        transfer=transfer,
        early=early,
        record=record,
    )


def _watchdog(run: Claimed) -> Watchdog:
    process, asked = jax.process_index(), run.job.spec.run_policy.hang_timeout_seconds
    heartbeats = Heartbeats(run.place, process) if jax.process_count() > 1 else None
    return Watchdog(run.reporter.beat, run.place, process, asked, heartbeats=heartbeats)


def _transfer(model: Model, meshes: Meshes, reporter: Reporter) -> Transfer | None:
    if meshes.sampler is None:
        return None
    if jax.process_count() > 1:
        raise ConfigError(
            "spec.rollout.placement: disaggregated: needs one process that drives all devices, and this run has "
            f"{jax.process_count()}; accepted: colocated; hint: pathways: {{enabled: true}}"
        )
    reporter.note(f"{meshes.trainer.size} devices train, {meshes.sampler.size} sample")
    return Transfer(model, meshes.trainer, meshes.sampler, partial(sharding.put, meshes.sampler))


def _context(run: Claimed, loaded: Loaded, data: DataSpec, tables: Samples, transfer: Transfer | None) -> Context:
    mesh, parts = loaded.meshes.trainer, loaded.parts
    compiled_score = steps.score_step(parts.model, sharding.replicated(mesh))

    def score(params: Params, batch: Batch, temperature: float) -> TokenStats:
        stats: TokenStats = jax.tree.map(np.asarray, compiled_score(params, sharding.put(mesh, batch), temperature))
        return stats

    return Context(
        spec=run.job.spec.model_copy(update={"data": data}),
        model=parts.model,
        mesh=mesh,
        tokenizer=parts.tokenizer,
        chat=parts.chat,
        score=score,
        initial_params=loaded.initial_params,
        place=partial(sharding.put, mesh),
        fetch=sharding.fetch,
        save_samples=tables.save,
        note=run.reporter.note,
        alive=run.reporter.alive,
        leader=run.leader,
        run=run.place,
        transfer=transfer,
    )


def _early(train_step: Any, made: Program, layout: Layout, algorithm: Algorithm, frozen: Params | None) -> Early | None:
    """The step for the batch that is foreseen, on its way; None where none is, or where it cannot be under way."""
    batch = algorithm.foreseen() if async_compile.is_possible() else None
    if batch is None:
        return None
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding.batch_sharding(layout.mesh, x.shape)), batch
    )
    arguments = (made.abstract_state(layout), shapes, *constants(algorithm, frozen))
    return Early(train_step, layout.mesh, arguments)


def _state(
    run: Claimed,
    loaded: Loaded,
    made: Program,
    layout: Layout,
    checkpoints: Checkpoints,
    algorithm: Algorithm,
    origin: fork.Source | None,
) -> tuple[TrainState, int, Record]:
    """The newest good checkpoint, or the first state, of this run's own or of the one it forks from; and the record of
    its steps, where they are this run's own."""
    spec, reporter = run.job.spec.checkpoint, run.reporter
    reporter.stage("restoring")
    like = made.abstract_state(layout)
    restored = checkpoints.restore(like)
    total = algorithm.total_steps
    if restored is not None:
        _check_length(restored.step, total, f"{checkpoints.uri(restored.step)}: is of step {restored.step}")
        done = ", the last one: there is nothing left to train" if restored.step == total else ""
        reporter.note(f"resuming after step {restored.step}{done}")
        reporter.checkpoint(restored.step, checkpoints.uri(restored.step))
        algorithm.restore(restored.algorithm)
        return restored.state, restored.step, learning_record.from_json(restored.record)
    reporter.stage("loading")
    if origin is None or spec.fork is None:
        return _first_state(loaded.trained(), made, layout, algorithm), 0, Record()
    is_whole = spec.fork.state == "full"
    reporter.note(f"forking from {origin.uri} ({'full state' if is_whole else 'weights'})")
    if not is_whole:
        return _first_state(fork.weights(origin, like), made, layout, algorithm), 0, Record()
    forked = fork.full(origin, like, algorithm.state().keys())
    _check_length(forked.step + 1, total, f"{fork.FIELD}.uri: {origin.uri}: has done {forked.step} steps")
    algorithm.restore(forked.algorithm)
    return forked.state, forked.step, Record()


def _check_length(least: int, total: int, what: str) -> None:
    """Refuses a job whose last step is behind it: it would export at once."""
    if total < least:
        raise ConfigError(
            f"{what}, and this job has {total}; accepted: at least {least}; hint: raise spec.training.steps or epochs"
        )


def _first_state(params: Params, made: Program, layout: Layout, algorithm: Algorithm) -> TrainState:
    """The state before the first step, with these weights, whose memory it takes, and the critic's first ones."""
    first: Callable[..., TrainState] = jax.jit(
        partial(steps.new_state, optimizer=made.updates, learner=made.learner),
        out_shardings=layout.state,
        donate_argnums=(0,),
        donate_argnames=("critic",),
    )
    critic = None
    if isinstance(algorithm, Beginning) and layout.state.critic is not None:
        critic = algorithm.first_critic(layout.state.critic.params)
    return first(params, critic=critic)


def _origin(run: Claimed) -> fork.Source | None:
    """Where the run forks from: if an earlier attempt knew, from there."""
    spec = run.job.spec.checkpoint.fork
    if spec is None:
        return None
    known = run_files.known_lineage(run.place).get("fork") or {}
    found = fork.source(spec, known.get("step"))
    return found if known.get("uri", "").startswith(found.directory) else fork.source(spec, None)
