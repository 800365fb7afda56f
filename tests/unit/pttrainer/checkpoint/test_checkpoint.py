"""Checkpoints: whole or not at all, and damage is noticed."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptapi.spec import BlockDrafts
from pttrainer.checkpoint.store import Checkpoints
from pttrainer.errors import Preempted, StorageError
from pttrainer.train_step.block_learner import block_learner
from pttrainer.train_step.state import TrainState
from pttrainer.training import loop
from pttrainer.training.learning_record import LearningRecord
from pttrainer.training.session import Session


def state(value: float) -> TrainState:
    # Random, so that a file holds every byte of it and damage cannot hide in what compresses away.
    random = jax.random.normal(jax.random.key(int(value)), (64, 256))
    return TrainState(
        {"w": random, "b": jnp.full((3,), value)}, ({"mu": random * 2},), jnp.int32(value), jnp.zeros(2, jnp.int32)
    )


def like() -> TrainState:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shape: Any = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)  # noqa: E731
    return jax.tree.map(shape, state(0))


def saved(path: Path, *steps: int, keep: int = 5) -> None:
    checkpoints = Checkpoints(path, keep, print)
    for step in steps:
        checkpoints.save(step, state(step), {"cursor": step})
    checkpoints.wait()
    assert checkpoints.committed() == steps[-1]
    checkpoints.close()


def restored(path: Path) -> tuple[Any, list[str]]:
    notes: list[str] = []
    checkpoints = Checkpoints(path, 5, notes.append)
    checkpoint = checkpoints.restore(like())
    checkpoints.close()
    return checkpoint, notes


def test_a_proposing_head_is_restored_where_it_fits_and_else_left_out(tmp_path: Path) -> None:
    learners = [block_learner(BlockDrafts(tokens=tokens), 4, seed=tokens) for tokens in (2, 3)]
    head = learners[0].new_state()
    checkpoints = Checkpoints(tmp_path, 5, print)
    checkpoints.save(1, state(1)._replace(block=head), {})
    checkpoints.wait()
    checkpoints.close()
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shape: Any = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)  # noqa: E731
    for learner, wanted in ((learners[0], head), (learners[1], None), (None, None)):
        block = None if learner is None else jax.tree.map(shape, learner.new_state())
        again = Checkpoints(tmp_path, 5, pytest.fail)
        checkpoint = again.restore(like()._replace(block=block))
        again.close()
        assert checkpoint is not None
        jax.tree.map(np.testing.assert_array_equal, checkpoint.state, state(1)._replace(block=wanted))


def data_files(path: Path, step: int) -> list[Path]:
    """Files that hold arrays, the largest first."""
    files = [file for file in (path / str(step) / "state").rglob("*") if file.is_file()]
    return sorted(files, key=lambda file: -file.stat().st_size)


def test_what_is_restored_is_what_was_saved_bit_for_bit(tmp_path: Path) -> None:
    saved(tmp_path, 3, 7)
    checkpoint, notes = restored(tmp_path)
    assert (checkpoint.step, checkpoint.algorithm, notes) == (7, {"cursor": 7}, [])
    jax.tree.map(np.testing.assert_array_equal, checkpoint.state, state(7))
    assert isinstance(checkpoint.state, TrainState)


def test_a_run_that_is_stopped_right_after_a_checkpoint_does_not_save_it_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 5, print)
    session = SimpleNamespace(
        first_step=0,
        state=state(4),
        storage=SimpleNamespace(checkpoints=checkpoints, policy=SimpleNamespace(began=lambda: None)),
        algorithm=SimpleNamespace(state=lambda: {"cursor": 4}),
        reporter=SimpleNamespace(stage=lambda name: None),
        wait_for_checkpoint=checkpoints.wait,
        record=LearningRecord(),
    )
    checkpoints.save(4, state(4), {"cursor": 4})
    for done in (4, 5):
        with pytest.raises(Preempted, match=f"at step {done}: checkpoint saved"):
            loop._stop(cast(Session, session), done, "SIGTERM")
    assert checkpoints.steps() == [4, 5]
    checkpoints.close()


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, keep=2)
    assert sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit()) == [2, 3]


def test_an_empty_directory_holds_nothing_to_restore(tmp_path: Path) -> None:
    assert restored(tmp_path) == (None, [])


def truncate(path: Path) -> None:
    for file in data_files(path, 7)[:1]:
        file.write_bytes(file.read_bytes()[:100])


def remove_metadata(path: Path) -> None:
    (path / "7" / "state" / "_METADATA").unlink()


def remove_files(path: Path) -> None:
    for file in data_files(path, 7):
        file.unlink()


def flip_a_bit(path: Path) -> None:
    file = data_files(path, 7)[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, remove_metadata, remove_files, flip_a_bit])
def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(tmp_path: Path, damage: Any) -> None:
    saved(tmp_path, 3, 7)
    damage(tmp_path)
    checkpoint, notes = restored(tmp_path)
    assert checkpoint.step == 3
    jax.tree.map(np.testing.assert_array_equal, checkpoint.state, state(3))
    assert len(notes) == 1
    assert notes[0].startswith("warning: checkpoint of step 7 is damaged and skipped: ")


def test_a_run_whose_checkpoints_are_all_damaged_starts_again(tmp_path: Path) -> None:
    saved(tmp_path, 7)
    remove_files(tmp_path)
    checkpoint, notes = restored(tmp_path)
    assert checkpoint is None
    assert len(notes) == 1


def test_a_checkpoint_that_was_never_committed_does_not_count(tmp_path: Path) -> None:
    saved(tmp_path, 3, 7)
    (tmp_path / "7").rename(tmp_path / "7.orbax-checkpoint-tmp")
    checkpoint, notes = restored(tmp_path)
    assert (checkpoint.step, notes) == (3, [])
    assert not (tmp_path / "7.orbax-checkpoint-tmp").exists()


def test_a_step_can_be_saved_again_after_its_checkpoint_was_damaged(tmp_path: Path) -> None:
    saved(tmp_path, 3, 7)
    truncate(tmp_path)
    checkpoints = Checkpoints(tmp_path, 5, lambda note: None)
    checkpoints.restore(like())
    checkpoints.save(7, state(9), {})
    checkpoints.wait()
    checkpoints.close()
    assert int(restored(tmp_path)[0].state.step) == 9


def test_a_checkpoint_that_would_not_fit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 3)
    checkpoints = Checkpoints(tmp_path, 5, print)
    monkeypatch.setattr(
        "pttrainer.checkpoint.store.shutil.disk_usage", lambda path: type("Usage", (), {"free": 10_000})
    )
    with pytest.raises(StorageError, match=r"no space left for the checkpoint of step 4: .* 0\.0 MB are free"):
        checkpoints.save(4, state(4), {})
    checkpoints.close()
    assert restored(tmp_path)[0].step == 3


def test_a_checkpoint_is_restored_onto_another_mesh(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    mesh = jax.make_mesh((8,), ("fsdp",))
    split = jax.NamedSharding(mesh, jax.P("fsdp"))
    whole = jax.NamedSharding(mesh, jax.P())

    def place(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=split if x.shape == (64, 256) else whole)

    checkpoints = Checkpoints(tmp_path, 5, print)
    checkpoint = checkpoints.restore(jax.tree.map(place, state(0)))
    checkpoints.close()
    assert checkpoint.state.params["w"].sharding == split
    jax.tree.map(np.testing.assert_array_equal, checkpoint.state, state(3))


def files_of(path: Path, step: int) -> list[str]:
    directory = path / str(step)
    return sorted(str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file())


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink], ids=["truncated", "a bit flipped", "deleted"])
def test_damage_to_any_file_is_either_noticed_or_without_effect(tmp_path: Path, damage: Any) -> None:
    """Every file of a checkpoint in turn: never a crash, never numbers that were not saved."""
    saved(tmp_path / "good", 3, 7)
    skipped = []
    for name in files_of(tmp_path / "good", 7):
        shutil.copytree(tmp_path / "good", tmp_path / "copy")
        damage(tmp_path / "copy" / "7" / name)
        checkpoint, notes = restored(tmp_path / "copy")
        assert checkpoint.step in (3, 7), name
        assert checkpoint.algorithm == {"cursor": checkpoint.step}, name
        jax.tree.map(np.testing.assert_array_equal, checkpoint.state, state(checkpoint.step))
        if checkpoint.step == 3:
            skipped.append(name)
            assert len(notes) == 1, (name, notes)
        shutil.rmtree(tmp_path / "copy")
    assert len(skipped) >= 3
    assert "run/metadata" in skipped
