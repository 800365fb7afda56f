"""How the weights are updated."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ptapi.spec.base import AdapterUri, Fraction, LearningRate, NonNegativeInt, PositiveInt, SpecModel

AxisSize = Annotated[int, Field(ge=1, le=100_000)] | Literal["auto"]


class Optimizer(SpecModel):
    """The update rule and its hyperparameters; unset ones follow its authors or common language-model recipes."""

    name: Literal["adamw", "adafactor", "muon", "lion"] = "adamw"
    """The update rule. Recipes are tuned for `adamw`; `lion` keeps half of its state, `adafactor` almost
    none; `muon` orthogonalises the updates of the layers' matrices and uses AdamW for the rest."""
    learning_rate: LearningRate | None = None
    """Peak learning rate. Unset: 2e-5 for sft, 1e-6 for all others (full fine-tuning of 1–70 B models), and ten
    times that for adapters; a tenth for lion, because each of its steps moves every weight by the full rate."""
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Decay of the first moment. Unset: 0.9; for muon 0.95, the momentum of its matrices."""
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Decay of the second moment. Unset: 0.95, which recovers faster from loss spikes than 0.999; for lion 0.99, the
    decay of its momentum. For muon: the decay of its AdamW part."""
    eps: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Term added to AdamW's denominator. Unset: 1e-8."""
    weight_decay: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Decoupled weight decay on matrices; fine-tuning recipes use none."""
    max_grad_norm: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Largest global norm of the gradients; larger ones are scaled down."""


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

    rank: Annotated[int, Field(ge=1, le=16384)] = 16
    """Rank of the update."""
    alpha: Annotated[float, Field(gt=0.0, le=65536.0)] = 32.0
    """The update is scaled by alpha / rank."""
    targets: Literal["all-linear", "attention", "mlp"] = "all-linear"
    """The matrices with adapters; all linear layers match full fine-tuning most closely. In Qwen 3 MoE they include the
    router and every expert (`mlp`: the experts alone); in gpt-oss only the attention's, as in PEFT."""
    embeddings: bool = False
    """Also add adapters to embedding and head, as a new vocabulary or language may need. They cost memory: the head's
    gradient is computed in full. A tied head shares the embedding's adapter."""
    rs_lora: bool = False
    """Scale by alpha / √rank instead (arXiv 2312.03732), which lets large ranks learn."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout rate of each adapter's inputs. Runs of few steps over much data need none, and each mask costs time; use
    0.05 to 0.1 for several passes over a small data set."""
    origin: Annotated[AdapterUri | None, Field(alias="from")] = None
    """Initial adapters in PEFT's layout, such as another run's export: `hf://`, `gs://` or `file://`. Rank, alpha,
    rsLora and targets must match. Unset: new adapters."""


class Quantization(SpecModel):
    """Storage of frozen weights (QLoRA, arXiv 2305.14314)."""

    weights: Literal["nf4", "int8"] = "nf4"
    """Format of the frozen linear layers (attention, MLP, experts): `nf4` takes 4.13 bits per weight, with the scales
    quantised again; `int8` 8 bits and a tenth of the error. Embedding, head, norms and routers are not quantised."""


class Precision(SpecModel):
    """Number formats."""

    params: Literal["auto", "float32", "bfloat16"] = "auto"
    """Master weights and optimizer state; small learning rates vanish in bfloat16. `auto`: float32; with `lora`, whose
    adapters are float32 in any case, frozen weights are kept in the format of `compute`, in which they are read."""
    compute: Literal["bfloat16", "float32", "auto"] = "auto"
    """Activations and matrix products. `auto`: bfloat16 on TPU and GPU, float32 on CPU."""


class Parallelism(SpecModel):
    """Sizes of the device mesh's axes; `auto` resolves to what the others leave."""

    data: AxisSize = "auto"
    """Copies of the model (over slices, if there are several)."""
    fsdp: AxisSize = "auto"
    """Shards of weights and optimizer state; `auto` takes the remaining devices."""
    tensor: AxisSize = "auto"
    """Shards of each layer's matrices; auto is 1."""
    sequence: AxisSize = "auto"
    """Devices that share a row's tokens, for long rows, and split weights as fsdp does; auto is 1."""
    expert: AxisSize = "auto"
    """Shards of a mixture's experts and, like fsdp, of the batch and other weights; auto is 1."""


class Ema(SpecModel):
    """An exponential moving average of the weights, evaluated and exported in their place."""

    decay: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.999
    """Share of the average that a step keeps; 0.999 averages over about the last thousand steps. The first steps keep
    less ((1 + t) / (10 + t)), so that the initial weights do not dominate a short run."""


class Profile(SpecModel):
    """A trace of devices and host, for XProf and TensorBoard's profile plugin."""

    start: PositiveInt
    """The first traced step, counted from 1. Step 1 includes compilation: trace a later one."""
    steps: Annotated[int, Field(ge=1, le=100)] = 3
    """Number of traced steps; a trace grows by megabytes per step and slows those steps."""


class CircuitBreaker(SpecModel):
    """Ends a run of which too much fails around the model: rewards, judges, environments and their servers.

    A sample that failed so has no reward, teaches nothing and is counted; a run whose environment is half gone learns
    from the half that is easy to reach.
    """

    max_missing: Fraction = 0.5
    """Largest share of the last `samples` samples without a reward. Above it the run saves a checkpoint and ends, with
    the class of what failed most: a service that is gone is worth a restart, a user's code is not. 1: never."""
    samples: Annotated[int, Field(ge=1, le=10_000_000)] = 1024
    """How many of the last samples are looked at; with fewer the run goes on. A few steps' worth: one that waits for a
    server's restart is no reason to end."""


class Formats(NamedTuple):
    """Number formats without `auto`: of the weights in memory, of an export's, and of products."""

    params: str
    exported: str
    compute: str


class Training(SpecModel):
    """Length, batch, optimizer and layout of the run."""

    steps: PositiveInt | None = None
    """Optimizer steps. Set this or `epochs`; if neither is set: one epoch."""
    epochs: Annotated[float, Field(gt=0.0, le=10000.0)] | None = None
    """Passes over the training data."""
    batch_size: PositiveInt = 64
    """Sequences per optimizer step, over all devices (grpo: prompts × groupSize; dpo: two per pair)."""
    micro_batch_size: PositiveInt | None = None
    """Sequences per forward and backward pass, over all devices; the rest is accumulated. Unset: the batch."""
    sequence_length: Annotated[int, Field(ge=8, le=10_000_000)] = 1024
    """Longest row in tokens; for grpo, prompt and completion together."""
    optimizer: Optimizer = Optimizer()
    """The optimizer and its hyperparameters."""
    schedule: Schedule = Schedule()
    """The learning rate over the run."""
    lora: Lora | None = None
    """Train adapters instead of all weights."""
    quantization: Quantization | None = None
    """Quantise frozen weights (needs `lora`)."""
    precision: Precision = Precision()
    """Number formats."""
    remat: Literal[
        "auto", "none", "full", "save-context", "save-qkv-context", "offload-qkv", "offload-qkv-context",
        "offload-input", "offload-input-context",
    ] = "auto"  # fmt: skip
    """What of a layer's activations the backward pass computes again. `full`: all of them. `save-context`: all but
    attention's output (MaxText's `context`), so that attention runs forward once. `save-qkv-context`: nor queries, keys
    and values (its `query_proj`, `key_proj`, `value_proj`). `offload-qkv`: the same, with these three in host memory;
    `offload-qkv-context`: with all four there (its `offload`). `offload-input`: all of them, with the layers' inputs in
    host memory (its `decoder_layer_input`), for rows that fit no other way; `offload-input-context`: with attention's
    output there, too, so that attention runs forward once. `none`: only what is no product of weights (its
    `minimal_with_context`). `auto`: on TPUs the one that saves most and, by preflight's formula, leaves a fifth of a
    chip's memory free (`ptctl plan` names it; where the compiler refuses it, full); full on GPU, none on CPU."""
    ema: Ema | None = None
    """Keep a float32 average of the weights, also in checkpoints; evaluation and export use it, rollouts do not.
    Unset: none."""
    neftune_alpha: Annotated[float, Field(gt=0.0, le=1000.0)] | None = None
    """NEFTune (arXiv 2310.05914): noise of at most alpha / √(tokens · width) on the embeddings of training inputs; 5 is
    the paper's smallest. Unset: none."""
    freeze: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=64)] = []
    """Weights that are not trained: `embeddings`, `head`, `norms`, `layers.0-3`, or patterns of Hugging Face's names
    such as `model.layers.[0-3].*`. They get no update, no weight decay and, if entirely frozen, no optimizer state."""
    vision: Literal["frozen", "projector", "all", "lora"] = "frozen"
    """What is trained of a model's vision part, with `model.images`: nothing, since a tower has learned from far more
    pictures than a job has; the `projector` between tower and decoder; or `all`, for pictures unlike any it knows. With
    `training.lora`, `lora` adds adapters to the matrices of both, of the same rank, alpha and targets; those of the
    projector with `targets: all-linear`."""
    max_non_finite_steps: PositiveInt = 5
    """A step whose loss or gradient is not finite is skipped; after this many in a row the run stops and saves the
    batch. Single ones come from single rows; five in a row have a lasting cause."""
    max_failed_steps: PositiveInt = 5
    """A step fails if it is skipped as not finite, if its rewards fail (no prompt has enough samples with one), or if
    it has no token to train on; after this many in a row the run stops. Equal rewards are no failure. Five, as for
    steps that are not finite: each may take as long as the rewards' time limits allow."""
    min_learning_share: Fraction = 0.5
    """Least share of steps that must learn; below it the run fails instead of exporting. Half: a run that learned from
    fewer steps is not the requested run. At 0 a single step that learned is enough, and required."""
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    """When samples without a reward end the run, though its steps still learn from the others."""
    seed: NonNegativeInt = 0
    """Seed of everything random: weights, shuffling, sampling."""
    parallelism: Parallelism = Parallelism()
    """Layout over devices."""
    profile: Profile | None = None
    """Trace some steps into `tensorboard/plugins/profile/` of the run directory. Unset: none."""

    def formats(self, *, on_cpu: bool) -> Formats:
        """Return the number formats that `auto` stands for."""
        params, compute = self.precision.params, self.precision.compute
        if compute == "auto":
            compute = "float32" if on_cpu else "bfloat16"
        if params != "auto":
            return Formats(params, params, compute)
        return Formats("float32" if self.lora is None else compute, "float32", compute)
