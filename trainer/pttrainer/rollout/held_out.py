"""What a model is worth: its greedy completions of held-out prompts, by rewards and against gold answers.

GRPO measures rewards always; SFT does when the job names rewards and `data.eval`, so that both can be compared. Gold
answers are compared where `evaluation.answers` asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ptapi.spec import DataSource
from ptapi.spec import Evaluation as EvaluationSpec
from pttrainer import answers
from pttrainer.algorithms.protocol import Context
from pttrainer.data import prompts, rows
from pttrainer.data.prompts import Question
from pttrainer.models import Params
from pttrainer.rewards import NEEDS_ANSWER
from pttrainer.rewards.runner import Runner
from pttrainer.rollout import groups
from pttrainer.rollout.groups import Group
from pttrainer.rollout.native import NativeEngine
from pttrainer.rollout.protocol import Draw, Sampling
from pttrainer.rollout.sampling import Sampler, reward_facts


class Evaluation:
    """Greedy completions of held-out prompts: the mean reward is what the model is worth."""

    def __init__(
        self, sampler: Sampler, questions: Sequence[Question], sampling: Sampling, spec: EvaluationSpec
    ) -> None:
        self._sampler, self._questions, self._sampling, self._spec = sampler, questions, sampling, spec
        self._rows_at_once = min(spec.batch_size, len(questions))

    def run(self, params: Params) -> Mapping[str, float]:
        """Metrics named `eval/…`."""
        judged: list[Group] = []
        for start in range(0, len(self._questions), self._rows_at_once):
            chosen = list(self._questions[start : start + self._rows_at_once])
            # The last batch is filled up, so that all have one shape and compile once.
            filled = chosen + [chosen[-1]] * (self._rows_at_once - len(chosen))
            numbers = list(range(start, start + len(filled)))
            done = self._sampler.sample(params, filled, numbers, 1, self._sampling, Draw(0, 0))
            judged += done.groups[: len(chosen)]
        is_judged = bool(judged[0].samples[0].rewards)
        facts = {name: value for name, value in reward_facts(judged).items() if is_judged and name != "reward/std"}
        facts |= groups.facts(judged) | self._against_gold(judged)
        return {f"eval/{name}": value for name, value in facts.items()}

    def _against_gold(self, judged: Sequence[Group]) -> dict[str, float]:
        said = [group.samples[0].text for group in judged]
        gold = [group.question.gold for group in judged]
        return answers.measure(self._spec.answers, said, gold, self._spec.labels)


def evaluation(context: Context, sampler: Sampler) -> Evaluation | None:
    """For the job's `data.eval`; None where there is none."""
    spec = context.spec
    if spec.data.eval is None:
        return None
    questions = read_questions(context, spec.data.eval, "spec.data.eval")
    new_tokens = spec.evaluation.max_new_tokens or spec.rollout.max_new_tokens
    sampling = Sampling(new_tokens, spec.training.sequence_length, stop=tuple(spec.rollout.stop), greedy=True)
    return Evaluation(sampler, questions, sampling, spec.evaluation)


def native_sampler(context: Context) -> Sampler:
    """The model itself as the engine, and the job's rewards; raises ConfigError or UserCodeError."""
    slots = context.spec.rollout.slots
    engine = NativeEngine(context.model, context.tokenizer, context.place, context.fetch, context.mesh, slots)
    return Sampler(context, engine, Runner(context.spec.rewards))


def read_questions(context: Context, source: DataSource, field: str) -> list[Question]:
    """The prompts of a data source; says how it was read. Raises DataError."""
    data = context.spec.data
    read = rows.load(source, field, data.system_prompt, skip_bad=data.on_bad_row == "skip", note=context.note)
    with_answer = any(reward.builtin in NEEDS_ANSWER for reward in context.spec.rewards)
    found = prompts.questions(read, context.chat, context.spec.training.sequence_length, field, with_answer=with_answer)
    longest = max(len(question.tokens) for question in found.fitting)
    context.note(
        f"{field.removeprefix('spec.')}: {len(read.rows)} rows ({read.format}: {', '.join(read.columns.values())}), "
        f"{found.too_long} with a prompt that is too long, longest prompt {longest} tokens{rows.skipped(found.bad)}"
    )
    return found.fitting
