"""How completions are sampled during reinforcement learning and evaluation."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import (
    AbsolutePath,
    AcceleratorType,
    EnvName,
    Fraction,
    HttpUrl,
    Image,
    LearningRate,
    ModelUri,
    NonNegativeInt,
    PositiveInt,
    Revision,
    SpecModel,
    Text,
)

MAX_REPLICAS = 64
StopString = Annotated[str, Field(min_length=1, max_length=256)]
Proposals = Annotated[int, Field(ge=1, le=16)]


class NgramLookup(SpecModel):
    """Proposes tokens that followed the same text earlier in the prompt or completion; needs no model."""

    tokens: Proposals = 4
    """Proposed tokens per pass of the model. 4: the end of longer proposals is seldom accepted."""
    longest: Annotated[int, Field(ge=1, le=16)] = 4
    """Longest suffix of the newest tokens to look for in the text; the longest match is used."""


class DraftModel(SpecModel):
    """Proposals of a smaller model with the same tokenizer."""

    uri: ModelUri
    """The draft model's weights. They are not trained."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` draft."""
    tokens: Proposals = 4
    """Proposed tokens per pass of the model. 4: the end of longer proposals is seldom accepted."""


class BlockDrafts(SpecModel):
    """Proposals of a small head on the model, trained beside it: all from one pass."""

    tokens: Proposals = 4
    """Proposed tokens per pass of the model. 4: the end of longer proposals is seldom accepted."""
    learning_rate: LearningRate = 1e-2
    """Of the head alone (AdamW, constant). 1e-2: it is small, begins at nothing, and learned faster than with 1e-3."""


class Speculative(SpecModel):
    """Speculative decoding: exactly one of these is set."""

    ngram: NgramLookup | None = None
    """Prompt lookup: for completions that repeat themselves or copy from the prompt."""
    draft: DraftModel | None = None
    """A draft model."""
    block: BlockDrafts | None = None
    """A head that learns from the run's own samples."""


class Vllm(SpecModel):
    """Access to vLLM for `engine: vllm`, and how its weights are updated."""

    endpoint: HttpUrl | None = None
    """The server's root, such as `http://vllm:8000` (no `/v1`). Unset: vLLM runs in the samplers' pods (`placement:
    separate`), or inside the trainer's process, from the package `vllm` of its image."""
    image: Image | None = None
    """Image of samplers with pods of their own. Unset: vLLM 0.32.0's, for GPUs or TPUs."""
    model: Text | None = None
    """The model's name on the server. Unset: the first that the server lists."""
    api_key_env: EnvName | None = None
    """The environment variable with the server's API key; set it from a Secret in `env`. Unset: no key is sent."""
    weights_directory: AbsolutePath | None = None
    """Directory where the trainer writes new weights (for LoRA, the adapter) for vLLM: one volume, mounted at this path
    in the trainer's pod and in the server's. Required with `endpoint` and with `placement: separate`. Unset: a
    temporary directory."""
    concurrency: Annotated[int, Field(ge=1, le=4096)] = 256
    """Concurrent requests, each for all samples of a prompt. vLLM queues those that it cannot run yet."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=86400.0)] = 600.0
    """Longest wait for one prompt's samples, for new weights to load, and for a lost server to return."""
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    """How often a rollout is retried after the server is lost; then the run ends, and resumes from its checkpoint when
    it is restarted."""
    tolerance: Annotated[float, Field(gt=0.0, le=10.0)] = 0.1
    """After every weight update vLLM scores and continues a text of the job, and its log-probs must match the trainer's
    within this mean difference, in nats per token; otherwise the run ends, because weights, model or temperature
    differ. Different number formats cause 0.01 to 0.03."""
    memory_share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """vLLM's share of a device's memory. Unset: 0.4 inside the trainer's process, because training needs the rest, and
    vLLM's own default in pods of its own."""


class SamplerAccelerator(SpecModel):
    """The chips of each sampler."""

    type: AcceleratorType
    """`v6e-4`, `v5p-8`, … or `cpu-1`; also of several hosts, such as `v6e-16`, for a model that one host's chips do
    not hold: with the native engine, and with vLLM on GPUs."""


class Separate(SpecModel):
    """Samplers in pods of their own."""

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """How many samplers there are. Each has all weights, and chips of its own."""
    accelerator: SamplerAccelerator | None = None
    """The chips of each sampler. Unset: as the job's."""
    engine: Literal["native", "vllm"] | None = None
    """What samples there. Unset: `rollout.engine`."""


class Rollout(SpecModel):
    """Sampling of completions."""

    max_new_tokens: PositiveInt = 512
    """Longest completion in tokens."""
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    """Sampling temperature. 1, so that the sampled policy is the trained one."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling; 1 is off, because truncation would renormalise on the sampler's side only."""
    top_k: NonNegativeInt = 0
    """Sample among the k likeliest; 0 is off, for the same reason."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Sample among tokens at least this share as likely as the likeliest; 0 is off, for the same reason."""
    min_new_tokens: NonNegativeInt = 0
    """Suppress end tokens before this many tokens; 0 is off, because the trainer's distribution has no such rule."""
    stop: Annotated[list[StopString], Field(max_length=16)] = []
    """Strings that end a completion, in addition to the model's end tokens; they may span token boundaries."""
    slots: PositiveInt | None = None
    """Most completions that the native engine samples at once; a finished one frees its slot. The samples do not depend
    on it. Unset: as many as fit in memory, at most 256 per chip (64 on a CPU), because more are hardly faster."""
    speculative: Speculative | None = None
    """Propose some tokens and verify them in one pass of the model; the samples are the same. Unset: off, because it
    pays only if many proposals are accepted (`speculation/accepted_share`)."""
    engine: Literal["native", "vllm"] = "native"
    """`native` runs the training model itself; `vllm` uses vLLM; the loss corrects for its slightly different
    log-probs."""
    vllm: Vllm | None = None
    """vLLM's settings; required for `engine: vllm`."""
    placement: Literal["colocated", "disaggregated", "separate"] = "colocated"
    """`colocated` samples on the training chips: no weights move. `disaggregated` splits chips (or whole slices) into
    training and sampling chips, so that both can work at once (`maxStaleness`); weights move after every update that
    samples depend on. It needs one process: one host, or Pathways, which `pathways.enabled: auto` then takes.
    `separate` samples in pods of their own (`separate`), which have other chips, get new weights over the network and
    may fail without the trainer; the trainer may have several hosts."""
    separate: Separate | None = None
    """The samplers' pods; required with `placement: separate`."""
    sampler_share: Fraction | None = None
    """Share of the chips (or of the slices, if there are several) that sample, when disaggregated: a multiple of 1/n,
    where n is the number of hosts (on one host: chips) along the longest side of the slice's shape. Unset: half."""
    max_staleness: NonNegativeInt = 0
    """How many optimizer steps the sampling weights are behind a batch's first update, once the run has taken that many
    steps. 0 is fully on-policy: sampler and trainer take turns. More needs `disaggregated` or `separate`: the next
    batches are sampled while this one trains, always with the same lag, and importance weights correct for it. Each
    `updatesPerBatch` beyond the first keeps one more copy of the weights on the sampling chips. With
    `inFlightUpdates`: how far any token may be behind."""
    in_flight_updates: bool = False
    """Samples outlive weight updates, with grpo and ppo: twice a batch's groups are in progress, a batch is the first
    half that is complete, and the others go on with the next weights. So no step waits for its longest sample. Each
    token keeps the log-prob of the weights that drew it, importance weights correct token by token, and no trained
    token is older than `maxStaleness`. The batches follow from the samples and not from the clock. False: every sample
    is of one version of the weights."""
    routing_replay: bool = False
    """For mixtures of experts, with grpo and ppo: record which experts the sampler's routers choose, and use the same
    in scoring and training, where routers still learn by the weights of the chosen ones (arXiv 2510.11370). So no
    token's log-prob jumps because rounding, or an update, tips a choice over. False: each pass chooses anew."""

    @property
    def sampling_engine(self) -> Literal["native", "vllm"]:
        """Return what samples, in the trainer or in the samplers' pods."""
        return self.engine if self.separate is None else self.separate.engine or self.engine

    def steps_ahead(self, updates: int) -> int:
        """Return how many optimizer steps sampling is ahead of training; updates: of a batch."""
        if not self.in_flight_updates:
            return self.max_staleness
        return 0 if self.placement == "colocated" else updates
