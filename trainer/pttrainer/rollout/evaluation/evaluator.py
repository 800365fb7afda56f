"""Evaluate a model: its greedy completions of held-out prompts, by rewards and against gold answers.

GRPO always measures rewards; SFT does if the job names rewards and `data.eval`, so that both can be compared. Gold
answers are compared if `evaluation.answers` names metrics.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from ptapi.spec import Environment as EnvironmentSpec
from ptapi.spec import Evaluation as EvaluationSpec
from pttrainer.data import prompts, rows
from pttrainer.data.prompts import Question
from pttrainer.data.sources.images import decoding
from pttrainer.environments import first_answers, packages
from pttrainer.environments.environment import Environment
from pttrainer.environments.python_environment import UserEnvironment, source_of
from pttrainer.environments.tool_environment import ToolEnvironment
from pttrainer.environments.verifiers_environment import VerifiersEnvironment
from pttrainer.errors import ConfigError
from pttrainer.models import Params
from pttrainer.rewards import NEEDS_ANSWER
from pttrainer.rewards.runner import Runner
from pttrainer.rollout.context import Context
from pttrainer.rollout.disaggregated.separate.remote_engine import RemoteEngine
from pttrainer.rollout.engine import Draw, Engine, Prompt, Sampling
from pttrainer.rollout.evaluation import answer_metrics
from pttrainer.rollout.evaluation.early_programs import EarlyPrograms
from pttrainer.rollout.groups import Group
from pttrainer.rollout.multi_turn.episode_sampler import EpisodeSampler
from pttrainer.rollout.native.decoding_weights import Call, sampler_mesh
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.native.sizes import max_rows, sampler_shape
from pttrainer.rollout.native.sizes.sampling_time import rollout_of
from pttrainer.rollout.rollout_metrics import completion_facts, reward_facts
from pttrainer.rollout.sampler import Sampler
from pttrainer.rollout.scoring import reward_models
from pttrainer.rollout.speculative import build
from pttrainer.rollout.vllm.vllm_engine import vllm_engine
from pttrainer.runtime.distributed import sharding


class Evaluation:
    """Greedy completions of held-out prompts, scored by rewards and against gold answers."""

    def __init__(
        self,
        sampler: Sampler,
        questions: Sequence[Question],
        sampling: Sampling,
        spec: EvaluationSpec,
        passing: PassSampling | None = None,
    ) -> None:
        self._sampler, self._questions, self._sampling, self._spec = sampler, questions, sampling, spec
        self._passing, self._running = passing, threading.Lock()
        self._rows_at_once = min(spec.batch_size, len(questions))

    @property
    def images_digest(self) -> str | None:
        """Return a digest of the prompts' images; None if there are none."""
        return decoding.digest(image for question in self._questions for image in question.images)

    def early_programs(self, *, is_first: bool) -> EarlyPrograms | None:
        """Return the sampler's programs, to be compiled before `run`; None if they are unknown.

        is_first: those alone that `run` begins with, whatever the answers.
        """
        engine = self._sampler.engine
        is_known = isinstance(engine, NativeEngine) and engine.is_foreseeable
        if not is_known or any(question.images for question in self._questions):
            return None
        foresee = partial(self._foresee, all_sizes=not is_first)
        return EarlyPrograms(foresee, self._running, is_first=is_first)

    def run(self, params: Params) -> Mapping[str, float]:
        """Return metrics named `eval/…`."""
        with self._running:
            return self._run(params)

    def _run(self, params: Params) -> Mapping[str, float]:
        scored = self._sample_all(params, 1, self._sampling)
        has_rewards = bool(scored[0].samples[0].rewards)
        spreads = ("/std", "/min", "/max")
        facts = {
            name: value for name, value in reward_facts(scored).items() if has_rewards and not name.endswith(spreads)
        }
        facts |= completion_facts(scored) | self._against_gold(scored)
        if self._passing is not None:
            facts |= self._pass_at(params, self._passing)
        return {f"eval/{name}": value for name, value in facts.items()}

    def _sample_all(self, params: Params, samples: int, sampling: Sampling) -> list[Group]:
        """Sample answers to all questions, a batch at a time."""
        scored: list[Group] = []
        for start, batch in self._batches(samples):
            numbers = list(range(start, start + len(batch)))
            done = self._sampler.sample(params, batch, numbers, samples, sampling, Draw(0, 0))
            scored += done.groups
        return scored[: len(self._questions)]

    def _batches(self, samples: int) -> Iterator[tuple[int, list[Question]]]:
        """Yield the questions to ask at once, and the place of the first of them."""
        at_once = max(1, self._rows_at_once // samples)
        for start in range(0, len(self._questions), at_once):
            chosen = list(self._questions[start : start + at_once])
            # The last batch is filled up, so that all have one shape and compile once.
            yield start, chosen + [chosen[-1]] * (at_once - len(chosen))

    def _foresee(self, params: Params, call: Call, *, all_sizes: bool) -> None:
        """Give the functions that sample to a compiler (`NativeEngine.foresee`)."""
        engine = self._sampler.engine
        assert isinstance(engine, NativeEngine)
        passing = [] if self._passing is None else [(self._spec.samples, self._passing.sampling)]
        for samples, sampling in [(1, self._sampling), *passing]:
            batches = ([Prompt(q.tokens, 0) for q in batch] for _, batch in self._batches(samples))
            # Batches whose longest prompts are equal have the same shapes.
            for batch in {max(len(prompt.tokens) for prompt in batch): batch for batch in batches}.values():
                engine.foresee(params, batch, samples, sampling, call, all_sizes=all_sizes)

    def _pass_at(self, params: Params, passing: PassSampling) -> dict[str, float]:
        scored = self._sample_all(params, self._spec.samples, passing.sampling)
        # A sample without a reward did not pass.
        passed = [
            sum(sample.rewards[passing.reward] >= self._spec.pass_mark for sample in group.samples) for group in scored
        ]
        return pass_at(passed, self._spec.samples)

    def _against_gold(self, scored: Sequence[Group]) -> dict[str, float]:
        answers = [group.samples[0].text for group in scored]
        gold = [group.question.gold for group in scored]
        return answer_metrics.measure(self._spec.answers, answers, gold, self._spec.labels)


class PassSampling(NamedTuple):
    """The sampling parameters for pass@k, and the reward that decides whether a completion passes."""

    sampling: Sampling
    reward: str


def pass_at(passed: Sequence[int], samples: int) -> dict[str, float]:
    """Return `pass@k` for k = 1, 2, 4, … and `samples`: an unbiased estimate that one of k samples passes.

    mean over prompts of 1 − C(n − c, k) / C(n, k), where c of n passed (arXiv 2107.03374, equation 1)
    """
    ks = sorted({*(1 << power for power in range(samples.bit_length()) if 1 << power <= samples), samples})
    return {
        f"pass@{k}": sum(1.0 - math.comb(samples - c, k) / math.comb(samples, k) for c in passed) / len(passed)
        for k in ks
    }


def evaluation(context: Context, sampler: Sampler) -> Evaluation | None:
    """Build the evaluation on the job's `data.eval`; None without it."""
    spec = context.spec
    if spec.data.eval is None:
        return None
    questions = read_questions(context, "eval", sampler)
    new_tokens = spec.evaluation.max_new_tokens or spec.rollout.max_new_tokens
    sampling = Sampling(new_tokens, spec.training.sequence_length, stop=tuple(spec.rollout.stop), greedy=True)
    passing = None
    if spec.evaluation.samples > 1 and spec.rewards:
        passing = PassSampling(
            replace(sampling, greedy=False, temperature=spec.rollout.temperature), spec.rewards[0].label
        )
    return Evaluation(sampler, questions, sampling, spec.evaluation, passing)


def job_sampler(context: Context) -> Sampler:
    """Build the sampler with the job's engine and rewards. Raises ConfigError or UserCodeError."""
    spec = context.spec
    engine = _engine(context)
    runner = Runner(spec.rewards, spec.rollout.max_new_tokens, context.run)
    models = reward_models.load(context)
    if spec.environment is None:
        return Sampler(context, engine, runner, models)
    return EpisodeSampler(context, engine, runner, _environment(context, spec.environment), spec.environment, models)


def _engine(context: Context) -> Engine:
    """Build the native engine, on the training or on the sampling devices, or vLLM's; of other pods, the run's."""
    transfer = context.transfer
    if isinstance(transfer, RemoteEngine):
        return transfer
    if context.spec.rollout.vllm is not None:
        return vllm_engine(context, context.spec.rollout.vllm)
    model, tokenizer, fetch, slots = context.model, context.tokenizer, context.fetch, context.spec.rollout.slots
    keeps_prompts = context.spec.environment is not None
    if transfer is not None:
        speculation = build.speculation(context, transfer.mesh)
        return NativeEngine(
            model, tokenizer, transfer.place, fetch, transfer.mesh, slots, speculation,
            delivered=True, keeps_prompts=keeps_prompts,
        )  # fmt: skip
    mesh = sampling_mesh(context)
    place = context.place if mesh is context.mesh else partial(sharding.put, mesh)
    speculation = build.speculation(context, mesh)
    return NativeEngine(
        model, tokenizer, place, fetch, mesh, slots, speculation, keeps_prompts=keeps_prompts, share=context.share
    )


def sampling_mesh(context: Context) -> Mesh:
    """Return the mesh that samples on the devices that train: the one that preflight names."""
    chips = sampler_shape.chips_of(context.spec, sharding.chip()[0], context.mesh.size)
    rollout = rollout_of(context.spec, share=context.share)
    return sampler_mesh(context.model, context.mesh, max_rows.memory(), chips, rollout)


def _environment(context: Context, spec: EnvironmentSpec) -> Environment:
    """Build the environment of the job's episodes. Raises ConfigError or UserCodeError."""
    if jax.process_count() > 1 and spec.needs_one_process:
        raise ConfigError(
            "spec.environment: Python and mcp need one process that drives all chips, and this run has "
            f"{jax.process_count()}; accepted: builtin tools; hint: pathways: {{enabled: true}}"
        )
    first_answers.wait(spec, context.note, context.alive)
    directory = packages.installed(spec.packages, context.note)
    source = source_of(spec, directory, context.chat.source) if spec.is_rewarding else {}
    if spec.verifiers is not None:
        return VerifiersEnvironment(source, spec.timeout_seconds, context.alive)
    if spec.is_rewarding:
        return UserEnvironment(source, spec.timeout_seconds, context.alive)
    return ToolEnvironment(spec, context.chat.source, context.alive, directory)


def read_questions(context: Context, part: str, sampler: Sampler) -> list[Question]:
    """Return the prompts of `data.train` or `data.eval`, with the sampler's tools, and log how they were read.

    Raises DataError.
    """
    rows_read = rows.of_job(context.spec.data, part, context.note)
    assert rows_read is not None
    with_answer = any(reward.builtin in NEEDS_ANSWER for reward in context.spec.rewards)
    length = context.spec.training.sequence_length
    field = f"spec.data.{part}"
    prompts_read = prompts.questions(
        rows_read, context.chat, length, field, with_answer=with_answer, tools=sampler.tools
    )
    longest = max(len(question.tokens) for question in prompts_read.fitting)
    context.note(
        f"data.{part}: {len(rows_read.rows)} rows ({rows_read.form}), {prompts_read.too_long} with a prompt that is "
        f"too long, longest prompt {longest} tokens{rows.skipped(prompts_read.bad)}"
    )
    return prompts_read.fitting
