"""Build a run: a sequence of steps, each of which can refuse the job.

    claim the directory → load the model, lay it out → build the algorithm (reads the data) → restore or initialise

Nothing is compiled before the whole job is known to be valid; then the step is, while its first weights are made
(`compiled_steps`). The result is the `Session`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from ptapi import run_directory
from ptapi.spec import DataSpec, PostTrainJob, PostTrainJobSpec
from pttrainer import algorithms
from pttrainer.algorithms.algorithm import Algorithm
from pttrainer.checkpoint import fork
from pttrainer.checkpoint.fork import ForkSource
from pttrainer.checkpoint.retention import CheckpointPolicy
from pttrainer.checkpoint.store import Checkpoints, path_of, weight_digests
from pttrainer.errors import ConfigError
from pttrainer.models import Model, Params
from pttrainer.models.shapes.structure import Remat
from pttrainer.rollout.context import Context
from pttrainer.rollout.disaggregated.device_meshes import Meshes
from pttrainer.rollout.disaggregated.finished_rollouts import FinishedRollouts
from pttrainer.rollout.disaggregated.separate.remote_engine import RemoteEngine, remote_engine
from pttrainer.rollout.disaggregated.weight_sync import WeightSync
from pttrainer.rollout.vllm.separate_samplers import vllm_samplers
from pttrainer.runtime.background_compile import BackgroundCompile
from pttrainer.runtime.distributed import leader_messages, sharding
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting import experiment_trackers
from pttrainer.runtime.reporting.heartbeat import Heartbeats
from pttrainer.runtime.reporting.metrics_log import MetricsLog
from pttrainer.runtime.reporting.watchdog import Watchdog
from pttrainer.train_step.objective import HasCriticInit, HasImages
from pttrainer.train_step.program import Program, program
from pttrainer.train_step.state import Layout, TrainState, all_params, model_params
from pttrainer.training import learning_record, loss_spikes
from pttrainer.training.claim_and_load import ClaimedRun, PlacedModel, claim, lineage, load
from pttrainer.training.compiled_scores import ScoringPass, expect_answers, expect_calls
from pttrainer.training.compiled_steps import step_programs
from pttrainer.training.learning_record import LearningRecord
from pttrainer.training.rl_health import RlHealth
from pttrainer.training.run_directory import resume_check, run_files
from pttrainer.training.run_directory.sample_log import SampleLog
from pttrainer.training.session import Monitors, RunStorage, Session
from pttrainer.training.throughput import Meter, peak_flops


def build_session(job: PostTrainJob, place: Place, remat: Remat | None = None) -> Session:
    """Build the run. Raises ConfigError, DataError, UserCodeError or StorageError if that is impossible."""
    run = claim(job, place)
    job = run.job
    if run.leader:
        experiment_trackers.check(job.spec.tracking)
    watchdog = _watchdog(run)
    loaded = load(run, remat)
    model = loaded.parts.model
    data = run_files.pinned_data(place, job)
    sample_log = SampleLog(place, leader=run.leader)
    scores = ScoringPass(model, loaded.meshes.trainer)
    context = _context(run, loaded, data, sample_log, scores)
    transfer = _transfer(run, context, loaded.meshes)
    algorithm = algorithms.build(job.spec.algorithm.kind, replace(context, transfer=transfer))
    train_program = program(job.spec, model, algorithm, algorithm.total_steps)
    layout = train_program.layout(loaded.meshes.trainer)
    origin = _fork_source(run)
    images = dict(algorithm.image_digests) if isinstance(algorithm, HasImages) else {}
    if run.resumed is not None:
        resume_check.compare_images(images, run.place)
    if run.leader:
        made_of = lineage(loaded, train_program.frozen_mask, origin)
        _write_lineage(run, data, made_of | ({"images": images} if images else {}))
    policy = CheckpointPolicy(job.spec.checkpoint, place, leader=run.leader)
    directory = path_of(f"{place.uri}/{run_directory.CHECKPOINTS}")
    checkpoints = Checkpoints(directory, policy, run.reporter.note, place.fence)
    lean = None if remat is None else replace(train_program, model=replace(model, remat="full"))
    whole = all_params(model, loaded.frozen, train_program.abstract_state(layout))
    evaluates_first = job.spec.evaluation.at_start and run.resumed is None
    early = _first_programs(algorithm, scores, whole, evaluates_first=evaluates_first)
    programs = step_programs(train_program, layout, algorithm, loaded.frozen, lean, run.reporter.note, early)
    if not evaluates_first and (job.spec.evaluation.every_steps or job.spec.evaluation.at_end):
        expect_calls(algorithm, scores, whole, programs.expected, held_out=True)
    state, first, record = _state(run, loaded, train_program, layout, checkpoints, algorithm, origin)
    record.first = record.first or weight_digests(state)
    policy.resumed(checkpoints.steps(), first, record.good)
    metrics = MetricsLog(place, first, tensorboard=job.spec.tensorboard.enabled) if run.leader else None
    if metrics is not None:
        metrics.trackers = experiment_trackers.start(job, place, metrics.last_step, run.reporter.note)
    storage = RunStorage(checkpoints, policy, sample_log, metrics, context.finished)
    monitors = _monitors(job.spec, model, watchdog)
    return Session(run, loaded, algorithm, programs, storage, monitors, transfer, state, first, record)


def _write_lineage(run: ClaimedRun, data: DataSpec, made_of: Mapping[str, Any]) -> None:
    """Record what the run is made of, and log what changed since the last attempt."""
    step = None if run.resumed is None else run.resumed.at.step
    for change in run_files.write_lineage(run.place, run.job, data, made_of, step):
        run.reporter.note(f"changed since the last attempt: {change}")


def _first_programs(
    algorithm: Algorithm, scores: ScoringPass, whole: Params, *, evaluates_first: bool
) -> BackgroundCompile | None:
    """Begin to compile what is needed before the first step. Return what the step's program has to wait for.

    On a CPU all that compiles shares a few cores, so what is needed first is compiled first.
    """
    answers, is_cpu = None, jax.default_backend() == "cpu"
    if evaluates_first:
        answers = expect_answers(algorithm, model_params(whole), scores.mesh, is_first=True)
    last = expect_calls(algorithm, scores, whole, answers if is_cpu else None, held_out=False)
    if evaluates_first:
        last = expect_calls(algorithm, scores, whole, last, held_out=True)
    return last if is_cpu else None


def _watchdog(run: ClaimedRun) -> Watchdog:
    """Start the watchdog of this process, with heartbeats if there are others."""
    process, hang_timeout_s = jax.process_index(), run.job.spec.run_policy.hang_timeout_seconds
    heartbeats = Heartbeats(run.place, process) if jax.process_count() > 1 else None
    return Watchdog(run.reporter.beat, run.place, process, hang_timeout_s, heartbeats=heartbeats)


def _monitors(spec: PostTrainJobSpec, model: Model, watchdog: Watchdog) -> Monitors:
    """Return the monitors that a job's algorithm has a use for."""
    rl_health = RlHealth() if spec.algorithm.learns_from_rewards else None
    return Monitors(watchdog, Meter(model, peak_flops(spec.accelerator)), loss_spikes.of_job(spec), rl_health)


def _transfer(run: ClaimedRun, context: Context, meshes: Meshes) -> WeightSync | RemoteEngine | None:
    spec, reporter = run.job.spec, run.reporter
    if spec.rollout.separate is not None and spec.rollout.vllm is not None:
        return vllm_samplers(context, spec.rollout.vllm)
    if spec.rollout.separate is not None:
        return remote_engine(context)
    if meshes.sampler is None:
        return None
    if jax.process_count() > 1:
        raise ConfigError(
            "spec.rollout.placement: disaggregated: needs one process that drives all devices, and this run has "
            f"{jax.process_count()}; accepted: colocated; hint: pathways: {{enabled: true}}"
        )
    reporter.note(f"{meshes.trainer.size} devices train, {meshes.sampler.size} sample")
    return WeightSync(context.model, meshes.trainer, meshes.sampler, partial(sharding.put, meshes.sampler))


def _context(
    run: ClaimedRun,
    loaded: PlacedModel,
    data: DataSpec,
    sample_log: SampleLog,
    scores: ScoringPass,
) -> Context:
    mesh, parts = loaded.meshes.trainer, loaded.parts
    messages = leader_messages.of_run()

    return Context(
        spec=run.job.spec.model_copy(update={"data": data}),
        model=parts.model,
        mesh=mesh,
        chat=parts.chat,
        score=scores,
        initial_params=loaded.initial_params,
        save_samples=sample_log.save,
        note=run.reporter.note,
        alive=run.reporter.alive,
        leader=run.leader,
        run=run.place,
        directory=parts.directory,
        messages=messages,
        share=run.share,
        finished=FinishedRollouts(run.place, messages, run.reporter.note, run.reporter.alive, leader=run.leader),
    )


def _state(
    run: ClaimedRun,
    loaded: PlacedModel,
    train_program: Program,
    layout: Layout,
    checkpoints: Checkpoints,
    algorithm: Algorithm,
    origin: ForkSource | None,
) -> tuple[TrainState, int, LearningRecord]:
    """Return the state to start from, the steps already done, and the record of this run's own steps.

    The state is the newest good checkpoint, else the fork's checkpoint, else the initial state.
    """
    spec, reporter = run.job.spec.checkpoint, run.reporter
    reporter.stage("restoring")
    like = train_program.abstract_state(layout)
    restored = checkpoints.restore(like)
    total = algorithm.total_steps
    if restored is not None:
        _check_length(restored.step, total, f"{checkpoints.uri(restored.step)}: is of step {restored.step}")
        done = ", the last one: there is nothing left to train" if restored.step == total else ""
        reporter.note(f"resuming after step {restored.step}{done}")
        reporter.checkpoint(restored.step, checkpoints.uri(restored.step))
        algorithm.restore(restored.algorithm)
        state = _with_new_block(restored.state, train_program, layout)
        return state, restored.step, learning_record.from_json(restored.record)
    reporter.stage("loading")
    if origin is None or spec.fork is None:
        return _first_state(loaded.trained(), train_program, layout, algorithm), 0, LearningRecord()
    is_whole = spec.fork.state == "full"
    reporter.note(f"forking from {origin.uri} ({'full state' if is_whole else 'weights'})")
    if not is_whole:
        reference = None if train_program.reference is None else loaded.trained()  # as the fixed one: the job's model
        weights = fork.restore_weights(origin, like)
        return _first_state(weights, train_program, layout, algorithm, reference), 0, LearningRecord()
    forked = fork.restore_full(origin, like, algorithm.state().keys())
    _check_length(forked.step + 1, total, f"{fork.FIELD}.uri: {origin.uri}: has done {forked.step} steps")
    algorithm.restore(forked.algorithm)
    return _with_new_block(forked.state, train_program, layout), forked.step, LearningRecord()


def _with_new_block(state: TrainState, train_program: Program, layout: Layout) -> TrainState:
    """Return the state with a new head that proposes tokens, if the job has one and the checkpoint has not."""
    if train_program.block is None or state.block is not None:
        return state
    return state._replace(block=jax.jit(train_program.block.new_state, out_shardings=layout.state.block)())


def _check_length(least: int, total: int, what: str) -> None:
    """Refuse a job whose last step is already done: it would export at once."""
    if total < least:
        raise ConfigError(
            f"{what}, and this job has {total}; accepted: at least {least}; hint: raise spec.training.steps or epochs"
        )


def _first_state(
    params: Params, train_program: Program, layout: Layout, algorithm: Algorithm, reference: Params | None = None
) -> TrainState:
    """Return the state before the first step, with these weights (donated) and the critic's initial weights.

    reference: the weights (donated) of one that follows the policy, if it does not begin as these.
    """
    first: Callable[..., TrainState] = jax.jit(
        train_program.new_state,
        out_shardings=layout.state,
        donate_argnums=(0,),
        donate_argnames=("critic", "reference"),
    )
    critic = None
    if isinstance(algorithm, HasCriticInit) and layout.state.critic is not None:
        critic = algorithm.first_critic(layout.state.critic.params)
    return first(params, critic=critic, reference=reference)


def _fork_source(run: ClaimedRun) -> ForkSource | None:
    """Return the checkpoint that the run forks from; the one that an earlier attempt used, if it recorded one."""
    spec = run.job.spec.checkpoint.fork
    if spec is None:
        return None
    recorded = run_files.read_lineage(run.place).get("fork") or {}
    source = fork.find_source(spec, recorded.get("step"))
    return source if recorded.get("uri", "").startswith(source.directory) else fork.find_source(spec, None)
