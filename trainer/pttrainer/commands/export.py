"""`python -m pttrainer export`: write a checkpoint's weights in Hugging Face's layout, even if the run is not done."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ptapi import run_directory
from ptapi.spec import PostTrainJob
from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.errors import ConfigError
from pttrainer.runtime.io import storage
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.io.place import Place

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from pttrainer.models.loading.model_loader import LoadedModel

MAXTEXT = ("maxtext", "maxtext-unscanned")
"""Layouts of MaxText, by its `scan_layers`."""


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser(
        "export", help="write a checkpoint's weights as safetensors, with tokenizer and config"
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="URI",
        help="a run directory (its newest checkpoint), or <run>/checkpoints/<step>",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the directory to write")
    parser.add_argument(
        "--merge-lora",
        action="store_true",
        help="merge adapters into the weights; by default only they are written, in PEFT's layout",
    )
    parser.add_argument(
        "--layout",
        choices=("huggingface", *MAXTEXT),
        default="huggingface",
        help="MaxText's are Orbax checkpoints of all weights; of a run that has ended, those of its export",
    )
    parser.set_defaults(run=lambda options: exit_code_of(lambda: run(options)))


class Restored(NamedTuple):
    """The trained weights of a checkpoint, the model that they belong to, and where weights lie on the devices."""

    parts: "LoadedModel"
    trained: Any
    layout: Any
    mesh: "Mesh"
    step: int


def run(options: argparse.Namespace) -> None:
    """Restore only the weights and export them; of a run with adapters, the adapters, or both merged."""
    if options.layout in MAXTEXT:
        _to_maxtext(options.checkpoint, options.out.absolute(), scan=options.layout == "maxtext")
        return
    place, job, _ = _opened(options.checkpoint)
    if options.merge_lora and job.spec.training.lora is None:
        raise ConfigError(
            f"--merge-lora: {options.checkpoint}: the run has no adapters; accepted: runs with spec.training.lora"
        )
    import jax

    from pttrainer.checkpoint.model_export import BaseModelRef, ExportWriter, TokenizerFiles, export, export_adapters
    from pttrainer.training.run_directory import model_card

    parts, trained, layout, _, step = restored(options.checkpoint)
    model, target = parts.model, Directory(options.out.absolute())
    tokenizer_files = TokenizerFiles(parts.tokenizer, parts.chat.source)
    if model.adapters is not None and not options.merge_lora:
        base = BaseModelRef(job.spec.model.uri, parts.commit)
        export_adapters(target, model, base, trained, tokenizer_files, ExportWriter(jax.device_get))
    else:
        export(
            target,
            model,
            model.join_params(parts.frozen(layout), trained),
            tokenizer_files,
            ExportWriter(jax.device_get),
        )
    model_card.write(place, target, job, step)
    note(f"{options.out}: step {step} of {place.uri}")


def _to_maxtext(uri: str, out: Path, *, scan: bool) -> None:
    """Write all weights of a run or checkpoint, adapters merged, as MaxText has them."""
    import jax

    from pttrainer.checkpoint import maxtext_export
    from pttrainer.checkpoint.model_export import TokenizerFiles
    from pttrainer.commands.model.loaded_model import open_model

    parts, params, _ = open_model(uri.rstrip("/"))
    tokenizer_files = TokenizerFiles(parts.tokenizer, parts.chat.source)
    maxtext_export.export(out, parts.model, params, tokenizer_files, jax.device_get, scan=scan)
    # The caller may move what is written, as ptctl does.
    note(f"{uri} for MaxText: load_parameters_path=…/{maxtext_export.ITEMS} scan_layers={str(scan).lower()}")


def restored(checkpoint: str, field: str = "--checkpoint") -> Restored:
    """Return the weights of a checkpoint, averaged ones if the run keeps an average.

    field: what names it in errors. Raises ConfigError.
    """
    place, job, wanted = _opened(checkpoint, field)
    if job.spec.algorithm.reward is not None:
        raise ConfigError(
            f"{field}: {checkpoint}: is of a reward model, which scores text and writes none; accepted: checkpoints of "
            "other algorithms; hint: the run's own export/ is the reward model"
        )
    import jax

    from pttrainer.checkpoint.store import path_of, read_params
    from pttrainer.models.loading.model_loader import load_model
    from pttrainer.runtime.distributed import sharding
    from pttrainer.training.run_directory import run_files as runs

    parts = load_model(job.spec.model, job.spec.training, note, runs.pinned_commits(place, job))
    mesh = sharding.make_mesh((1, jax.device_count(), 1, 1))
    model = parts.model
    layout = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    shapes = model.trained(model.abstract()), model.trained(layout)
    is_averaged = job.spec.training.ema is not None

    def stored(x: Any, where: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, jax.numpy.float32 if is_averaged else x.dtype, sharding=where)

    like = jax.tree.map(stored, *shapes)
    trained, step = read_params(path_of(f"{place.uri}/{run_directory.CHECKPOINTS}"), wanted, like, averaged=is_averaged)
    trained = jax.tree.map(lambda x, shape: x.astype(shape.dtype), trained, shapes[0])
    return Restored(parts, trained, layout, mesh, step)


def _opened(checkpoint: str, field: str = "--checkpoint") -> tuple[Place, PostTrainJob, int | None]:
    directory, step = find(checkpoint)
    place = storage.place(directory)
    return place, _job(place, checkpoint, field), step


def find(uri: str) -> tuple[str, int | None]:
    """Return the run directory and step (None: the newest) that a URI names."""
    if not uri.startswith(("file://", "gs://")):
        raise ConfigError(f"--checkpoint: {uri}: not a run directory; accepted: file://, gs://")
    parts = uri.rstrip("/").split("/")
    if parts[-1].isdigit() and parts[-2] == run_directory.CHECKPOINTS:
        return "/".join(parts[:-2]), int(parts[-1])
    return "/".join(parts[:-1] if parts[-1] == run_directory.CHECKPOINTS else parts), None


def _job(place: Place, uri: str, field: str) -> PostTrainJob:
    from pttrainer.training.job_file import check_job

    content = place.read(run_directory.SPEC)
    if content is None:
        raise ConfigError(
            f"{field}: {uri}: no {run_directory.SPEC} in {place.uri}; accepted: a run directory, or a step in it"
        )
    return check_job(content.decode())
