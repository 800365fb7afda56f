"""Rewards of completions."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import (
    EnvName,
    HttpUrl,
    ModelUri,
    Name,
    PositiveInt,
    PythonCode,
    PythonName,
    Revision,
    SpecModel,
    Text,
)
from ptapi.spec.pods.services import ServiceName

BuiltinReward = Literal["gsm8k", "format", "math", "length", "code", "tool-use", "choice", "exact"]


class PythonReward(PythonCode):
    """A Python callable `reward(prompt, completion, row) -> float`, also `async def`."""

    function: PythonName = "reward"
    """The function in that file."""


class JudgeBudget(SpecModel):
    """Limits of a judge over the whole run; beyond them there is no reward. Cached replies are free."""

    calls: PositiveInt | None = None
    """Most requests, including retries."""
    tokens: PositiveInt | None = None
    """Most tokens of prompts and replies, as the service counts them."""


class JudgeReward(SpecModel):
    """A model behind an OpenAI-compatible endpoint that scores completions: at a `url`, or a `service`."""

    url: HttpUrl | None = None
    """The endpoint's base, such as `https://api.example.com/v1`; `/chat/completions` is added."""
    model: Text | None = None
    """The model's name there; required with `url`."""
    service: ServiceName | None = None
    """The service of the job that serves the judge's model."""
    prompt: Annotated[str, Field(min_length=1, max_length=16384)] | None = None
    """The judge's prompt. `{prompt}`, `{completion}` and, in braces, columns of the row are filled in. The reply must
    contain `Score: N`. Unset: a question about correctness and helpfulness."""
    lowest: Annotated[float, Field(ge=-1000.0, le=1000.0)] = 0.0
    """The score that maps to reward 0."""
    highest: Annotated[float, Field(ge=-1000.0, le=1000.0)] = 10.0
    """The score that maps to reward 1."""
    max_tokens: PositiveInt = 512
    """Longest reply in tokens."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 8
    """Concurrent requests."""
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    """How often a request is retried after transient errors (429, 5xx, no connection), with increasing delays, within
    the reward's `timeoutSeconds`."""
    api_key_env: EnvName | None = None
    """The environment variable with the API key; set it from a Secret in `env`. Unset: no key is sent."""
    budget: JudgeBudget = JudgeBudget()
    """Most calls and tokens."""


class ModelReward(SpecModel):
    """A reward model on the training chips, beside the policy: its score of prompt and completion is the reward."""

    uri: ModelUri
    """The export of a run with `algorithm.reward`, or any model with one output that transformers loads as
    `AutoModelForSequenceClassification`. It reads the conversation by its own tokenizer and chat template."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model."""
    batch_size: PositiveInt = 16
    """Completions that are scored at once. 16: little memory beside training's, and few enough passes."""


class Reward(SpecModel):
    """One reward: exactly one of `builtin`, `python`, `judge` and `model`."""

    name: Name | None = None
    """The name in metrics. Unset: the name of the builtin or function; a judge and a model need one."""
    builtin: BuiltinReward | None = None
    """A reward that comes with posttrain."""
    python: PythonReward | None = None
    """A reward of your own."""
    judge: JudgeReward | None = None
    """A model that judges."""
    model: ModelReward | None = None
    """A reward model."""
    weight: Annotated[float, Field(ge=-1000.0, le=1000.0)] = 1.0
    """Weight in the sum of rewards."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=3600.0)] = 10.0
    """Wall-clock limit per completion (per call of a `batched` function); a reward that takes longer does not count
    (the sample is left out). For `code`: the limit of all tests of a program, which fails if it takes longer. Not read
    by a `model`."""
    pattern: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """For `format`: the regular expression a completion must match. Unset: the reasoning and answer tags."""
    batched: bool = False
    """For `python`: the function takes lists, `reward(prompts, completions, rows) -> list[float]`, one call per
    step."""
    max_tokens: PositiveInt | None = None
    """For `length`: the number of tokens at which it is −1. Unset: `rollout.maxNewTokens`."""
    buffer_tokens: PositiveInt | None = None
    """For `length`: how many tokens before that it starts to fall. Unset: a fifth of `maxTokens`, as in DAPO."""

    @property
    def label(self) -> str:
        """Return the name under which this reward is logged."""
        if self.name is not None:
            return self.name
        return self.builtin if self.builtin is not None else self.python.function if self.python else "reward"
