"""Rollouts of several turns: model and environment take turns, all episodes side by side.

    prompt · sampled · observed · sampled · … · sampled          one row of tokens; only sampled ones are trained

Token in, token out: the model's turns are kept as the tokens that it sampled, with their log-probs, and the next turn
continues from exactly those; only an observation is ever tokenised (`Chat.between`), and only once. So every prompt
begins with the prompt of the turn before, and the trainer sees what the sampler saw.

A turn sends all open episodes to the engine at once, padded to a power of two so that few shapes are compiled. The
first turn samples as a rollout of one turn does: same keys, same samples.

An episode ends when its environment says so; when it runs out of turns or of tokens (it is scored as it is, and counts
as truncated); or when its environment fails or takes too long, and then it has no reward.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ptapi.spec import Environment as EnvironmentSpec
from pttrainer import rewards
from pttrainer.batch import Images
from pttrainer.data.prompts import Question
from pttrainer.data.sources.images import in_messages
from pttrainer.data.tokenization import row_images
from pttrainer.environments.environment import AssistantTurn, Environment, RowPrompt, StepResult
from pttrainer.errors import ServiceLost, UserCodeError
from pttrainer.models import Params
from pttrainer.rewards.runner import Runner, Scores
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Completions, Draw, Engine, Prompt, Sampling
from pttrainer.rollout.multi_turn.episode import Episode, as_sample
from pttrainer.rollout.native.prefix_reuse.kept_prompts import with_reused_share
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.rollout_metrics import GENERATE_SECONDS, REWARD_SECONDS
from pttrainer.rollout.sampler import Sampler
from pttrainer.rollout.scoring.reward_models import RewardModel
from pttrainer.rollout.speculative.verify import add_counts, with_rates
from pttrainer.runtime.reporting import spans

REWARD = "environment"
"""The name of the environment's own reward."""
KEY_OF_TURN = 0x9E3779B9
"""Added to the seed for each turn after the first, so that no two turns share random numbers."""


OPENING_TOO_LONG = "the opening is too long: no tokens are left for a turn"
LONGEST_TOKEN = 64
"""Most characters per token: text beyond this many per allowed token is ignored."""


class EpisodeSampler(Sampler):
    """Samples episodes with an engine and an environment, and scores them with the job's rewards."""

    def __init__(
        self,
        context: Context,
        engine: Engine,
        runner: Runner,
        environment: Environment,
        spec: EnvironmentSpec,
        models: Mapping[str, RewardModel] = MappingProxyType({}),
    ) -> None:
        super().__init__(context, engine, runner, models)
        self._environment, self._spec, self._has_worked = environment, spec, False
        self.tools = environment.schemas

    def sample(
        self,
        params: Params,
        questions: Sequence[Question],
        numbers: Sequence[int],
        samples: int,
        sampling: Sampling,
        draw: Draw,
    ) -> Rollout:
        """Return `samples` scored episodes of each question; their keys are folded from `numbers`."""
        try:
            return self._sample(params, questions, numbers, samples, sampling, draw)
        finally:
            self.engine.forget()  # memory that training needs

    def _sample(
        self,
        params: Params,
        questions: Sequence[Question],
        numbers: Sequence[int],
        samples: int,
        sampling: Sampling,
        draw: Draw,
    ) -> Rollout:
        began = time.monotonic()
        images = self._images(questions)
        repeated = [(q, own) for q, own in zip(questions, images, strict=True) for _ in range(samples)]
        episodes = self._start_episodes(repeated, samples)
        places = [number * samples + g for number in numbers for g in range(samples)]
        outside_s = time.monotonic() - began
        counts: dict[str, float] = {}
        for turn in range(self._spec.max_turns):
            chosen = [place for place, episode in enumerate(episodes) if episode.is_open]
            if not chosen:
                break
            if turn == 0 and all(not episode.transcript and episode.is_open for episode in episodes):
                of_prompts = zip(questions, numbers, images, strict=True)
                prompts = [Prompt(question.tokens, number, own) for question, number, own in of_prompts]
                completions = self._generate(params, prompts, samples, sampling, draw)
            else:
                turn_draw = draw._replace(seed=(draw.seed + turn * KEY_OF_TURN) % 2**32)
                completions = self._next_turn(
                    params, [episodes[p] for p in chosen], [places[p] for p in chosen], sampling, turn_draw
                )
            since, counts = time.monotonic(), add_counts(counts, completions.facts)
            with spans.span("environment"):
                self._take_turn(
                    {p: episodes[p] for p in chosen}, completions, sampling, is_last=turn + 1 == self._spec.max_turns
                )
            outside_s += time.monotonic() - since
        generate_s = time.monotonic() - began - outside_s
        since = time.monotonic()
        self._finish(episodes)
        outside_s += time.monotonic() - since
        self._check(episodes)
        since = time.monotonic()
        scores = self._scored(episodes)
        scored = [as_sample(episode, scores, row) for row, episode in enumerate(episodes)]
        facts = {
            **scores.facts,
            **with_reused_share(with_rates(counts)),
            "seconds/environment": outside_s,
            GENERATE_SECONDS: generate_s,
            REWARD_SECONDS: time.monotonic() - since + outside_s,
        }
        return Rollout(draw.step, groups.grouped(questions, scored, samples, images), facts, scores.failures)

    def _start_episodes(self, questions: Sequence[tuple[Question, Images | None]], samples: int) -> list[Episode]:
        episodes = [Episode(question, list(question.tokens), images) for question, images in questions]
        first_turns = self._environment.reset(
            {place: each.question.fields for place, each in enumerate(episodes)},
            {place: _row_prompt(each.question, place // samples) for place, each in enumerate(episodes)},
        )
        for place, episode in enumerate(episodes):
            first_turn = first_turns[place]
            opening = first_turn.messages or ({"role": "user", "content": first_turn.text},)
            characters = sum(len(each["content"]) for each in opening)
            if first_turn.error:
                episode.close(error=first_turn.error, is_lost=first_turn.is_lost)
            elif characters > self._context.spec.training.sequence_length * LONGEST_TOKEN:
                episode.close(error=OPENING_TOO_LONG)
            elif characters:
                episode.transcript += [dict(each) for each in opening]
                written = [
                    {**each, "content": self._context.chat.without_specials(each["content"])} for each in opening
                ]
                requests = written if first_turn.messages else [*episode.question.messages, *written]
                episode.prompt = self._context.chat.prompt_ids(requests, episode.question.tools)
                episode.images = row_images.moved(self._context.chat, episode.prompt, episode.images)
                if len(episode.prompt) >= self._context.spec.training.sequence_length:
                    episode.close(error=OPENING_TOO_LONG)
        return episodes

    def _next_turn(
        self, params: Params, episodes: Sequence[Episode], places: Sequence[int], sampling: Sampling, draw: Draw
    ) -> Completions:
        """Sample one turn of each episode. The last one fills up the batch; its copies are ignored."""
        rows = 1 << (len(episodes) - 1).bit_length()
        prompts = [Prompt(each.ids, place, each.images) for each, place in zip(episodes, places, strict=True)]
        prompts += [prompts[-1]] * (rows - len(prompts))
        return self._generate(params, prompts, 1, sampling, draw)

    def _take_turn(
        self, episodes: Mapping[int, Episode], completions: Completions, sampling: Sampling, *, is_last: bool
    ) -> None:
        """Append the sampled turns, row by row, then the environment's answers to them."""
        replies_wanted: dict[int, AssistantTurn] = {}
        for row, (place, episode) in enumerate(episodes.items()):
            tokens = completions.tokens(row)
            episode.add(tokens, completions.logps_NT[row, : len(tokens)].tolist(), sampled=True)
            episode.routes = completions.routes_of(row, episode.routes)
            episode.turns += 1
            text = self._context.tokenizer.decode(self._without_end(tokens), skip_special=False)
            episode.transcript.append({"role": "assistant", "content": text})
            if completions.ended_N[row]:
                replies_wanted[place] = AssistantTurn(
                    text, episode.question.fields, self._spec.timeout_seconds - episode.seconds
                )
            else:
                episode.cut = text
                episode.close()
        for place, turn in (self._environment.step(replies_wanted) if replies_wanted else {}).items():
            self._apply_turn(episodes[place], turn, sampling, is_last=is_last)

    def _apply_turn(self, episode: Episode, turn: StepResult, sampling: Sampling, *, is_last: bool) -> None:
        episode.reward += turn.reward
        episode.seconds += turn.seconds
        episode.calls, episode.failed = episode.calls + turn.calls, episode.failed + turn.failed
        if turn.error:
            episode.close(error=turn.error, is_lost=turn.is_lost)
        elif turn.done:
            episode.close(ended=True)
        elif episode.seconds >= self._spec.timeout_seconds:
            episode.close(error=f"the episode took more than {self._spec.timeout_seconds:g} s in its environment")
        else:
            messages = [{**message, "content": self._cut(str(message["content"]))} for message in turn.messages]
            has_end = episode.tokens[-1] in self._context.tokenizer.eos_ids
            tokens = self._context.chat.between(messages, has_end=has_end)
            if is_last or len(episode.prompt) + len(episode.tokens) + len(tokens) >= sampling.max_length:
                episode.close()
                return
            episode.transcript += messages
            episode.add(tokens, [0.0] * len(tokens), sampled=False)

    def _finish(self, episodes: Sequence[Episode]) -> None:
        """Take the rewards that the environment gives at the end."""
        last_turns = {place: each.cut for place, each in enumerate(episodes) if not each.error}
        for place, result in (self._environment.finish(last_turns) if last_turns else {}).items():
            episodes[place].reward += result.reward
            if result.error:
                episodes[place].close(error=result.error, is_lost=result.is_lost)

    def _cut(self, text: str) -> str:
        tokenizer, most = self._context.tokenizer, self._spec.max_observation_tokens
        if len(text) <= most:  # no token is shorter than a character of ASCII
            return text
        # An environment may return a gigabyte, and encoding that blocks Python.
        beginning = text[: most * LONGEST_TOKEN]
        tokens = tokenizer.encode(beginning)
        is_whole = len(beginning) == len(text) and len(tokens) <= most
        return text if is_whole else tokenizer.decode(tokens[:most]) + " …"

    def _without_end(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[:-1] if tokens and tokens[-1] in self._context.tokenizer.eos_ids else tokens

    def _check(self, episodes: Sequence[Episode]) -> None:
        """Raise UserCodeError if every episode of the first rollout failed: the environment is broken.

        ServiceLost if all of them lost a service that may come back.
        """
        errors = [episode.error for episode in episodes if episode.error]
        if not errors:
            self._has_worked = True
            return
        counted = f"{len(errors)} of {len(episodes)} episodes failed; the first: {errors[0]}"
        if len(errors) == len(episodes) and not self._has_worked:
            is_lost = all(episode.is_lost for episode in episodes)
            raise (ServiceLost if is_lost else UserCodeError)(f"spec.environment: {counted}")
        print(f"environment: {counted}", file=sys.stderr)

    def _scored(self, episodes: Sequence[Episode]) -> Scores:
        requests = [
            rewards.Sample(
                episode.question.text,
                episode.answer,
                {**episode.question.fields, "transcript": episode.transcript},
                sum(episode.sampled),
                [*episode.question.messages, *episode.transcript],
                episode.question.tools,
            )
            for episode in episodes
        ]
        return self._with_environment_reward(self._score(requests), episodes)

    def _with_environment_reward(self, scores: Scores, episodes: Sequence[Episode]) -> Scores:
        """Add the environment's own reward; a failed episode has none."""
        is_failed = np.array([bool(episode.error) for episode in episodes])
        environment_rewards = np.where(is_failed, np.nan, [episode.reward for episode in episodes])
        total = np.where(is_failed, np.nan, scores.total)
        if not self._environment.is_rewarding:
            return replace(scores, total=total)
        return replace(
            scores,
            rewards={**scores.rewards, REWARD: environment_rewards},
            total=total + self._spec.reward_weight * environment_rewards,
        )


def _row_prompt(question: Question, group: int) -> RowPrompt:
    messages = [{"role": message["role"], "content": in_messages.text_of(message)} for message in question.messages]
    return RowPrompt(messages, group)
