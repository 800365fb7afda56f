"""The backend in vLLM's workers.

    init_weight_transfer_engine {directory}     can the server see the trainer's files? Forgets what was staged
    start_weight_update
    update_weights {directory, names, …}        verify the files and stage their tensors, in one call or several
    finish_weight_update                        load them: all workers have accepted them by then

Tensors have the names and the layout of the checkpoint, so vLLM's own loading applies (`load_weights`, layer by layer
into the tensors that are there). A layer must come whole, because vLLM keeps some of its tensors in one (q, k and v).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from .tensor_files import Expected, MappedTensor, TransferError, verified


@dataclass
class FileInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Where versions will lie."""

    directory: str


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Tensors of an update; lists are of the same length. files: names in the directory; sha256: of tensors' bytes."""

    directory: str
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    files: list[str]
    sha256: list[str]

    def expected(self) -> list[Expected]:
        """Return what the trainer says of each tensor. Raises TransferError if the lists differ in length."""
        try:
            rows = list(zip(self.names, self.dtype_names, self.shapes, self.files, self.sha256, strict=True))
        except ValueError as error:
            raise TransferError(f"lists of different lengths: {error}; nothing was changed") from error
        return [Expected(name, dtype, tuple(shape), file, sha256) for name, dtype, shape, file, sha256 in rows]


class FileTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """Loads files into the model of one worker."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._staged: list[MappedTensor] = []

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Forget what an earlier trainer staged. Raises TransferError if the directory cannot be seen here."""
        self._staged = []
        if not Path(init_info.directory).is_dir():
            raise TransferError(f"the server sees no directory {init_info.directory}")

    def start_weight_update(self) -> None:
        """Begin an update."""
        self._staged = []

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Verify tensors and stage them. Raises TransferError, and the model stays as it was."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Verify tensors and stage them."""
        parallel = self.parallel_config
        self._staged += verified(update_info.directory, update_info.expected(), parallel.rank, parallel.world_size)

    def finish_weight_update(self) -> None:
        """Load what was staged. Raises TransferError if that fails half-way: then the weights are of two versions."""
        staged, self._staged = self._staged, []
        if not staged:
            return
        try:
            self._load(staged)
        except Exception as error:
            raise TransferError(
                f"weights are half loaded ({type(error).__name__}: {error}); load all of them, or restart the server"
            ) from error

    def shutdown(self) -> None:
        """Forget what was staged."""
        self._staged = []

    def _load(self, staged: list[MappedTensor]) -> None:
        with torch.no_grad():
            initialize_layerwise_reload(self.model)
            try:
                self.model.load_weights((one.expected.name, _tensor(one)) for one in staged)
            finally:
                finalize_layerwise_reload(self.model, self.model_config)  # else the next update would fail, too
        if self.device.type == "cpu":
            _pack_heads(self.model)
        else:
            torch.accelerator.synchronize()


def _tensor(mapped: MappedTensor) -> torch.Tensor:
    dtype = getattr(torch, mapped.expected.dtype)
    return torch.frombuffer(mapped.content, dtype=torch.uint8).view(dtype).reshape(mapped.expected.shape)


def _pack_heads(model: torch.nn.Module) -> None:
    """Make a CPU's packed copy of each output head again.

    A head that is tied to the embedding has the new weights, but is not loaded itself, so that vLLM leaves the packed
    copy as it was, by which it multiplies.
    """
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
