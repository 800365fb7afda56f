"""What a run offers to its algorithm and to sampling: model, devices, tokenizer, scoring, reporting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from ptapi.spec import PostTrainJobSpec
from pttrainer.batch import Batch
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, Params
from pttrainer.runtime.distributed import sharding

if TYPE_CHECKING:
    from pttrainer.data.tokenization.chat_template import Chat
    from pttrainer.data.tokenization.tokenizer import Tokenizer
    from pttrainer.rollout.disaggregated.weight_sync import Transfer
    from pttrainer.runtime.io.storage import Place


@dataclass(frozen=True)
class Context:
    """What the loop offers.

    score(params, batch, temperature): log-probs of the batch's targets at its mask, [B, T] numpy (old, reference).
    initial_params(): the weights the run started from, loaded again (a frozen reference model).
    place(tree): global host arrays onto the mesh, rows split over devices. fetch(tree): back to every host.
    save_samples(step, rows): the sample table of a step in the run directory. note(text): a line for a person.
    alive(): what is waited for has a limit of its own, so that no hang is seen.
    leader: true on the one process that writes. run: the run directory. transfer: to the devices that only sample;
    None where those that train do.
    """

    spec: PostTrainJobSpec
    model: Model
    mesh: Mesh
    tokenizer: Tokenizer
    chat: Chat
    score: Callable[[Params, Batch, float], TokenStats]
    initial_params: Callable[[], Params]
    place: Callable[[Any], Any]
    fetch: Callable[[Any], Any]
    save_samples: Callable[[int, list[dict[str, Any]]], None]
    note: Callable[[str], None]
    alive: Callable[[], None]
    leader: bool
    run: Place
    transfer: Transfer | None = None

    @property
    def deliver(self) -> Callable[[Params], Params] | None:
        """Weights to the devices that only sample, as they are wanted there."""
        return None if self.transfer is None else self.transfer.deliver

    def rows_at_once(self, rows: int) -> int:
        """Rows of an evaluation batch: no more than there are, and a multiple of the devices that share them."""
        shards = sharding.mesh_size(self.mesh, "batch")
        return math.ceil(min(self.spec.evaluation.batch_size, rows) / shards) * shards
