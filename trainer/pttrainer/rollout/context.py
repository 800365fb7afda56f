"""The run as algorithms and sampling see it: model, devices, tokenizer, scoring, reporting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from ptapi.spec import PostTrainJobSpec
from pttrainer.batch import Batch
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, Params
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.leader_messages import LeaderMessages
from pttrainer.runtime.distributed.logical_axes import TOKENS_EACH
from pttrainer.runtime.tpu_tiles import filled_up

if TYPE_CHECKING:
    from pathlib import Path

    from pttrainer.data.tokenization.chat_template import Chat
    from pttrainer.data.tokenization.tokenizer import Tokenizer
    from pttrainer.rollout.disaggregated.finished_rollouts import FinishedRollouts
    from pttrainer.rollout.disaggregated.separate.remote_engine import RemoteEngine
    from pttrainer.rollout.disaggregated.weight_sync import WeightSync
    from pttrainer.runtime.io.place import Place

ROW_MULTIPLE = 64
"""Rows that are not packed are padded to a multiple of this: one compiled step for the whole run."""


@dataclass(frozen=True)
class Context:
    """The services of the training loop.

    score(params, batch, temperature): log-probs of the batch's targets at its mask, [B, T] numpy (old, reference).
    initial_params(): the weights the run started from, loaded again (a frozen reference model). save_samples(step,
    rows): write the sample table of a step to the run directory. note(text): log a line for people. alive(): signal
    that a wait with a limit of its own is no hang. leader: True on the one process that writes. run: the run directory.
    directory: the model's
    local files; None for random weights. transfer: to devices or pods that only sample; None if the training devices
    sample. messages: from the leader to all processes; None if there is one. share: which part of the job's slices
    there is (`accelerator.minSlices`); no device computes more rows at once than it would on all. finished: rollouts
    that survive a restart; None where nothing keeps them.
    """

    spec: PostTrainJobSpec
    model: Model
    mesh: Mesh
    chat: Chat
    score: Callable[[Params, Batch, float], TokenStats]
    initial_params: Callable[[], Params]
    save_samples: Callable[[int, list[dict[str, Any]]], None]
    note: Callable[[str], None]
    alive: Callable[[], None]
    leader: bool
    run: Place
    directory: Path | None = None
    transfer: WeightSync | RemoteEngine | None = None
    messages: LeaderMessages | None = None
    share: Fraction = Fraction(1)
    finished: FinishedRollouts | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self.chat.tokenizer

    def place(self, tree: Any) -> Any:
        """Move global host arrays onto the mesh, rows split over devices."""
        return sharding.put(self.mesh, tree)

    def fetch(self, tree: Any) -> Any:
        """Move arrays back to every host."""
        return sharding.fetch(tree)

    @property
    def deliver(self) -> Callable[[Params], Params] | None:
        """Return the function that moves weights to sampling devices in their format, if there are such devices."""
        return None if self.transfer is None else self.transfer.deliver

    def scoring_parts(self, batch: Batch) -> int:
        """Return in how many parts a step's batch is scored, so that no device has more rows than on all slices."""
        if self.share == 1:
            return 1
        rows, unit = len(batch.tokens_BT), sharding.mesh_size(self.mesh, "batch") * batch.samples
        return next(parts for parts in range(math.ceil(1 / self.share), rows + 1) if rows % (parts * unit) == 0)

    def row_width(self, longest: int) -> int:
        """Return the tokens of rows that hold so many each, at most `sequenceLength`: few lengths, few programs.

        Devices that share rows have whole tiles of them, as a TPU's kernel wants it.
        """
        devices = sharding.mesh_size(self.mesh, "sequence")
        multiple = ROW_MULTIPLE if devices == 1 else devices * TOKENS_EACH
        return min(self.spec.training.sequence_length, filled_up(longest, multiple))

    def rows_at_once(self, rows: int) -> int:
        """Return the rows of an evaluation batch: at most `rows`, rounded up to a multiple of the batch shards."""
        shards = sharding.mesh_size(self.mesh, "batch")
        return math.ceil(min(self.spec.evaluation.batch_size, rows) / shards) * shards
