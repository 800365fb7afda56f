"""Rollouts of several turns: tokens in and out, which of them are trained, and how episodes end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.builders.peers.templates import FAMILIES, chat

from ptapi.spec import Environment as EnvironmentSpec
from ptapi.spec import Reward
from pttrainer.data.prompts import Question
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import Tokenizer, byte_tokenizer
from pttrainer.environments.environment import AssistantTurn, ResetResult, RowPrompt, StepResult
from pttrainer.environments.tool_environment import ToolEnvironment
from pttrainer.errors import DataError, ServiceLost, UserCodeError
from pttrainer.rewards.runner import Runner
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.multi_turn.episode_sampler import EpisodeSampler
from pttrainer.rollout.rollout_data import all_missing
from pttrainer.rollout.rollout_metrics import completion_facts
from pttrainer.runtime.reporting.step_faults import Fault, Kind

TOKENIZER = byte_tokenizer()
CHAT = Chat(TOKENIZER, TOKENIZER.template)
END = 257
SAMPLING = Sampling(max_new_tokens=200, max_length=400)


@dataclass
class Script:
    """An engine that says what it is told, turn by turn and row by row; remembers what it was asked."""

    lines: Sequence[Sequence[str | None]]
    """Of each turn, for each row; None: a text that never ends."""
    calls: list[tuple[list[Prompt], int, Draw]] = field(default_factory=list)

    def generate(
        self, params: Any, prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw
    ) -> Completions:
        lines = list(self.lines[len(self.calls)])
        self.calls.append((list(prompts), samples, draw))
        lines += [lines[-1]] * (len(prompts) * samples - len(lines))
        rows = [TOKENIZER.encode("…" if line is None else line) + ([] if line is None else [END]) for line in lines]
        lengths = np.array([len(row) for row in rows], np.int32)
        tokens = np.zeros((len(rows), max(lengths)), np.int32)
        for row, ids in enumerate(rows):
            tokens[row, : len(ids)] = ids
        logps = -np.arange(1, tokens.size + 1, dtype=np.float32).reshape(tokens.shape)
        return Completions(tokens, logps, lengths, np.array([line is not None for line in lines]))

    def forget(self) -> None:
        """Keep nothing between calls."""


def question(text: str, **fields: Any) -> Question:
    messages = [{"role": "user", "content": text}]
    return Question(CHAT.prompt_ids(messages), text, fields, messages=messages)


def sampler(script: Script, environment: Any = None, **spec: Any) -> EpisodeSampler:
    whole = EnvironmentSpec.model_validate({"tools": [{"builtin": "lookup"}], **spec})
    training = SimpleNamespace(sequence_length=SAMPLING.max_length)
    context = SimpleNamespace(
        tokenizer=TOKENIZER,
        chat=CHAT,
        leader=True,
        spec=SimpleNamespace(training=training),
        alive=lambda: None,
        messages=None,
    )
    runner, tools = Runner([Reward(builtin="exact")]), ToolEnvironment(whole, None, context.alive)
    return EpisodeSampler(cast(Context, context), script, runner, environment or tools, whole)


def call(key: str) -> str:
    return f'<tool_call>{{"name": "lookup", "arguments": {{"key": "{key}"}}}}</tool_call>'


QUESTION = question("what is a?", answer="7", table={"a": "7"})


def test_what_was_said_is_trained_and_what_was_observed_is_not() -> None:
    script = Script([[call("a"), "9"], ["7"]])
    scored = sampler(script).sample({}, [QUESTION], [5], 2, SAMPLING, Draw(0, 3))
    looked_up, guessed = scored.groups[0].samples
    assert (looked_up.reward, guessed.reward) == (1.0, 0.0)
    assert looked_up.text == "7"
    assert looked_up.episode is not None
    observed = TOKENIZER.encode("<|tool|>7<|end|><|assistant|>")
    call_tokens = [*TOKENIZER.encode(call("a")), END]
    assert looked_up.tokens == [*call_tokens, *observed, *TOKENIZER.encode("7"), END]
    assert list(looked_up.episode.sampled) == [True] * len(call_tokens) + [False] * len(observed) + [True] * 2
    batch = groups.lay_out(scored.groups, np.array([[1.0, -1.0]]), pad_id=258, length=400)
    trained = batch.targets_BT[0][batch.mask_BT[0] > 0].tolist()
    assert trained == [*call_tokens, *TOKENIZER.encode("7"), END]
    assert looked_up.length == len(trained)
    assert (batch.sampler_logps_BT[0][batch.mask_BT[0] == 0] == 0).all()
    assert (batch.advantages_BT[0][batch.mask_BT[0] == 0] == 0).all()
    np.testing.assert_array_equal(looked_up.logps[: len(call_tokens)], -np.arange(1, len(call_tokens) + 1))
    np.testing.assert_array_equal(looked_up.logps[-2:], [-1.0, -2.0])


def test_every_prompt_begins_with_the_tokens_of_the_turns_before() -> None:
    script = Script([[call("é"), call("a")], [call("a"), "7"], ["é"]])
    scored = sampler(script).sample({}, [QUESTION], [0], 2, SAMPLING, Draw(0, 0))
    row = scored.groups[0].samples[0]
    whole = [*QUESTION.tokens, *row.tokens]
    first, second, third = (turn[0][0].tokens for turn in script.calls)
    assert whole[: len(third)] == list(third)
    assert list(third)[: len(second)] == list(second)
    assert list(second)[: len(first)] == list(first) == QUESTION.tokens


def test_the_first_turn_samples_as_a_rollout_of_one_turn_and_the_others_have_keys_of_their_own() -> None:
    script = Script([[call("a")] * 4, ["7"] * 4])
    sampler(script).sample({}, [QUESTION, QUESTION], [5, 6], 2, SAMPLING, Draw(1, 3))
    (first, samples, draw), (second, one, other) = script.calls
    assert ([prompt.number for prompt in first], samples, draw) == ([5, 6], 2, Draw(1, 3))
    assert ([prompt.number for prompt in second], one) == ([10, 11, 12, 13], 1)
    assert other.step == 3
    assert other.seed != draw.seed


def test_open_episodes_are_filled_up_to_a_power_of_two() -> None:
    script = Script([[call("a")] * 3 + ["7"] * 2, ["7"] * 3])
    sampler(script).sample({}, [QUESTION] * 5, list(range(5)), 1, SAMPLING, Draw(0, 0))
    assert len(script.calls[1][0]) == 4


def test_an_episode_that_runs_out_of_turns_or_room_is_judged_as_it_stands() -> None:
    scored = sampler(Script([[call("a"), None]]), max_turns=1).sample({}, [QUESTION], [0], 2, SAMPLING, Draw(0, 0))
    assert [sample.ended for sample in scored.groups[0].samples] == [False, False]
    assert [sample.reward for sample in scored.groups[0].samples] == [0.0, 0.0]
    narrow = Sampling(max_new_tokens=200, max_length=len(QUESTION.tokens) + len(call("a")) + 4)
    scored = sampler(Script([[call("a")]])).sample({}, [QUESTION], [0], 1, narrow, Draw(0, 0))
    (cut,) = scored.groups[0].samples
    assert not cut.ended
    assert all(cut.episode.sampled)


def test_facts_of_episodes_count_calls_and_failures() -> None:
    script = Script([[call("a"), call("b"), "9", "7"], ["7", "?"]])
    scored = sampler(script).sample({}, [QUESTION], [0], 4, SAMPLING, Draw(0, 0))
    facts = completion_facts(scored.groups)
    assert (facts["tools/calls"], facts["tools/used"], facts["tools/failed"]) == (0.5, 0.5, 0.5)
    assert (facts["episodes/turns"], facts["episodes/failed"]) == (1.5, 0.0)
    row = groups.table(1, scored.groups, np.zeros((1, 4)), 8)[1]
    assert [turn["role"] for turn in row["turns"]] == ["assistant", "tool", "assistant"]
    assert row["turns"][1]["content"] == "error: no entry 'b'"


@dataclass
class UserEnvironment:
    """Answers "go" with a reward of a half until the third turn; "break" is an error, "leave" loses the server, "slow"
    takes a minute."""

    opening: str = ""
    schemas: Sequence[Mapping[str, Any]] = ()
    is_rewarding: bool = True
    stepped: list[list[int]] = field(default_factory=list)

    def reset(self, rows: Mapping[int, Any], prompts: Mapping[int, RowPrompt]) -> dict[int, ResetResult]:
        return {n: ResetResult(self.opening) for n in rows}

    def step(self, turns: Mapping[int, AssistantTurn]) -> dict[int, StepResult]:
        self.stepped.append(list(turns))
        return {n: self._turn(turn.text) for n, turn in turns.items()}

    def _turn(self, text: str) -> StepResult:
        if text == "break":
            return StepResult(done=True, error="broken")
        if text == "leave":
            return StepResult(done=True, error="no answer", is_lost=True)
        messages = [{"role": "user", "content": "on"}]
        return StepResult(
            () if text == "end" else messages, 0.5, text == "end", seconds=60.0 if text == "slow" else 0.0
        )

    def finish(self, last_turns: Mapping[int, str | None]) -> dict[int, StepResult]:
        return {}

    def close(self) -> None: ...


def test_the_environment_s_rewards_are_summed_and_weighted_beside_the_others() -> None:
    script = Script([["go"], ["end"]])
    scored = sampler(script, UserEnvironment(), reward_weight=2.0).sample(
        {}, [question("?", answer="end")], [0], 1, SAMPLING, Draw(0, 0)
    )
    (only,) = scored.groups[0].samples
    assert only.rewards == {"exact": 1.0, "environment": 1.0}
    assert only.reward == 3.0


def test_an_episode_keeps_its_number_when_others_have_ended() -> None:
    world = UserEnvironment()
    script = Script([["end", "go", None, "go"], ["go", "end"], ["end"]])
    scored = sampler(script, world).sample({}, [QUESTION], [0], 4, SAMPLING, Draw(0, 0))
    assert world.stepped == [[0, 1, 3], [1, 3], [1]]
    assert [sample.rewards["environment"] for sample in scored.groups[0].samples] == [0.5, 1.5, 0.0, 1.0]


def test_an_episode_that_fails_or_takes_too_long_has_no_reward() -> None:
    script = Script([["break", "slow", "end"]])
    scored = sampler(script, UserEnvironment(), timeout_seconds=30).sample(
        {}, [question("?", answer="end")], [0], 3, SAMPLING, Draw(0, 0)
    )
    rewards = [sample.reward for sample in scored.groups[0].samples]
    np.testing.assert_array_equal(rewards, [np.nan, np.nan, 1.5])
    assert completion_facts(scored.groups)["episodes/failed"] == pytest.approx(2 / 3)


def test_an_environment_in_which_every_episode_fails_from_the_start_ends_the_run() -> None:
    with pytest.raises(UserCodeError, match="2 of 2 episodes failed; the first: broken"):
        sampler(Script([["break"] * 2]), UserEnvironment()).sample({}, [QUESTION], [0], 2, SAMPLING, Draw(0, 0))


def test_a_server_that_every_episode_loses_from_the_start_is_a_lost_service() -> None:
    with pytest.raises(ServiceLost, match="2 of 2 episodes failed; the first: no answer"):
        sampler(Script([["leave"] * 2]), UserEnvironment()).sample({}, [QUESTION], [0], 2, SAMPLING, Draw(0, 0))


def test_episodes_that_lose_their_server_have_no_reward_and_are_told_apart_from_those_that_break() -> None:
    scored = sampler(Script([["leave", "leave", "break", "end"]]), UserEnvironment()).sample(
        {}, [question("?", answer="end")], [0], 4, SAMPLING, Draw(0, 0)
    )
    assert [sample.reward for sample in scored.groups[0].samples][3] == 1.5
    assert all_missing(scored) == Fault(Kind.SERVICE, "environment", "no answer", 3, 4)


def test_an_opening_is_said_after_the_row_s_prompt() -> None:
    script = Script([["end", "end"]])
    sampler(script, UserEnvironment("look")).sample({}, [QUESTION], [0], 2, SAMPLING, Draw(0, 0))
    (prompts, samples, _) = script.calls[0]
    assert samples == 1
    text = TOKENIZER.decode(prompts[0].tokens, skip_special=False)
    assert text == "<|bos|><|user|>what is a?<|end|><|user|>look<|end|><|assistant|>"
    assert [prompt.number for prompt in prompts] == [0, 1]


class Rubric(UserEnvironment):
    """Writes its own prompt, and gives its rewards at the end; an episode that says "bad" fails there."""

    def reset(self, rows: Mapping[int, Any], prompts: Mapping[int, RowPrompt]) -> dict[int, ResetResult]:
        self.prompts = prompts
        return {n: ResetResult(messages=[{"role": "user", "content": f"{n}<|end|>"}]) for n in rows}

    def finish(self, last_turns: Mapping[int, str | None]) -> dict[int, StepResult]:
        self.last_turns = last_turns
        return {n: StepResult(reward=n, error="no rubric" if n == 2 else "", is_lost=n == 2) for n in last_turns}


def test_an_environment_may_write_the_whole_prompt_and_give_its_rewards_at_the_end() -> None:
    world, script = Rubric(), Script([["end", None, "end", "break"]])
    scored = sampler(script, world).sample({}, [QUESTION, QUESTION], [0, 1], 2, SAMPLING, Draw(0, 0))
    assert [world.prompts[n].group for n in range(4)] == [0, 0, 1, 1]
    assert world.prompts[0].messages == [{"role": "user", "content": "what is a?"}]
    prompts, _, _ = script.calls[0]
    text = TOKENIZER.decode(prompts[1].tokens, skip_special=False)
    assert text == "<|bos|><|user|>1< |end|><|end|><|assistant|>"
    samples = [sample for group in scored.groups for sample in group.samples]
    assert world.last_turns == {0: None, 1: samples[1].text, 2: None}
    assert [sample.rewards["environment"] for sample in samples[:2]] == [0.5, 1.0]
    assert all(np.isnan(sample.reward) for sample in samples[2:])
    assert [sample.episode.is_lost for sample in samples if sample.episode is not None] == [False, False, True, False]


def test_a_long_observation_is_cut_and_special_tokens_in_it_are_text() -> None:
    long = question("?", answer="x", table={"a": "y" * 100 + "<|end|>"})
    scored = sampler(Script([[call("a")], ["7"]]), max_observation_tokens=8).sample(
        {}, [long], [0], 1, SAMPLING, Draw(0, 0)
    )
    assert scored.groups[0].samples[0].episode.transcript[1]["content"] == "y" * 8 + " …"
    ids = CHAT.between([{"role": "tool", "content": "a<|end|>b"}], has_end=True)
    assert ids.count(END) == 1
    assert CHAT.between([{"role": "tool", "content": "a"}], has_end=False)[0] == END


def test_of_what_an_environment_says_no_more_is_encoded_than_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: (encoded.append(len(text)), encode(self, text))[1])
    endless = question("?", answer="x", table={"a": "y" * 10**7})
    scored = sampler(Script([[call("a")], ["7"]]), max_observation_tokens=8).sample(
        {}, [endless], [0], 1, SAMPLING, Draw(0, 0)
    )
    episode = scored.groups[0].samples[0].episode
    assert episode.transcript[1]["content"] == "y" * 8 + " …"
    with pytest.raises(
        UserCodeError, match="1 of 1 episodes failed; the first: the opening is too long: no tokens are left for a turn"
    ):
        sampler(Script([["end"]]), UserEnvironment("y" * 10**7)).sample({}, [QUESTION], [0], 1, SAMPLING, Draw(0, 0))
    assert max(encoded) < 1000


@pytest.mark.parametrize(
    ("family", "written"),
    [
        ("qwen-2.5", "\n<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        ("qwen-3", "\n<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        (
            "llama-3",
            '<|start_header_id|>ipython<|end_header_id|>\n\n"4"<|eot_id|>'
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("mistral", '[TOOL_RESULTS] {"content": 4}[/TOOL_RESULTS]'),
        ("gpt-oss", '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"4"<|end|><|start|>assistant'),
        ("gemma-3", "\n<start_of_turn>user\n```tool_output\n4\n```<end_of_turn>\n<start_of_turn>model\n"),
    ],
)
def test_templates_of_families_write_a_tool_s_answer_after_the_turn_s_end(family: str, written: str) -> None:
    family_chat = chat(FAMILIES[family])
    message = {"role": "tool", "name": "f", "content": "4", "tool_call_id": "call00001"}
    ids = family_chat.between([message], has_end=True)
    assert family_chat.tokenizer.decode(ids, skip_special=False) == written
    assert family_chat.between([message], has_end=False)[0] in family_chat.tokenizer.eos_ids
    assert family_chat.between([message], has_end=False)[1:] == ids


@pytest.mark.parametrize("seed", range(20))
def test_in_any_conversation_what_was_sampled_is_trained_and_nothing_else(seed: int) -> None:
    """Episodes of any number of turns: called well or badly, cut off, out of room, with halves of characters."""
    rng = np.random.default_rng(seed)
    lines = [call("a"), call("é"), call("\\ud800"), "<tool_call>{", "<|end|> 7", "7", None]
    script = Script([[lines[i] for i in rng.integers(len(lines), size=4)] for _ in range(6)])
    room = Sampling(max_new_tokens=200, max_length=int(rng.integers(120, 400)))
    odd = question("what is a?", answer="7", table={"a": "<|assistant|>7", "é": "é" * 50, "\ud800": "\ud800"})
    scored = sampler(script, max_turns=int(rng.integers(1, 6))).sample({}, [odd], [0], 4, room, Draw(0, 0))
    batch = groups.lay_out(scored.groups, np.ones((1, 4)), pad_id=258, length=room.max_length)
    for g, sample in enumerate(scored.groups[0].samples):
        texts = [turn["content"] for turn in sample.episode.transcript if turn["role"] == "assistant"]
        spoken = [token for line in texts for token in [*TOKENIZER.encode(line), END]]
        trained = batch.targets_BT[g][batch.mask_BT[g] > 0].tolist()
        assert trained == (spoken if trained[-1] == END else spoken[:-1])  # one that was cut off has no end
        assert sample.length == len(trained) == batch.mask_BT[g].sum()
        whole = [*sample.episode.prompt, *sample.tokens]
        assert batch.tokens_BT[g][: len(whole) - 1].tolist() == whole[:-1]
        assert len(whole) <= room.max_length + 200
    for (prompts, *_), (later, *_) in zip(script.calls[1:], script.calls[2:], strict=False):
        beginnings = [list(prompt.tokens) for prompt in prompts]
        assert all(any(list(p.tokens)[: len(b)] == b for b in beginnings) for p in later)


def test_a_model_without_a_template_cannot_have_several_turns() -> None:
    with pytest.raises(DataError, match="no chat template"):
        Chat(TOKENIZER, None).between([{"role": "tool", "content": "a"}], has_end=True)
