"""How the weights are updated."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import DataUri, Fraction, NonNegativeInt, PositiveInt, SpecModel

AxisSize = Annotated[int, Field(ge=1, le=100_000)] | Literal["auto"]


class Optimizer(SpecModel):
    """The update rule and its numbers; unset ones are those that its authors or language-model recipes agree on."""

    name: Literal["adamw", "adafactor", "muon", "lion"] = "adamw"
    """The update rule. `adamw` is what recipes are tuned for; `lion` keeps half of its state, `adafactor` next to
    none; `muon` orthogonalises the updates of the layers' matrices and leaves the rest to AdamW."""
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    """Peak learning rate. Unset: 2e-5 for sft, 1e-6 for dpo and grpo (full fine-tuning of 1–70 B models), and ten
    times that for adapters; a tenth for lion, whose every step moves every weight by the whole rate."""
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Decay of the first moment. Unset: 0.9; for muon 0.95, the momentum of its matrices."""
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Decay of the second moment. Unset: 0.95, which recovers faster from loss spikes than 0.999; for lion 0.99, the
    decay of its momentum. For muon it is that of the AdamW beside it."""
    eps: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Added to AdamW's denominator. Unset: 1e-8."""
    weight_decay: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Decoupled weight decay on matrices; fine-tuning recipes use none."""
    max_grad_norm: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Gradients are scaled down to this global norm."""


class Schedule(SpecModel):
    """The learning rate over the run."""

    kind: Literal["constant", "linear", "cosine"] = "cosine"
    """Shape after warm-up; the decay always ends at the run's last step."""
    warmup_fraction: Fraction = 0.03
    """Share of the steps that warm up linearly from 0."""
    final_fraction: Fraction = 0.1
    """Final learning rate as a share of the peak (linear and cosine)."""


class Lora(SpecModel):
    """Low-rank adapters (arXiv 2106.09685)."""

    rank: PositiveInt = 16
    """Rank of the update."""
    alpha: Annotated[float, Field(gt=0.0, le=65536.0)] = 32.0
    """The update is scaled by alpha / rank."""
    targets: Literal["all-linear", "attention", "mlp"] = "all-linear"
    """Which matrices get adapters; all linear layers match full fine-tuning most closely. In Qwen 3 MoE these are also
    the router and every expert's (`mlp`: the experts alone); in gpt-oss those of attention alone, as in PEFT."""
    embeddings: bool = False
    """Adapters on embedding and head too, as a new vocabulary or language may need. They cost memory: the head's
    gradient is computed whole. A head that is the embedding shares its adapter."""
    rs_lora: bool = False
    """Scale by alpha / √rank instead (arXiv 2312.03732), which keeps large ranks learning."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of each adapter's inputs that training drops. Runs of few steps over much data need none, and each mask
    costs time; 0.05 to 0.1 where a small set is seen several times."""
    origin: Annotated[DataUri | None, Field(alias="from")] = None
    """Adapters in PEFT's layout to begin with, such as another run's export: `hf://`, `gs://` or `file://`. Rank,
    alpha, rsLora and targets must be theirs. Unset: fresh ones."""


class Quantization(SpecModel):
    """Storage of frozen weights (QLoRA, arXiv 2305.14314)."""

    weights: Literal["nf4", "int8"] = "nf4"
    """Format of the frozen linear layers (attention, MLP, experts): `nf4` takes 4.13 bits per weight, with the
    scales quantised again; `int8` 8 bits and a tenth of the error. Embedding, head, norms and routers are not."""


class Precision(SpecModel):
    """Number formats."""

    params: Literal["float32", "bfloat16"] = "float32"
    """Master weights and optimizer state; small learning rates vanish in bfloat16."""
    compute: Literal["bfloat16", "float32", "auto"] = "auto"
    """Activations and matrix products. `auto`: bfloat16 on TPU and GPU, float32 on CPU."""


class Parallelism(SpecModel):
    """Sizes of the device mesh's axes; `auto` fills what the others leave."""

    data: AxisSize = "auto"
    """Copies of the model (over slices, when there are several)."""
    fsdp: AxisSize = "auto"
    """Shards of weights and optimizer state; takes what is left."""
    tensor: AxisSize = "auto"
    """Shards of each layer's matrices; auto is 1."""
    sequence: AxisSize = "auto"
    """Shards of the sequence; auto is 1."""
    expert: AxisSize = "auto"
    """Shards of the experts of a mixture, and, as fsdp, of batch and other weights; auto is 1."""


class Ema(SpecModel):
    """An exponential moving average of the weights, evaluated and exported in their place."""

    decay: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.999
    """Share of the average that a step keeps; 0.999 averages over the last thousand steps or so. The first steps keep
    less (1 + t of 10 + t), so that a short run is not dominated by where it began."""


class Profile(SpecModel):
    """A trace of what devices and host do, for XProf and TensorBoard's profile plugin."""

    start: PositiveInt
    """The first step that is traced, counted from 1. Step 1 compiles: later ones show how training runs."""
    steps: Annotated[int, Field(ge=1, le=100)] = 3
    """How many steps are traced; a trace grows by megabytes a step, and slows the steps it shows."""


class Training(SpecModel):
    """Length, batch, optimizer and layout of the run."""

    steps: PositiveInt | None = None
    """Optimizer steps. Set this or `epochs`; neither: one epoch."""
    epochs: Annotated[float, Field(gt=0.0, le=10000.0)] | None = None
    """Passes over the training data."""
    batch_size: PositiveInt = 64
    """Sequences per optimizer step, over all devices (grpo: prompts × groupSize; dpo: two per pair)."""
    micro_batch_size: PositiveInt | None = None
    """Sequences per forward and backward pass, over all devices; the rest is accumulated. Unset: the batch."""
    sequence_length: Annotated[int, Field(ge=8, le=10_000_000)] = 1024
    """Longest row in tokens; for grpo, prompt and completion together."""
    optimizer: Optimizer = Optimizer()
    """The optimizer's numbers."""
    schedule: Schedule = Schedule()
    """The learning rate over the run."""
    lora: Lora | None = None
    """Train adapters instead of all weights."""
    quantization: Quantization | None = None
    """Keep frozen weights in few bits (needs `lora`)."""
    precision: Precision = Precision()
    """Number formats."""
    remat: Literal["auto", "none", "full"] = "auto"
    """Recompute activations in the backward pass. `auto`: full on TPU and GPU, none on CPU."""
    ema: Ema | None = None
    """Keep an average of the weights in float32, in checkpoints too; evaluation and export use it, rollouts do not.
    Unset: none."""
    neftune_alpha: Annotated[float, Field(gt=0.0, le=1000.0)] | None = None
    """NEFTune (arXiv 2310.05914): noise of at most alpha / √(tokens · width) on the embeddings of training inputs; 5 is
    the paper's smallest. Unset: none."""
    freeze: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=64)] = []
    """Weights that stay as they are: `embeddings`, `head`, `norms`, `layers.0-3`, or patterns of Hugging Face's names
    such as `model.layers.[0-3].*`. They get no update, no weight decay and, where whole, no optimizer state."""
    max_non_finite_steps: PositiveInt = 5
    """A step whose loss or gradient is not finite is skipped; after this many in a row the run stops and keeps the
    batch. Single ones come from single rows; five in a row have a cause that does not go away."""
    max_failed_steps: PositiveInt = 5
    """A step could not learn when it was skipped as not finite, when its rewards failed (no prompt has enough samples
    with one), or when it has no token to train on; after this many in a row the run stops. Rewards that are all equal
    are no failure. Five, as for steps that are not finite: each may take as long as the rewards' time limits allow."""
    min_learning_share: Fraction = 0.5
    """A run of which a smaller share of steps could learn fails instead of exporting. Half: what has learned from fewer
    is not the run that was asked for. At 0 one step that learned is enough; one it must be."""
    seed: NonNegativeInt = 0
    """Seed of everything random: weights, shuffling, sampling."""
    parallelism: Parallelism = Parallelism()
    """Layout over devices."""
    profile: Profile | None = None
    """Trace some steps into `tensorboard/plugins/profile/` of the run directory. Unset: none."""
