"""Start a run from a checkpoint of another one.

The checkpoint must fit exactly: every array is compared by name, shape and format before any is read, and differences
are reported in terms of the job (another rank, another optimizer, another model). The step that a run forked from is in
its lineage, so an attempt that died before its first checkpoint starts from the same one.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from ptapi import run_directory
from ptapi.spec import Fork
from pttrainer.checkpoint.store import BLOCK, Restored, path_of, read_params, read_state
from pttrainer.errors import ConfigError
from pttrainer.models import Params
from pttrainer.train_step.state import TrainState

FIELD = "spec.checkpoint.fork"
SHOWN = 5
"""Most differences to list."""


class ForkSource(NamedTuple):
    """The checkpoint that a fork starts from."""

    directory: str
    step: int

    @property
    def uri(self) -> str:
        """Return the URI, as the lineage records it."""
        return f"{self.directory}/{self.step}"


def find_source(fork: Fork, pinned: int | None) -> ForkSource:
    """Return the checkpoint that the fork names. pinned: the step that an earlier attempt started from."""
    directory, step = _split(fork.uri)
    with _open(directory) as manager:
        steps = sorted(manager.all_steps())
    wanted = step if step is not None else pinned if pinned in steps else None
    if not steps or (wanted is not None and wanted not in steps):
        there = f"accepted: {', '.join(map(str, steps))}" if steps else "there is none"
        raise ConfigError(f"{FIELD}.uri: {fork.uri}: no such checkpoint in {directory}; {there}")
    return ForkSource(directory, steps[-1] if wanted is None else wanted)


def restore_full(source: ForkSource, like: TrainState, state_names: Collection[str]) -> Restored:
    """Restore the whole checkpoint with the shardings of `like`.

    state_names: the names of what this job's algorithm keeps; an older checkpoint may have fewer.
    """
    _compare(source, like, ("params", "optimizer", "critic", "entropy", "reference"))
    with _open(source.directory) as manager:
        restored, problem = read_state(manager, source.step, like)
    if restored is None:
        raise ConfigError(f"{FIELD}.uri: {source.uri}: cannot be read: {problem}; hint: name an earlier step")
    other = sorted(restored.algorithm.keys() - state_names)
    if other:
        raise ConfigError(
            f"{FIELD}.uri: {source.uri}: is from another algorithm, with state {', '.join(other)} where this one has "
            f"{', '.join(sorted(state_names))}; accepted: the same algorithm; hint: state: weights"
        )
    return restored


def restore_weights(source: ForkSource, like: TrainState) -> Params:
    """Restore the trained weights of the checkpoint with the shardings of `like`."""
    _compare(source, like, ("params",))
    return read_params(path_of(source.directory), source.step, like.params)[0]


def _split(uri: str) -> tuple[str, int | None]:
    """Return the `checkpoints/` directory of a run, and the step if the URI names one."""
    head, _, last = uri.rstrip("/").rpartition("/")
    if last == run_directory.CHECKPOINTS:
        return uri.rstrip("/"), None
    if last.isdigit() and head.endswith(f"/{run_directory.CHECKPOINTS}"):
        return head, int(last)
    return f"{uri.rstrip('/')}/{run_directory.CHECKPOINTS}", None


def _open(directory: str) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
        path_of(directory),
        options=ocp.CheckpointManagerOptions(read_only=True),
        item_handlers={
            "state": ocp.StandardCheckpointHandler(),
            BLOCK: ocp.StandardCheckpointHandler(),
            "run": ocp.JsonCheckpointHandler(),
        },
    )


def _compare(source: ForkSource, like: TrainState, parts: tuple[str, ...]) -> None:
    with _open(source.directory) as manager:
        stored = manager.item_metadata(source.step)["state"]
    tree = None if stored is None else stored.tree
    if tree is None:
        raise ConfigError(f"{FIELD}.uri: {source.uri}: cannot be read: it has no description of its arrays")
    is_array = lambda x: hasattr(x, "shape")  # noqa: E731
    there = {x.name: _form(x) for x in jax.tree.leaves(tree, is_leaf=is_array) if x.name.split(".")[0] in parts}
    paths = jax.tree_util.tree_flatten_with_path(like)[0]
    here = {name: _form(x) for path, x in paths if (name := _name(path)).split(".")[0] in parts}
    differing = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    if differing:
        lines = "; ".join(
            f"{name}: {there.get(name, 'absent')} there, {here.get(name, 'absent')} here" for name in differing[:SHOWN]
        )
        more = f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        raise ConfigError(f"{FIELD}.uri: {source.uri}: does not fit this job: {lines}{more}; hint: {_hint(differing)}")


def _hint(differing: list[str]) -> str:
    if all(name.startswith("critic") for name in differing):
        return "use the same algorithm.ppo.critic, or state: weights with critic.uri: that run's export/critic"
    if all(name.startswith(("entropy", "reference")) for name in differing):
        return "use the same entropyBonus and referenceSync of algorithm.grpo, or state: weights"
    if all(name.startswith("optimizer") for name in differing):
        return "use the same training.optimizer, or state: weights"
    if any("_lora" in name for name in differing):
        return (
            "use the same training.lora (rank and targets) and training.vision as that run, or export it and start "
            "from the export"
        )
    return "model.uri must be of the same shape as that run's"


def _form(x: Any) -> str:
    return f"{jax.numpy.dtype(x.dtype).name}[{', '.join(map(str, x.shape))}]"


def _name(path: tuple[Any, ...]) -> str:
    parts = (getattr(key, "name", getattr(key, "key", getattr(key, "idx", None))) for key in path)
    return ".".join(str(part) for part in parts)
