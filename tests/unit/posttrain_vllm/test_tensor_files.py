"""What vLLM's workers accept of an update: the tensors that the trainer lists, to the last bit, and nothing else."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from posttrain_vllm.tensor_files import Expected, TransferError, verified
from pttrainer.rollout.vllm.weight_transfer import TensorList, changed_layers, update_info

ARRAYS = {
    "model.embed_tokens.weight": np.arange(6, dtype=np.float32).reshape(3, 2),
    "model.layers.0.a.weight": np.ones((2, 2), np.float16),
    "model.layers.0.b.weight": np.zeros(5, np.float32),
    "model.layers.10.a.weight": np.full(3, 7.0, np.float32),
}


@pytest.fixture
def tensors(tmp_path: Path) -> list[Expected]:
    """A version of two files, as the trainer lists it."""
    names = list(ARRAYS)
    save_file({name: ARRAYS[name] for name in names[:1]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: ARRAYS[name] for name in names[1:]}, tmp_path / "model-00002-of-00002.safetensors")
    return sorted(TensorList(tmp_path).tensors())


def test_what_the_trainer_lists_is_found_to_the_bit(tmp_path: Path, tensors: list[Expected]) -> None:
    assert [tensor.name for tensor in tensors] == sorted(ARRAYS)
    for tensor, content in verified(str(tmp_path), tensors):
        wanted = ARRAYS[tensor.name]
        assert tensor.dtype == str(wanted.dtype)
        np.testing.assert_array_equal(np.frombuffer(content, wanted.dtype).reshape(wanted.shape), wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "0" * 64}, r"model.embed_tokens.weight in model-00001-of-00002.safetensors has another sha256"),
        ({"name": "lm_head.weight"}, "has no tensor lm_head.weight"),
        ({"shape": (2, 3)}, r"is F32 \[3, 2\], and the trainer has float32 \[2, 3\]"),
        ({"dtype": "bfloat16"}, r"and the trainer has bfloat16 \[3, 2\]"),
        ({"file": "other.safetensors"}, "cannot read .*other.safetensors: .*No such file"),
        ({"file": "../model.safetensors"}, "is no name of a file"),
    ],
)
def test_what_is_not_the_trainer_s_is_refused(
    tmp_path: Path, tensors: list[Expected], change: dict[str, str], words: str
) -> None:
    with pytest.raises(TransferError, match=rf"^posttrain-files: .*{words}.*; nothing was changed$"):
        verified(str(tmp_path), [tensors[0]._replace(**change), *tensors[1:]])


def test_workers_share_the_checksums_and_each_tensor_is_some_worker_s(tmp_path: Path, tensors: list[Expected]) -> None:
    for wrong in range(len(tensors)):
        listed = [tensor._replace(sha256="0" * 64) if i == wrong else tensor for i, tensor in enumerate(tensors)]
        refusing = []
        for rank in range(3):
            try:
                verified(str(tmp_path), listed, rank, 3)
            except TransferError:
                refusing.append(rank)
        assert refusing == [wrong % 3]


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"\x08\0\0\0\0\0\0\0no json!"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, tensors: list[Expected], content: bytes) -> None:
    (tmp_path / tensors[0].file).write_bytes(content)
    with pytest.raises(TransferError, match=r"cannot read .*; nothing was changed"):
        verified(str(tmp_path), tensors)


def test_a_layer_is_given_whole_and_only_where_it_changed(tensors: list[Expected]) -> None:
    new = [tensor._replace(sha256="new") if tensor.name == "model.layers.0.b.weight" else tensor for tensor in tensors]
    assert [tensor.name for tensor in changed_layers(new, tensors)] == [
        "model.layers.0.a.weight",
        "model.layers.0.b.weight",
    ]
    assert changed_layers(tensors, tensors) == []
    assert update_info(Path("/shared"), [])["names"] == []
