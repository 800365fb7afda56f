"""How completions are sampled during reinforcement learning and evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import EnvName, Fraction, HttpUrl, ModelUri, NonNegativeInt, PositiveInt, SpecModel, Text

StopString = Annotated[str, Field(min_length=1, max_length=256)]
Proposals = Annotated[int, Field(ge=1, le=16)]


class NgramLookup(SpecModel):
    """Guesses that a completion goes on as its own text, prompt included, went on before: costs no model."""

    tokens: Proposals = 4
    """Tokens that are guessed for each pass of the model. 4: of longer runs the end seldom holds."""
    longest: Annotated[int, Field(ge=1, le=16)] = 4
    """Most of the newest tokens that are looked for in the text; the longest match counts."""


class DraftModel(SpecModel):
    """Guesses of a smaller model with the same tokenizer."""

    uri: ModelUri
    """Where the draft's weights are. They are not trained."""
    revision: Annotated[str, Field(max_length=1024)] | None = None
    """Branch, tag or commit of an `hf://` draft."""
    tokens: Proposals = 4
    """Tokens that are guessed for each pass of the model. 4: of longer runs the end seldom holds."""


class Speculative(SpecModel):
    """Speculative decoding: exactly one of these is set."""

    ngram: NgramLookup | None = None
    """Prompt lookup: for completions that repeat themselves or copy from the prompt."""
    draft: DraftModel | None = None
    """A draft model."""


class Vllm(SpecModel):
    """How `engine: vllm` is reached, and how its weights are renewed."""

    endpoint: HttpUrl | None = None
    """The server's root, such as `http://vllm:8000` (no `/v1`). Unset: vLLM runs inside the trainer's process, from the
    package `vllm` of its image."""
    model: Text | None = None
    """The model's name on the server. Unset: the first that the server lists."""
    api_key_env: EnvName | None = None
    """The environment variable that holds the server's key; give it a Secret's key in `env`. Unset: no key is sent."""
    weights_directory: Annotated[str, Field(max_length=1024, pattern=r"^(/[^/:]+)+$")] | None = None
    """Where new weights (of a LoRA job, the adapter) are laid down for vLLM to read: one volume, at this same path in
    the trainer's pod and in the server's. Unset, which an endpoint does not allow: a temporary directory."""
    concurrency: Annotated[int, Field(ge=1, le=4096)] = 256
    """Prompts that are asked at once; each asks for its whole group. vLLM queues what it cannot run yet."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=86400.0)] = 600.0
    """Longest wait for one prompt's samples, for new weights to be read, and for a server that went away to return."""
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    """How often a rollout is asked again after the server was lost; then the run ends, and goes on from its checkpoint
    when it is started again."""
    tolerance: Annotated[float, Field(gt=0.0, le=10.0)] = 0.1
    """After every renewal vLLM scores and continues a text of the job's own, and its log-probs must be the trainer's
    within this mean difference, in nats a token; else the run ends, because weights, model or temperature differ. The
    number formats of two programs differ by 0.01 to 0.03."""
    memory_share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Inside the trainer's process: vLLM's share of a device's memory. Unset: 0.4, because training needs the rest."""


class Rollout(SpecModel):
    """Sampling of completions."""

    max_new_tokens: PositiveInt = 512
    """Longest completion in tokens."""
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    """Training samples at 1, so that the sampled policy is the trained one."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling; 1 is off, because truncation renormalises on the sampler's side only."""
    top_k: NonNegativeInt = 0
    """Sample among the k likeliest; 0 is off, for the same reason."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Sample among tokens at least this share as likely as the likeliest; 0 is off, for the same reason."""
    min_new_tokens: NonNegativeInt = 0
    """No end token before so many tokens; 0 is off, because the trainer's distribution knows no such rule."""
    stop: Annotated[list[StopString], Field(max_length=16)] = []
    """Strings that end a completion, beside the model's end tokens; found wherever they fall between tokens."""
    slots: PositiveInt | None = None
    """Most completions sampled at once by the native engine; one that ends makes room for the next. The samples do not
    depend on it. Unset: what memory holds, at most 256 for each chip (64 on a CPU), because more are hardly faster."""
    speculative: Speculative | None = None
    """Guess some tokens and check them in one pass of the model; the samples are the same. Unset: off, because it pays
    only where many guesses hold (`speculation/accepted_share`)."""
    engine: Literal["native", "vllm"] = "native"
    """`native` runs the training model itself; `vllm` asks vLLM; the loss corrects for its slightly other log-probs."""
    vllm: Vllm | None = None
    """For `engine: vllm`, which needs it."""
    placement: Literal["colocated", "disaggregated"] = "colocated"
    """`colocated` samples on the chips that train: no copy of the weights moves. `disaggregated` splits chips (or whole
    slices) into those that train and those that sample, so that both can work at once (`maxStaleness`); weights move
    after every update that samples wait for. Needs one process: one host, or `pathways: {enabled: true}`."""
    sampler_share: Fraction | None = None
    """Share of the chips (of the slices, where there are several) that sample, when disaggregated: a multiple of one
    over the hosts (on one host the chips) along the longest side of the slice's shape. Unset: half."""
    max_staleness: NonNegativeInt = 0
    """How many optimizer steps the weights that a batch is sampled with are behind the batch's first update, after as
    many steps. 0 is fully on-policy: sampler and trainer take turns. More needs `disaggregated`: the next batches are
    sampled while this one trains, the same weights every time, and importance weights correct for it. Each
    `updatesPerBatch` beyond the first holds one more copy of the weights on the sampling chips."""
