"""Claim the run directory and load the model onto its devices, before any algorithm is involved."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import jax

from ptapi import run_directory
from ptapi.accelerators import fewer_slices
from ptapi.run_directory import Generation, SlicesProgress
from ptapi.spec import PostTrainJob, Training
from pttrainer.checkpoint.fork import ForkSource
from pttrainer.errors import ConfigError, Preempted
from pttrainer.models import Model, Params
from pttrainer.models.loading.model_loader import LoadedModel, load_model
from pttrainer.models.loading.model_spec import check_routing
from pttrainer.models.lora.adapters import check_peft
from pttrainer.models.shapes import parameters
from pttrainer.models.shapes.structure import Remat
from pttrainer.rollout.disaggregated import device_meshes, placement
from pttrainer.rollout.disaggregated.device_meshes import Meshes
from pttrainer.runtime.distributed import logical_axes, processes, sharding
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting.progress import Reporter
from pttrainer.train_step.optimizer import freeze
from pttrainer.training.run_directory import resume_check, run_files
from pttrainer.training.run_directory.resume_check import Resumed


class ClaimedRun(NamedTuple):
    """A job and its run directory.

    leader: True if this process writes there; resumed: the progress of the run that is resumed, if any; share: which
    part of the job's slices trains.
    """

    job: PostTrainJob
    place: Place
    leader: bool
    reporter: Reporter
    resumed: Resumed | None = None
    share: Fraction = Fraction(1)


@dataclass(frozen=True)
class PlacedModel:
    """The model on its devices.

    shardings: of all weights; frozen: the weights that adapters are added to; changed: relative quantization error
    by matrix name.
    """

    parts: LoadedModel
    shapes: placement.Shapes
    meshes: Meshes
    shardings: Params
    frozen: Params | None
    changed: Mapping[str, float]

    def trained(self) -> Params:
        """Return the trained weights before the first step."""
        return self.parts.trained(self.shardings)

    def initial_params(self) -> Params:
        """Return the weights that the run starts from."""
        return self.parts.model.join_params(self.frozen, self.trained())


def claim(job: PostTrainJob, place: Place) -> ClaimedRun:
    """Record in the run directory which job owns it. Raises ConfigError, DataError or StorageError."""
    leader = processes.is_leader()
    resumed = resume_check.compare(job, place)  # again: another process may have written since
    changes = () if resumed is None else resumed.changes
    if leader:
        if resumed is not None and changes:
            run_files.record(place, resumed.at.step, ((x.field, x.was, x.now) for x in changes))
        run_files.claim(place, job)
        if resumed is None:
            run_files.remove_rollouts(place)
    slices = _slices(job, place)
    in_log = processes.is_progress_in_log()
    reporter = Reporter(place, job.metadata.uid or "", leader=leader, in_log=in_log, slices=slices)
    reporter.stage("loading")
    for change in changes:
        reporter.note(f"changed since the last attempt: {change}")
    share = Fraction(1)
    if slices is not None and len(slices.present) < slices.total:
        share = fewer_slices.share(job.spec, len(slices.present))
        spec = fewer_slices.on_slices(job.spec, len(slices.present))
        rows = spec.training.micro_batch_size
        reporter.note(f"{len(slices.present)} of {slices.total} slices: micro-batches of {rows} rows, the same batch")
        job = job.model_copy(update={"spec": spec})
    return ClaimedRun(job, place, leader, reporter, resumed, share)


def _slices(job: PostTrainJob, place: Place) -> SlicesProgress | None:
    """Return the slices of the generation in which a supervisor started this trainer; None without one."""
    number = processes.generation()
    if number is None:
        return None
    content = place.read(run_directory.GENERATION)
    generation = None if content is None else Generation.model_validate_json(content)
    if generation is None or generation.number != number:
        raise Preempted(f"generation {number} is over: nothing to save")
    total = job.spec.accelerator.slices
    return SlicesProgress(present=generation.slices, total=total, generation=number, restarts=generation.restarts)


def load(run: ClaimedRun, remat: Remat | None = None) -> PlacedModel:
    """Load the model, its device meshes and its frozen weights, and set the trainer's mesh as context.

    remat: the policy in place of `auto` on TPUs; a job for them may run on other devices. Raises ConfigError.
    """
    spec, note = run.job.spec, run.reporter.note
    training = spec.training
    if remat is not None and jax.default_backend() == "tpu":
        training = training.model_copy(update={"remat": remat})
    parts = load_model(
        spec.model, training, note, run_files.pinned_commits(run.place, run.job), has_head=spec.algorithm.reward is None
    )
    model = parts.model
    shapes = placement.shapes(spec, model, jax.device_count())
    meshes = device_meshes.meshes(shapes)
    _check_divisions(spec.training, model, meshes.trainer)
    check_routing(spec.rollout, model.config)
    if spec.export.format == "peft":
        check_peft(model.config, model.adapters, "spec.export.format: peft")
    jax.set_mesh(meshes.trainer)
    shardings = sharding.weight_shardings(meshes.trainer, model.abstract(), model.logical_axes())
    frozen = parts.frozen(shardings)
    changed = parts.quantization_errors.relative()
    if changed:
        note(_quantised(model, changed))
    return PlacedModel(parts, shapes, meshes, shardings, frozen, changed)


def _check_divisions(training: Training, model: Model, mesh: jax.sharding.Mesh) -> None:
    """Raise ConfigError if the mesh does not divide a batch or the experts."""
    logical_axes.check_batch(training.batch_size, training.micro_batch_size, sharding.mesh_size(mesh, "batch"))
    if model.config.vision is not None and mesh.shape["sequence"] > 1:
        raise ConfigError(
            f"spec.training.parallelism.sequence: {mesh.shape['sequence']}: not supported with spec.model.images yet; "
            "accepted: 1"
        )
    experts = model.config.experts
    logical_axes.check_experts(mesh.shape["expert"], None if experts is None else experts.count)


def _quantised(model: Model, changed: Mapping[str, float]) -> str:
    each = ", ".join(f"{name} {error:.2%}" for name, error in changed.items())
    return f"frozen weights quantized to {model.quantization}: relative error {each}"


def lineage(loaded: PlacedModel, frozen_mask: Any, origin: ForkSource | None) -> dict[str, Any]:
    """Return what the run is made of, besides its job."""
    parts, adapters = loaded.parts, loaded.parts.origin
    meshes = {"mesh": loaded.shapes.trainer, "samplerMesh": loaded.shapes.sampler}
    changed = dict(loaded.changed)
    return {
        "modelCommit": parts.commit,
        **({} if adapters is None else {"adaptersFrom": {"uri": adapters.uri, "commit": adapters.commit}}),
        "parameters": parameters.count(parts.model.config),
        "trainedParameters": freeze.trainable_count(parts.model.trained(parts.model.abstract()), frozen_mask),
        "devices": {
            "count": jax.device_count(),
            "kind": jax.devices()[0].device_kind,
            "processes": jax.process_count(),
        },
        **{name: dict(zip(logical_axes.MESH_AXES, shape, strict=True)) for name, shape in meshes.items() if shape},
        "remat": parts.model.remat,
        "precision": {"params": parts.model.param_dtype, "compute": parts.model.compute_dtype},
        **({"quantization": {"weights": parts.model.quantization, "relativeError": changed}} if changed else {}),
        **({} if origin is None else {"fork": {"uri": origin.uri, "step": origin.step}}),
    }
