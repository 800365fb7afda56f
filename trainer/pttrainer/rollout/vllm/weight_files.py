"""New weights as files for vLLM to read: each version in a directory of its own, complete before it is announced.

    <weightsDirectory>/posttrain-<run>/<attempt>-<n>/     an export: Hugging Face's layout, or PEFT's of an adapter

The attempt is random, so a name is never used twice: neither by a restarted run, nor by a server that keeps adapters by
name. What an earlier attempt left is removed, and a version as soon as the next is read. Of several processes that
train the leader writes, and the others take part in gathering the weights (`take_part`).
"""

import secrets
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from pttrainer.checkpoint import model_export
from pttrainer.checkpoint.model_export import BaseModelRef, ExportWriter, TokenizerFiles
from pttrainer.errors import ConfigError
from pttrainer.models import Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.vllm.weight_transfer import TensorList
from pttrainer.runtime.io.directory import Directory


class WeightVersion(NamedTuple):
    """A version of the weights. name: the adapter's name on a server, or that of all weights."""

    name: str
    directory: Path
    is_adapter: bool
    listed: TensorList


class WeightFiles:
    """Writes weight versions. as_adapters: only the adapter of a LoRA job."""

    def __init__(self, context: Context, root: str | None, *, as_adapters: bool) -> None:
        self._context, self._as_adapters = context, as_adapters
        self._scratch = tempfile.TemporaryDirectory(prefix="posttrain-vllm-")  # removed with the engine
        run = context.run.uri.rstrip("/").rpartition("/")[2]
        self._home = Path(root or self._scratch.name) / f"posttrain-{run}"
        self._attempt, self._count = secrets.token_hex(4), 0
        try:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"spec.rollout.vllm.weightsDirectory: {root}: {error.strerror}; accepted: a directory that can be "
                "written; hint: add a volume to spec.volumes with a mountPath"
            ) from error

    def write(self, params: Params) -> WeightVersion:
        """Write the next version."""
        name = f"{self._attempt}-{self._count}"
        directory = self._home / name
        version = WeightVersion(f"{self._home.name}-{name}", directory, self._as_adapters, TensorList(directory))
        self._count += 1
        _export(self._context, directory, params, as_adapters=self._as_adapters)
        return version

    def keep_only(self, *versions: WeightVersion) -> None:
        """Remove the other versions."""
        kept = {version.directory for version in versions}
        for directory in self._home.iterdir():
            if directory not in kept:
                shutil.rmtree(directory, ignore_errors=True)


def take_part(context: Context, params: Params, *, as_adapters: bool) -> None:
    """Run the programs of `WeightFiles.write`, and write nothing."""
    _export(context, Path(), params, as_adapters=as_adapters)


def _export(context: Context, directory: Path, params: Params, *, as_adapters: bool) -> None:
    model, target, writer = context.model, Directory(directory), ExportWriter(context.fetch, context.leader)
    tokenizer_files = TokenizerFiles(context.tokenizer, context.chat.source)
    if as_adapters:
        base = BaseModelRef(context.spec.model.uri, context.spec.model.revision)
        model_export.export_adapters(target, model, base, model.trained(params), tokenizer_files, writer)
    else:
        model_export.export(target, model, params, tokenizer_files, writer)
