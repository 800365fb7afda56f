"""Saved state: Orbax checkpoints that count only when they are complete.

A checkpoint holds the train state (weights, optimizer, step), the algorithm's state (data cursor, rollout buffer) and a
digest of every array. Orbax writes in the background and renames at the end, so a kill leaves either the old set or the
new one. Restoring goes from the newest backwards: one that cannot be read, or whose digests differ (a file damaged
later), is reported, removed and skipped. Random state needs no saving: every key is folded from (seed, step, …).
"""

import json
import logging
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax import Array

from pttrainer.errors import ConfigError, StorageError
from pttrainer.models import Params
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.distributed.checksum import digest
from pttrainer.runtime.io.place import no_fence
from pttrainer.runtime.io.storage import split
from pttrainer.runtime.io.storage_errors import is_service_problem, is_storage_problem, storage_reason
from pttrainer.train_step.block_learner import BlockState
from pttrainer.train_step.state import TrainState

BLOCK = "block"
"""A checkpoint's item with the head that proposes tokens, if the run has one, and the name of what is known of it."""
# Orbax logs tracebacks of its threads; relevant errors are raised and reported once here.
logging.getLogger("absl").setLevel(logging.CRITICAL)


class Preservation(Protocol):
    """Decides which checkpoints are kept, in Orbax's interface."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Return one decision per checkpoint, ascending by step."""
        ...


class Restored(NamedTuple):
    """The state to resume from. step: optimizer steps already done; record: of those that could learn."""

    step: int
    state: TrainState
    algorithm: dict[str, Any]
    record: Mapping[str, Any]


class Checkpoints:
    """The `checkpoints/` directory of a run, on a disk or on gs://."""

    def __init__(
        self,
        path: Path | epath.Path,
        keep: int | Preservation,
        note: Callable[[str], None],
        fence: Callable[[], None] = no_fence,
    ) -> None:
        """Open the directory. keep: how many of the newest to keep, or a policy; fence: as of a `Place`."""
        self._path, self._note, self._fence = path, note, fence
        stays: dict[str, Any] = {"max_to_keep": keep} if isinstance(keep, int) else {"preservation_policy": keep}
        options = ocp.CheckpointManagerOptions(**stays, create=True, temporary_path_class=_committing(path, fence))
        if processes.is_leader():
            self._remove_unfinished()
        self._manager = ocp.CheckpointManager(path, options=options)

    def save(
        self, step: int, state: TrainState, algorithm: Mapping[str, Any], record: Mapping[str, Any] | None = None
    ) -> None:
        """Start to save; return as soon as the arrays are copied and may be donated."""
        self._fence()
        self.wait()  # Orbax would, too; the sizes of a checkpoint and of free space are known only then
        self._check_space(step, state)
        digests = _digests(state._replace(block=None))
        run: dict[str, Any] = {"algorithm": dict(algorithm), "digests": digests, "record": dict(record or {})}
        if state.block is not None:
            run[BLOCK] = {"digests": _digests(state.block), "shapes": _shapes(state.block)}
        run["checksum"] = _checksum(run)
        arrays = {"state": ocp.args.StandardSave(_stored(state))}
        if state.block is not None:
            arrays[BLOCK] = ocp.args.StandardSave(state.block._asdict())
        items = ocp.args.Composite(**arrays, run=ocp.args.JsonSave(run))
        self._storage(lambda: self._manager.save(step, args=items, force=True))

    def wait(self) -> None:
        """Wait until everything that was started is committed. Raises StorageError if it cannot be written."""
        self._storage(self._manager.wait_until_finished)

    def committed(self) -> int | None:
        """Return the newest step that would survive a kill now."""
        if self._manager.is_saving_in_progress():
            return None
        self._storage(self._manager.check_for_errors)
        newest: int | None = self._manager.latest_step()
        return newest

    def uri(self, step: int) -> str:
        """Return the URI of a step's checkpoint."""
        return _uri(self._path / str(step))

    def restore(self, like: TrainState) -> Restored | None:
        """Restore the newest good checkpoint with the shardings of `like` (abstract arrays); None without one."""
        for step in sorted(self._manager.all_steps(), reverse=True):
            restored, problem = read_state(self._manager, step, like)
            if restored is not None and not processes.any_process(bool(problem)):
                return restored
            self._note(f"warning: checkpoint of step {step} is damaged and skipped: {problem or 'on another process'}")
            self._fence()
            self._manager.delete(step)
        return None

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def close(self) -> None:
        """Stop the background writer."""
        self._manager.close()

    def _check_space(self, step: int, state: TrainState) -> None:
        """Refuse to start what cannot be finished: Orbax's writers print tracebacks when cut off."""
        if not isinstance(self._path, Path):  # a bucket has no size limit
            return
        newest = self._manager.latest_step()
        local = sum(shard.data.nbytes for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards)
        # Fresh optimizer state is zeros and compresses, so only a checkpoint that was written says what one takes.
        needed = local // 2 if newest is None else _size(self._path / str(newest))
        free = shutil.disk_usage(self._path).free
        if free < needed:
            raise StorageError(
                f"{_uri(self._path)}: no space left for the checkpoint of step {step}: it takes about "
                f"{needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free; earlier checkpoints are intact; hint: free "
                "space or lower spec.checkpoint.keep, then run again"
            )

    def _remove_unfinished(self) -> None:
        """Remove what a kill or a full disk left half-written and is never read. On gs:// Orbax does it."""
        if not isinstance(self._path, Path):
            return
        self._fence()
        for unfinished in self._path.glob("*.orbax-checkpoint-tmp"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def _storage(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            if is_storage_problem(error) or (not isinstance(self._path, Path) and is_service_problem(error)):
                self._remove_unfinished()
                raise StorageError(
                    f"{_uri(self._path)}: checkpoint cannot be written: {storage_reason(error)}; those before it are "
                    "intact; hint: free space or lower spec.checkpoint.keep, then run again"
                ) from error
            raise


def _committing(path: Path | epath.Path, fence: Callable[[], None]) -> type[Any]:
    """Return Orbax's temporary path type for this storage, which checks the fence before it commits."""
    kinds = ocp.path.atomicity
    kind = kinds.AtomicRenameTemporaryPath if isinstance(path, Path) else kinds.CommitFileTemporaryPath

    async def finalize(self: Any) -> None:
        fence()
        await kind.finalize(self)

    return type("Fenced", (kind,), {"finalize": finalize})


def read_state(manager: ocp.CheckpointManager, step: int, like: TrainState) -> tuple[Restored | None, str]:
    """Return the content of a step's checkpoint, or a description of what is wrong with it."""
    items = ocp.args.Composite(state=ocp.args.StandardRestore(_stored(like)), run=ocp.args.JsonRestore())
    try:
        loaded = manager.restore(step, args=items)
        run = dict(loaded.run)
        checksum = run.pop("checksum", None)
        state = TrainState(**loaded.state)
        digests = _digests(state)
        head = _read_block(manager, step, like.block, run.get(BLOCK))  # older checkpoints have none
        state = state._replace(block=head)
    except Exception as error:
        return None, f"{type(error).__name__}: {_first_line(error)}"
    if checksum != _checksum(run):
        return None, "its data position differs from what was saved"
    if digests != run["digests"]:
        return None, "its arrays differ from what was saved"
    if state.block is not None and _digests(state.block) != run[BLOCK]["digests"]:
        return None, f"the arrays of its {BLOCK} differ from what was saved"
    return Restored(step, state, run["algorithm"], run.get("record", {})), ""  # older checkpoints have none


def _stored(state: TrainState) -> dict[str, Any]:
    """Return the parts that a run has; without a critic, the format of runs before critics existed.

    The head that proposes tokens is an item of its own: no sample depends on it, so a run goes on without it.
    """
    return {name: part for name, part in state._replace(block=None)._asdict().items() if part is not None}


def _read_block(
    manager: ocp.CheckpointManager, step: int, like: BlockState | None, stored: Mapping[str, Any] | None
) -> BlockState | None:
    """Return the head that proposes tokens; None if the run or the checkpoint has none of its sizes: it begins anew."""
    if like is None or stored is None or stored["shapes"] != _shapes(like):
        return None
    items = ocp.args.Composite(**{BLOCK: ocp.args.StandardRestore(like._asdict())})
    return BlockState(**manager.restore(step, args=items)[BLOCK])


def _shapes(block: BlockState) -> list[list[int]]:
    return [list(leaf.shape) for leaf in jax.tree.leaves(block)]


def path_of(uri: str) -> Path | epath.Path:
    """Return a directory in Orbax's form: its own kind of path on gs://, which needs gcsfs."""
    scheme, path = split(uri)
    return Path(path) if scheme == "file" else epath.Path(uri)


def _uri(path: Path | epath.Path) -> str:
    return f"file://{path}" if isinstance(path, Path) else str(path)


def read_params(
    path: Path | epath.Path, step: int | None, like: Params, *, averaged: bool = False
) -> tuple[Params, int]:
    """Read only the weights of a step (the newest if None), or their average, with the shardings of `like`.

    Return them and the step. Raises ConfigError if there is no such checkpoint, or it is damaged.
    """
    manager = ocp.CheckpointManager(path, options=ocp.CheckpointManagerOptions(read_only=True))
    steps = sorted(manager.all_steps())
    if not steps or (step is not None and step not in steps):
        there = f"accepted: {', '.join(map(str, steps))}" if steps else "it holds none"
        raise ConfigError(f"{_uri(path)}: no checkpoint{'' if step is None else f' of step {step}'}; {there}")
    step = steps[-1] if step is None else step
    item: dict[str, Any] = {"optimizer": {"ema": like}} if averaged else {"params": like}
    restore_args = ocp.checkpoint_utils.construct_restore_args(item)
    only = ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True)
    try:
        loaded = manager.restore(step, args=ocp.args.Composite(state=only, run=ocp.args.JsonRestore()))
    except Exception as error:
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise ConfigError(f"{_uri(path)}/{step}: cannot be read: {reason}; hint: name an earlier step") from error
    params: Params = loaded.state["optimizer"]["ema"] if averaged else loaded.state["params"]
    digests = _digests(params)  # of a state, those of the weights come first, and those of their average next
    first = len(digests) if averaged else 0
    if digests != loaded.run["digests"][first : first + len(digests)]:
        raise ConfigError(f"{_uri(path)}/{step}: its arrays differ from what was saved; hint: name an earlier step")
    return params, step


def _checksum(run: Mapping[str, Any]) -> int:
    """Return the checksum of everything that is no array: JSON stays readable with any digit changed."""
    return zlib.crc32(json.dumps(run, sort_keys=True).encode())


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def _digests(state: TrainState | BlockState | Params) -> list[int]:
    return [int(x) for x in np.asarray(_digest_leaves(state))]


@jax.jit
def _digest_leaves(state: TrainState | BlockState | Params) -> Array:
    """Return one number per array."""
    return jnp.stack([digest(leaf) for leaf in jax.tree.leaves(state)])


def weight_digests(state: TrainState) -> list[int]:
    """Return digests of the trained weights; reuses the program that checkpoints compile."""
    return _digests(state)[: len(jax.tree.leaves(state.params))]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:120]
