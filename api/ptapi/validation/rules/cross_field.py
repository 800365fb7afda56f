"""The rules across fields, one value each. Adding one: one entry here, one wrong manifest in the tests.

Left out: what needs the accelerators table (`ptapi.validation.accelerator_rules`), what is not built yet
(`unsupported`), and changes after creation (`ptapi.crd.immutable_fields`).
"""

from __future__ import annotations

import re
from functools import partial

from ptapi.spec import EnvVar, Grpo, Optimizer, Pathways, PostTrainJobSpec, Reward, Volume
from ptapi.spec.job import JOB_NAME
from ptapi.validation import accelerator_cel as chips
from ptapi.validation.rule import Rule, at

SECRET_NAME = r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)$"
JOB_DIR = "/etc/posttrain"
HUB_DATA = "^hf://datasets/[^/]+/[^/]+"
POOLS_OF_A_CHECK = 8
"""Node pools that a job's pods can be bound to through Kueue: a toleration each, of which a check has eight."""
OPERATOR_ENV = r"^(JAX_COORDINATOR_ADDRESS|JAX_NUM_PROCESSES|JAX_PROCESS_ID|(POSTTRAIN|MEGASCALE)_.*)$"
# A reward's label: when it is this, and what it is.
_LABELS = (
    ("has({0}.name)", "{0}.name"),
    ("!has({0}.name) && has({0}.builtin)", "{0}.builtin"),
    ("!has({0}.name) && has({0}.python)", "{0}.python.function"),
)
# Case by case, and without two functions of the same name: the API server's cost estimate takes the result of
# `? :`, and of a comparison of two fields of fields, for a text without bound. Python sees that case too.
_SAME_LABEL = " || ".join(
    f"({when_a.format('a')} && {when_b.format('b')} && {label_a.format('a')} == {label_b.format('b')})"
    for when_a, label_a in _LABELS
    for when_b, label_b in _LABELS
    if "python" not in label_a or "python" not in label_b
)
_SOURCES = ("config_map", "secret", "persistent_volume_claim", "empty_dir")
_CEL_SOURCES = "[has(self.configMap), has(self.secret), has(self.persistentVolumeClaim), has(self.emptyDir)]"


def _is_pattern(reward: Reward) -> bool:
    try:
        re.compile(reward.pattern or "")
    except re.error:
        return False
    return True


def _is_for_length(name: str, reward: Reward) -> bool:
    return getattr(reward, name) is None or reward.builtin == "length"


def _is_for_ratios(name: str, grpo: Grpo) -> bool:
    return getattr(grpo, name) is None or grpo.loss != "cispo"


def _is_unique(values: list[str]) -> bool:
    return len(set(values)) == len(values)


def _sources(volume: Volume) -> int:
    return sum(getattr(volume, name) is not None for name in _SOURCES)


def _is_split_into_groups(spec: PostTrainJobSpec) -> bool:
    return spec.algorithm.grpo is None or spec.training.batch_size % spec.algorithm.grpo.group_size == 0


def _is_split_into_prompts(spec: PostTrainJobSpec) -> bool:
    return spec.algorithm.ppo is None or spec.training.batch_size % spec.algorithm.ppo.samples_per_prompt == 0


def _keeps_groups_together(spec: PostTrainJobSpec) -> bool:
    micro = spec.training.micro_batch_size
    return micro is None or spec.algorithm.grpo is None or micro % spec.algorithm.grpo.group_size == 0


def _lags_whole_batches(spec: PostTrainJobSpec) -> bool:
    return spec.rollout.max_staleness % spec.algorithm.updates_per_batch == 0


def _samples_while_it_trains(spec: PostTrainJobSpec) -> bool:
    return spec.algorithm.is_on_policy or spec.rollout.placement == "colocated"


def _leaves_room_for_a_prompt(spec: PostTrainJobSpec) -> bool:
    return not spec.algorithm.learns_from_rewards or spec.rollout.max_new_tokens < spec.training.sequence_length


def _penalises_within_the_limit(spec: PostTrainJobSpec) -> bool:
    overlong = spec.algorithm.grpo.overlong if spec.algorithm.grpo is not None else None
    return overlong is None or overlong.buffer_tokens <= spec.rollout.max_new_tokens


def _evaluates_in_the_row(spec: PostTrainJobSpec) -> bool:
    longest = spec.evaluation.max_new_tokens
    return not spec.algorithm.learns_from_rewards or longest is None or longest < spec.training.sequence_length


def _has_a_use_for(field: str, rule: str, optimizer: Optimizer) -> bool:
    return optimizer.name != rule or getattr(optimizer, field) is None


def _is_for_pathways(field: str, pathways: Pathways) -> bool:
    return pathways.enabled is True or not at(pathways, field)


def _is_queued_by_google(spec: PostTrainJobSpec) -> bool:
    return any(option.type == "queuedProvisioning" for option in spec.capacity)


def checked_in_devices(_: object) -> bool:
    """Checked by `ptapi.validation.accelerator_rules`, with the accelerators table at hand."""
    return True


def _is_literal_secret(variable: EnvVar) -> bool:
    return variable.value is not None and re.search(SECRET_NAME, variable.name) is not None


def _hub_data(scope: str) -> tuple[Rule, Rule]:
    """What only data from the hub has, and how it is named."""
    return (
        Rule(
            scope=scope,
            field="uri",
            accepted="file:///…, gs://… or hf://datasets/organisation/name, and a path in it",
            cel=f"!self.uri.startsWith('hf://') || self.uri.matches('{HUB_DATA}')",
            is_kept=lambda data: not data.uri.startswith("hf://") or re.search(HUB_DATA, data.uri) is not None,
        ),
        Rule(
            scope=scope,
            field="revision",
            accepted="unset, because only hf:// data have revisions",
            cel="!has(self.revision) || self.uri.startsWith('hf://')",
            is_kept=lambda data: data.revision is None or data.uri.startswith("hf://"),
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        scope="",
        field="metadata.name",
        accepted="lower-case letters, digits and -, starting with a letter, no - at the end (1 to 63 characters)",
        cel=f"self.metadata.name.size() <= 63 && self.metadata.name.matches('{JOB_NAME}')",
        is_kept=lambda job: len(job.metadata.name) <= 63 and re.match(JOB_NAME, job.metadata.name) is not None,
    ),
    Rule(
        scope="spec",
        field="tensorboard.server",
        accepted="false, unless output.uri is gs://…, because its pod reads the files from elsewhere",
        cel="!(has(self.tensorboard) && has(self.tensorboard.server) && self.tensorboard.server) "
        "|| self.output.uri.startsWith('gs://')",
        is_kept=lambda spec: not spec.tensorboard.server or spec.output.uri.startswith("gs://"),
    ),
    # The algorithm and its rewards
    Rule(
        scope="spec",
        field="algorithm",
        accepted="exactly one of sft, dpo, grpo, distill, ppo",
        cel="[has(self.algorithm.sft), has(self.algorithm.dpo), has(self.algorithm.grpo), "
        "has(self.algorithm.distill), has(self.algorithm.ppo)].filter(x, x).size() == 1",
        is_kept=lambda spec: len(spec.algorithm.model_dump(exclude_none=True)) == 1,
        hint="algorithm: {sft: {}}",
    ),
    Rule(
        scope="spec",
        field="rewards",
        accepted="at least one reward, because grpo and ppo learn from rewards alone",
        cel="!has(self.algorithm.grpo) && !has(self.algorithm.ppo) || "
        "(has(self.rewards) && self.rewards.size() > 0) || (has(self.environment) && has(self.environment.python))",
        is_kept=lambda spec: (
            not spec.algorithm.learns_from_rewards
            or len(spec.rewards) > 0
            or (spec.environment is not None and spec.environment.python is not None)
        ),
        hint="rewards: [{builtin: gsm8k}]",
    ),
    Rule(
        scope="spec",
        field="rewards",
        accepted="none without data.eval, because only grpo and ppo learn from rewards: others judge held-out answers",
        cel="has(self.algorithm.grpo) || has(self.algorithm.ppo) || !has(self.rewards) || self.rewards.size() == 0 || "
        "has(self.data.eval)",
        is_kept=lambda spec: spec.algorithm.learns_from_rewards or not spec.rewards or spec.data.eval is not None,
    ),
    *(
        Rule(
            scope="spec.algorithm.grpo",
            field=field,
            accepted="unset, because cispo only cuts weights above clipHigh",
            cel=f"!has(self.{field}) || self.loss != 'cispo'",
            is_kept=partial(_is_for_ratios, name),
        )
        for field, name in (("clipLow", "clip_low"), ("dualClip", "dual_clip"))
    ),
    Rule(
        scope="spec.rewards[]",
        field="",
        accepted="exactly one of builtin, python, judge",
        cel="[has(self.builtin), has(self.python), has(self.judge)].filter(x, x).size() == 1",
        is_kept=lambda reward: [reward.builtin, reward.python, reward.judge].count(None) == 2,
    ),
    Rule(
        scope="spec.rewards[]",
        field="batched",
        accepted="false, because only a python reward can be batched",
        cel="!self.batched || has(self.python)",
        is_kept=lambda reward: not reward.batched or reward.python is not None,
    ),
    *(
        Rule(
            scope="spec.rewards[]",
            field=field,
            accepted="unset, because only the builtin length counts tokens",
            cel=f"!has(self.{field}) || (has(self.builtin) && self.builtin == 'length')",
            is_kept=partial(_is_for_length, name),
        )
        for field, name in (("maxTokens", "max_tokens"), ("bufferTokens", "buffer_tokens"))
    ),
    Rule(
        scope="spec.rewards[]",
        field="name",
        accepted="a name, because a judge has none of its own",
        cel="has(self.name) || !has(self.judge)",
        is_kept=lambda reward: reward.name is not None or reward.judge is None,
    ),
    Rule(
        scope="spec.rewards[].judge",
        field="highest",
        accepted="above lowest",
        cel="self.highest > self.lowest",
        is_kept=lambda judge: judge.highest > judge.lowest,
    ),
    # The environment
    Rule(
        scope="spec",
        field="environment",
        accepted="unset, because only grpo, ppo and sft's evaluation speak with an environment",
        cel="!has(self.environment) || has(self.algorithm.grpo) || has(self.algorithm.ppo) || has(self.algorithm.sft)",
        is_kept=lambda spec: (
            spec.environment is None or spec.algorithm.learns_from_rewards or spec.algorithm.sft is not None
        ),
    ),
    Rule(
        scope="spec.environment",
        field="",
        accepted="exactly one of tools, python",
        cel="has(self.python) != (has(self.tools) && self.tools.size() > 0)",
        is_kept=lambda environment: (environment.python is not None) != (len(environment.tools) > 0),
    ),
    Rule(
        scope="spec.environment.tools[]",
        field="",
        accepted="exactly one of builtin, python",
        cel="has(self.builtin) != has(self.python)",
        is_kept=lambda tool: (tool.builtin is None) != (tool.python is None),
    ),
    Rule(
        scope="spec.rewards[]",
        field="pattern",
        accepted="unset, because only the builtin format has a pattern",
        cel="!has(self.pattern) || (has(self.builtin) && self.builtin == 'format')",
        is_kept=lambda reward: reward.pattern is None or reward.builtin == "format",
    ),
    Rule(
        scope="spec.rewards[]",
        field="pattern",
        accepted="a regular expression of Python",
        cel="",
        is_kept=_is_pattern,
    ),
    Rule(
        scope="spec",
        field="rewards",
        accepted="rewards with different names (unset, a name is the builtin's or the function's)",
        cel=f"!has(self.rewards) || self.rewards.all(a, (!has(a.name) && (has(a.python) || has(a.judge))) || "
        f"self.rewards.exists_one(b, {_SAME_LABEL}))",
        is_kept=lambda spec: _is_unique([reward.label for reward in spec.rewards]),
    ),
    Rule(
        scope="spec.algorithm.dpo",
        field="labelSmoothing",
        accepted="0, because only sigmoid, robust and simpo smooth labels",
        cel="self.labelSmoothing == 0.0 || self.loss in ['sigmoid', 'robust', 'simpo']",
        is_kept=lambda dpo: dpo.label_smoothing == 0.0 or dpo.loss in ("sigmoid", "robust", "simpo"),
    ),
    Rule(
        scope="spec.algorithm.dpo",
        field="margin",
        accepted="unset, because only simpo has a margin",
        cel="!has(self.margin) || self.loss == 'simpo'",
        is_kept=lambda dpo: dpo.margin is None or dpo.loss == "simpo",
    ),
    Rule(
        scope="spec.algorithm.distill",
        field="teacher",
        accepted="a teacher, or selfTeacher; none where mode is offline",
        cel="[has(self.teacher), has(self.selfTeacher)].filter(x, x).size() == (self.mode == 'offline' ? 0 : 1)",
        is_kept=lambda distill: (
            [distill.teacher, distill.self_teacher].count(None) == (2 if distill.mode == "offline" else 1)
        ),
        hint="teacher: {uri: gs://bucket/dir}",
    ),
    Rule(
        scope="spec.algorithm.distill",
        field="mode",
        accepted="on-policy where selfTeacher is set: it teaches on the student's own samples",
        cel="!has(self.selfTeacher) || self.mode == 'on-policy'",
        is_kept=lambda distill: distill.self_teacher is None or distill.mode == "on-policy",
    ),
    Rule(
        scope="spec.algorithm.distill",
        field="studentShare",
        accepted="1 where selfTeacher is set: it teaches on the student's own samples",
        cel="!has(self.selfTeacher) || self.studentShare == 1.0",
        is_kept=lambda distill: distill.self_teacher is None or distill.student_share == 1.0,
    ),
    Rule(
        scope="spec.algorithm.distill.selfTeacher",
        field="privilegedContext",
        accepted="text with {prompt}, which stands for the question",
        cel="!has(self.privilegedContext) || self.privilegedContext.contains('{prompt}')",
        is_kept=lambda teacher: teacher.privileged_context is None or "{prompt}" in teacher.privileged_context,
        hint='privilegedContext: "{prompt}\\n\\nA right answer: {answer}"',
    ),
    Rule(
        scope="spec.algorithm.distill.selfTeacher",
        field="weights",
        accepted="initial or average without privilegedContext, because nobody learns from saying the same again",
        cel="has(self.privilegedContext) || self.weights != 'current'",
        is_kept=lambda teacher: teacher.privileged_context is not None or teacher.weights != "current",
    ),
    Rule(
        scope="spec",
        field="algorithm.distill.selfTeacher.weights",
        accepted="initial or current, unless training.ema keeps an average",
        cel="!has(self.algorithm.distill) || !has(self.algorithm.distill.selfTeacher) || has(self.training.ema) || "
        "self.algorithm.distill.selfTeacher.weights != 'average'",
        is_kept=lambda spec: (
            at(spec, "algorithm.distill.selfTeacher.weights") != "average" or spec.training.ema is not None
        ),
        hint="training: {ema: {decay: 0.99}}",
    ),
    Rule(
        scope="spec",
        field="data.eval",
        accepted="unset, or together with rewards: a self-teacher is asked about the student's samples alone",
        cel="!has(self.algorithm.distill) || !has(self.algorithm.distill.selfTeacher) || !has(self.data.eval) || "
        "(has(self.rewards) && self.rewards.size() > 0)",
        is_kept=lambda spec: (
            at(spec, "algorithm.distill.selfTeacher") is None or spec.data.eval is None or len(spec.rewards) > 0
        ),
    ),
    Rule(
        scope="spec.algorithm.distill",
        field="topK",
        accepted="0 where mode is offline, because the data say how many",
        cel="self.topK == 0 || self.mode != 'offline'",
        is_kept=lambda distill: distill.top_k == 0 or distill.mode != "offline",
    ),
    Rule(
        scope="spec.algorithm.distill",
        field="studentShare",
        accepted="1, because only mode on-policy mixes the student's samples with the data",
        cel="self.studentShare == 1.0 || self.mode == 'on-policy'",
        is_kept=lambda distill: distill.student_share == 1.0 or distill.mode == "on-policy",
    ),
    # Pathways. CEL does not see pathways.enabled: its type is not one.
    Rule(
        scope="spec",
        field="output.uri",
        accepted="gs://…, because pathways.enabled is true and its workers share no disk with the trainer",
        cel="",
        is_kept=lambda spec: spec.pathways.enabled is not True or spec.output.uri.startswith("gs://"),
    ),
    *(
        Rule(
            scope="spec.pathways",
            field=field,
            accepted="unset, because pathways.enabled is not true",
            cel="",
            is_kept=partial(_is_for_pathways, field),
        )
        for field in ("serverImage", "proxyImage", "colocatedPythonImage", "serverArgs", "proxyArgs", "workerArgs")
    ),
    Rule(
        scope="spec.pathways",
        field="headless",
        accepted="false, because pathways.enabled is not true",
        cel="",
        is_kept=lambda pathways: not pathways.headless or pathways.enabled is True,
        hint="pathways: {enabled: true, headless: true}",
    ),
    Rule(
        scope="spec",
        field="runtime",
        accepted="unset, because pathways.headless starts no program",
        cel="!self.pathways.headless || !has(self.runtime) || "
        "!(has(self.runtime.maxtext) || has(self.runtime.container))",
        is_kept=lambda spec: not spec.pathways.headless or spec.runtime.is_native,
    ),
    Rule(
        scope="spec",
        field="pathways.elasticSlices",
        accepted="less than accelerator.slices, because one slice at least must be there",
        cel="self.pathways.elasticSlices == 0 || self.pathways.elasticSlices < self.accelerator.slices",
        is_kept=lambda spec: (
            spec.pathways.elastic_slices == 0 or spec.pathways.elastic_slices < spec.accelerator.slices
        ),
    ),
    Rule(
        scope="spec",
        field="pathways.elasticSlices",
        accepted="0, because pathways.enabled is not true",
        cel="",
        is_kept=lambda spec: spec.pathways.elastic_slices == 0 or spec.pathways.enabled is True,
    ),
    # Lengths and batches
    Rule(
        scope="spec.training",
        field="epochs",
        accepted="unset, because steps is set; one of steps, epochs",
        cel="!has(self.steps) || !has(self.epochs)",
        is_kept=lambda training: training.steps is None or training.epochs is None,
    ),
    Rule(
        scope="spec.training",
        field="profile",
        accepted="start + steps - 1 of at most steps, the length of the run",
        cel="!has(self.profile) || !has(self.steps) || self.profile.start + self.profile.steps - 1 <= self.steps",
        is_kept=lambda training: (
            training.profile is None
            or training.steps is None
            or training.profile.start + training.profile.steps - 1 <= training.steps
        ),
    ),
    Rule(
        scope="spec.training",
        field="microBatchSize",
        accepted="a divisor of batchSize",
        cel="!has(self.microBatchSize) || self.batchSize % self.microBatchSize == 0",
        is_kept=lambda training: training.batch_size % (training.micro_batch_size or training.batch_size) == 0,
    ),
    Rule(
        scope="spec",
        field="training.batchSize",
        accepted="a multiple of algorithm.grpo.groupSize, because a step trains on whole groups",
        cel="!has(self.algorithm.grpo) || self.training.batchSize % self.algorithm.grpo.groupSize == 0",
        is_kept=_is_split_into_groups,
        hint="batchSize counts sequences: prompts x groupSize",
    ),
    Rule(
        scope="spec",
        field="training.batchSize",
        accepted="a multiple of algorithm.ppo.samplesPerPrompt, because it counts sequences",
        cel="!has(self.algorithm.ppo) || self.training.batchSize % self.algorithm.ppo.samplesPerPrompt == 0",
        is_kept=_is_split_into_prompts,
    ),
    Rule(
        scope="spec.algorithm.ppo.critic",
        field="revision",
        accepted="unset, or together with an hf:// uri, which has revisions",
        cel="!has(self.revision) || (has(self.uri) && self.uri.startsWith('hf://'))",
        is_kept=lambda critic: critic.revision is None or (critic.uri or "").startswith("hf://"),
    ),
    Rule(
        scope="spec.algorithm.ppo.critic",
        field="uri",
        accepted="file:///… or gs://… where kind is head: a run's export/critic; kind: model begins from any model",
        cel="self.kind == 'model' || !has(self.uri) || self.uri.startsWith('file://') || self.uri.startsWith('gs://')",
        is_kept=lambda critic: critic.kind == "model" or (critic.uri or "file://").startswith(("file://", "gs://")),
    ),
    Rule(
        scope="spec",
        field="training.microBatchSize",
        accepted="a multiple of algorithm.grpo.groupSize, because a group is never split",
        cel="!has(self.algorithm.grpo) || !has(self.training.microBatchSize) || "
        "self.training.microBatchSize % self.algorithm.grpo.groupSize == 0",
        is_kept=_keeps_groups_together,
    ),
    Rule(
        scope="spec",
        field="training.batchSize",
        accepted="an even number, because dpo trains on pairs of sequences",
        cel="!has(self.algorithm.dpo) || self.training.batchSize % 2 == 0",
        is_kept=lambda spec: spec.algorithm.dpo is None or spec.training.batch_size % 2 == 0,
    ),
    Rule(
        scope="spec",
        field="training.microBatchSize",
        accepted="an even number, because a pair is never split",
        cel="!has(self.algorithm.dpo) || !has(self.training.microBatchSize) || self.training.microBatchSize % 2 == 0",
        is_kept=lambda spec: spec.algorithm.dpo is None or (spec.training.micro_batch_size or 0) % 2 == 0,
    ),
    Rule(
        scope="spec",
        field="rollout.maxNewTokens",
        accepted="less than training.sequenceLength, which holds the prompt and the completion",
        cel="!has(self.algorithm.grpo) && !has(self.algorithm.ppo) || "
        "self.rollout.maxNewTokens < self.training.sequenceLength",
        is_kept=_leaves_room_for_a_prompt,
    ),
    Rule(
        scope="spec",
        field="algorithm.grpo.overlong.bufferTokens",
        accepted="at most rollout.maxNewTokens, at whose end the penalty begins",
        cel="!has(self.algorithm.grpo) || !has(self.algorithm.grpo.overlong) || "
        "self.algorithm.grpo.overlong.bufferTokens <= self.rollout.maxNewTokens",
        is_kept=_penalises_within_the_limit,
    ),
    Rule(
        scope="spec",
        field="evaluation.maxNewTokens",
        accepted="less than training.sequenceLength, which holds the prompt and the completion",
        cel="!has(self.algorithm.grpo) && !has(self.algorithm.ppo) || !has(self.evaluation.maxNewTokens) || "
        "self.evaluation.maxNewTokens < self.training.sequenceLength",
        is_kept=_evaluates_in_the_row,
    ),
    Rule(
        scope="spec",
        field="evaluation.answers",
        accepted="unset, or together with data.eval and sft, grpo or ppo: held-out prompts are answered and compared",
        cel="!has(self.evaluation.answers) || self.evaluation.answers.size() == 0 || "
        "(has(self.data.eval) && (has(self.algorithm.sft) || has(self.algorithm.grpo) || has(self.algorithm.ppo)))",
        is_kept=lambda spec: (
            not spec.evaluation.answers
            or (spec.data.eval is not None and bool(spec.algorithm.sft or spec.algorithm.learns_from_rewards))
        ),
        hint="data.eval: {uri: …}",
    ),
    Rule(
        scope="spec.evaluation",
        field="labels",
        accepted="unset, or together with answers: accuracy or macroF1, which compare labels",
        cel="!has(self.labels) || self.labels.size() == 0 || "
        "(has(self.answers) && self.answers.exists(metric, metric != 'exactMatch'))",
        is_kept=lambda evaluation: not evaluation.labels or any(name != "exactMatch" for name in evaluation.answers),
        hint="answers: [accuracy, macroF1]",
    ),
    Rule(
        scope="spec",
        field="data.eval",
        accepted="held-out data, because evaluation.everySteps asks for it",
        cel="self.evaluation.everySteps == 0 || has(self.data.eval)",
        is_kept=lambda spec: spec.evaluation.every_steps == 0 or spec.data.eval is not None,
        hint="data.eval: {uri: …}, or evaluation.everySteps: 0",
    ),
    Rule(
        scope="spec.algorithm.sft",
        field="labelSmoothing",
        accepted="0 with loss: dft, which weighs a token by its own probability",
        cel="self.loss != 'dft' || self.labelSmoothing == 0.0",
        is_kept=lambda sft: sft.loss != "dft" or sft.label_smoothing == 0.0,
    ),
    Rule(
        scope="spec",
        field="training.lora.from",
        accepted="unset with checkpoint.fork: a run begins with the adapters of one or of the other",
        cel="!has(self.checkpoint.fork) || !has(self.training.lora) || !has(self.training.lora.from)",
        is_kept=lambda spec: (
            spec.checkpoint.fork is None or spec.training.lora is None or not spec.training.lora.origin
        ),
    ),
    # The update rule
    *(
        Rule(
            scope="spec.training.optimizer",
            field=field,
            accepted=f"unset, because {rule} has none",
            cel=f"!has(self.{field}) || self.name != '{rule}'",
            is_kept=partial(_has_a_use_for, field, rule),
        )
        for field, rule in (("beta1", "adafactor"), ("beta2", "adafactor"), ("eps", "adafactor"), ("eps", "lion"))
    ),
    Rule(
        scope="spec.training",
        field="optimizer.name",
        accepted="adamw, adafactor or lion with lora: muon is made for the model's own matrices",
        cel="!has(self.lora) || self.optimizer.name != 'muon'",
        is_kept=lambda training: training.lora is None or training.optimizer.name != "muon",
    ),
    Rule(
        scope="spec.training",
        field="freeze",
        accepted="unset with lora, which trains adapters alone",
        cel="!has(self.lora) || !has(self.freeze) || self.freeze.size() == 0",
        is_kept=lambda training: training.lora is None or not training.freeze,
    ),
    *_hub_data("spec.data.train"),
    *_hub_data("spec.data.eval"),
    # Model and adapters
    *(
        Rule(
            scope=scope,
            field="revision",
            accepted="unset, because only hf:// models have revisions",
            cel="!has(self.revision) || self.uri.startsWith('hf://')",
            is_kept=lambda model: model.revision is None or model.uri.startswith("hf://"),
        )
        for scope in ("spec.model", "spec.rollout.speculative.draft")
    ),
    Rule(
        scope="spec",
        field="training.quantization",
        accepted="unset, or together with training.lora: only frozen weights can be quantized",
        cel="!has(self.training.quantization) || has(self.training.lora)",
        is_kept=lambda spec: spec.training.quantization is None or spec.training.lora is not None,
    ),
    Rule(
        scope="spec",
        field="export.format",
        accepted="safetensors or none; peft exports an adapter and needs training.lora",
        cel="self.export.format != 'peft' || has(self.training.lora)",
        is_kept=lambda spec: spec.export.format != "peft" or spec.training.lora is not None,
    ),
    # Checkpoints
    Rule(
        scope="spec",
        field="checkpoint.best",
        accepted="unset, or together with data.eval: an evaluation says what is best",
        cel="!has(self.checkpoint.best) || has(self.data.eval)",
        is_kept=lambda spec: spec.checkpoint.best is None or spec.data.eval is not None,
        hint="data.eval: {uri: …}",
    ),
    Rule(
        scope="spec",
        field="export.checkpoint",
        accepted="last; best needs checkpoint.best",
        cel="self.export.checkpoint != 'best' || has(self.checkpoint.best)",
        is_kept=lambda spec: spec.export.checkpoint != "best" or spec.checkpoint.best is not None,
        hint="checkpoint.best: {}",
    ),
    Rule(
        scope="spec",
        field="training.sequenceLength",
        accepted="a multiple of training.parallelism.sequence, which splits the tokens of a row evenly",
        cel="type(self.training.parallelism.sequence) != int || int(self.training.parallelism.sequence) < 1 || "
        "self.training.sequenceLength % int(self.training.parallelism.sequence) == 0",
        is_kept=lambda spec: (
            spec.training.parallelism.sequence == "auto"
            or spec.training.sequence_length % spec.training.parallelism.sequence == 0
        ),
    ),
    Rule(
        scope="spec.export",
        field="mergeLora",
        accepted="true, because weights in safetensors have the adapters in them; false only with format: peft",
        cel="!has(self.mergeLora) || self.mergeLora || self.format == 'peft'",
        is_kept=lambda export: export.merge_lora or export.format == "peft",
        hint="export: {format: peft} writes the adapters alone",
    ),
    # Chips
    # Of names, topologies, meshes and batches Python says more: see ptapi.validation.accelerator_rules.
    Rule(
        scope="spec.accelerator",
        field="type",
        accepted=chips.UNKNOWN,
        cel=chips.name_rule(),
        cel_message=chips.nearest_message(),
        is_kept=checked_in_devices,
    ),
    Rule(
        scope="spec.accelerator",
        field="topology",
        accepted=chips.TOPOLOGY,
        cel=chips.topology_rule(),
        is_kept=checked_in_devices,
    ),
    Rule(
        scope="spec",
        field="training.parallelism",
        accepted=chips.MESH,
        cel=chips.mesh_rule(),
        cel_message=chips.mesh_message(),
        is_kept=checked_in_devices,
    ),
    *(
        Rule(
            scope="spec",
            field=f"training.{name}",
            accepted=chips.BATCH,
            cel=chips.batch_rule(name),
            cel_message=chips.batch_message(name),
            is_kept=checked_in_devices,
        )
        for name in ("batchSize", "microBatchSize")
    ),
    Rule(
        scope="spec.capacity[]",
        field="reservation",
        accepted="the reservation's name with type: reservation, unset with every other type",
        cel="has(self.reservation) == (self.type == 'reservation')",
        is_kept=lambda option: (option.reservation is not None) == (option.type == "reservation"),
    ),
    Rule(
        scope="spec.capacity[]",
        field="zones",
        accepted="unset with type: existing, whose nodes are where they are",
        cel="self.type != 'existing' || !has(self.zones) || self.zones.size() == 0",
        is_kept=lambda option: option.type != "existing" or not option.zones,
    ),
    Rule(
        scope="spec",
        field="capacity",
        accepted="existing only, because a cpu accelerator needs no TPU node pool",
        cel="!self.accelerator.type.startsWith('cpu-') || self.capacity.all(option, option.type == 'existing')",
        is_kept=lambda spec: (
            not spec.accelerator.type.startswith("cpu-") or all(option.type == "existing" for option in spec.capacity)
        ),
    ),
    Rule(
        scope="spec",
        field="capacity",
        accepted="queuedProvisioning without queue only: Kueue makes a ProvisioningRequest itself, for nodes that are "
        "existing",
        cel="!has(self.queue) || self.capacity.all(option, option.type != 'queuedProvisioning')",
        is_kept=lambda spec: spec.queue is None or not _is_queued_by_google(spec),
        hint="capacity: [{type: existing}], and a ClusterQueue with Kueue's ProvisioningRequest check",
    ),
    Rule(
        scope="spec",
        field="accelerator.slices",
        accepted="1 with capacity of type queuedProvisioning: GKE takes one pool's nodes per ProvisioningRequest",
        cel="self.accelerator.slices == 1 || self.capacity.all(option, option.type != 'queuedProvisioning')",
        is_kept=lambda spec: spec.accelerator.slices == 1 or not _is_queued_by_google(spec),
    ),
    Rule(
        scope="spec.rollout",
        field="minNewTokens",
        accepted="at most maxNewTokens",
        cel="!has(self.minNewTokens) || self.minNewTokens <= self.maxNewTokens",
        is_kept=lambda rollout: rollout.min_new_tokens <= rollout.max_new_tokens,
    ),
    Rule(
        scope="spec.rollout.speculative",
        field="",
        accepted="exactly one of ngram, draft",
        cel="has(self.ngram) != has(self.draft)",
        is_kept=lambda speculative: (speculative.ngram is None) != (speculative.draft is None),
        hint="speculative: {ngram: {}}",
    ),
    Rule(
        scope="spec.rollout",
        field="speculative",
        accepted="unset, because only the native engine is told how to speculate",
        cel="!has(self.speculative) || self.engine == 'native'",
        is_kept=lambda rollout: rollout.speculative is None or rollout.engine == "native",
    ),
    Rule(
        scope="spec.rollout",
        field="samplerShare",
        accepted="unset, or together with placement: disaggregated",
        cel="!has(self.samplerShare) || self.placement == 'disaggregated'",
        is_kept=lambda rollout: rollout.sampler_share is None or rollout.placement == "disaggregated",
    ),
    Rule(
        scope="spec.rollout",
        field="placement",
        accepted="colocated, because vllm samples where it runs; only the native engine's chips are split",
        cel="self.placement == 'colocated' || self.engine == 'native'",
        is_kept=lambda rollout: rollout.placement == "colocated" or rollout.engine == "native",
    ),
    Rule(
        scope="spec.rollout",
        field="maxStaleness",
        accepted="0, or together with placement: disaggregated, because the same chips do not sample while they train",
        cel="self.maxStaleness == 0 || self.placement == 'disaggregated'",
        is_kept=lambda rollout: rollout.max_staleness == 0 or rollout.placement == "disaggregated",
    ),
    Rule(
        scope="spec",
        field="rollout.maxStaleness",
        accepted="a multiple of updatesPerBatch, because all updates of a batch use samples of the same weights",
        cel="(!has(self.algorithm.grpo) || self.rollout.maxStaleness % self.algorithm.grpo.updatesPerBatch == 0) && "
        "(!has(self.algorithm.ppo) || self.rollout.maxStaleness % self.algorithm.ppo.updatesPerBatch == 0)",
        is_kept=_lags_whole_batches,
    ),
    Rule(
        scope="spec",
        field="rollout.placement",
        accepted="colocated, because only grpo, ppo and on-policy distillation can sample on other chips",
        cel="self.rollout.placement == 'colocated' || has(self.algorithm.grpo) || has(self.algorithm.ppo) || "
        "(has(self.algorithm.distill) && self.algorithm.distill.mode == 'on-policy')",
        is_kept=_samples_while_it_trains,
    ),
    Rule(
        scope="spec",
        field="runtime",
        accepted="at most one of native, maxtext, container",
        cel="!has(self.runtime) || [has(self.runtime.native), has(self.runtime.maxtext), "
        "has(self.runtime.container)].filter(x, x).size() <= 1",
        is_kept=lambda spec: len(spec.runtime.model_dump(exclude_none=True)) <= 1,
    ),
    Rule(
        scope="spec",
        field="preflight",
        accepted="Skip or unset, because posttrain's own trainer is what is compiled",
        cel="!has(self.preflight) || self.preflight == 'Skip' || !has(self.runtime) || "
        "!(has(self.runtime.container) || has(self.runtime.maxtext))",
        is_kept=lambda spec: spec.preflight in (None, "Skip") or spec.runtime.is_native,
    ),
    Rule(
        scope="spec",
        field="image",
        accepted="an image with the program that the runtime names, because the operator's own has posttrain's trainer",
        cel="has(self.image) || !has(self.runtime) || !(has(self.runtime.container) || has(self.runtime.maxtext))",
        is_kept=lambda spec: spec.image is not None or spec.runtime.is_native,
        hint="image: registry/name@sha256:…",
    ),
    Rule(
        scope="spec",
        field="queuePriorityClassName",
        accepted="unset, or together with queue, in which it orders",
        cel="!has(self.queuePriorityClassName) || has(self.queue)",
        is_kept=lambda spec: spec.queue_priority_class_name is None or spec.queue is not None,
    ),
    Rule(
        scope="spec",
        field="accelerator.slices",
        accepted=f"at most {POOLS_OF_A_CHECK} with queue and capacity that makes node pools: an admission check of "
        "Kueue can name no more",
        cel="!has(self.queue) || self.capacity.all(option, option.type == 'existing') || "
        f"self.accelerator.slices <= {POOLS_OF_A_CHECK}",
        is_kept=lambda spec: (
            spec.queue is None
            or all(option.type == "existing" for option in spec.capacity)
            or spec.accelerator.slices <= POOLS_OF_A_CHECK
        ),
    ),
    # The pod
    Rule(
        scope="spec.env[]",
        field="",
        accepted="exactly one of value, valueFrom",
        cel="has(self.value) != has(self.valueFrom)",
        is_kept=lambda variable: (variable.value is None) != (variable.value_from is None),
        secret=True,
    ),
    Rule(
        scope="spec.env[]",
        field="value",
        accepted="unset, because the name says it is a secret, and a job can be read by many",
        cel=f"!has(self.value) || !self.name.matches('{SECRET_NAME}')",
        is_kept=lambda variable: not _is_literal_secret(variable),
        hint="valueFrom: {secretKeyRef: {name: …, key: …}}",
        secret=True,
    ),
    Rule(
        scope="spec.env[]",
        field="name",
        accepted="a variable that the operator does not set itself, as it does JAX_COORDINATOR_ADDRESS, "
        "JAX_NUM_PROCESSES, JAX_PROCESS_ID, POSTTRAIN_… and MEGASCALE_…",
        cel=f"!self.name.matches('{OPERATOR_ENV}')",
        is_kept=lambda variable: re.match(OPERATOR_ENV, variable.name) is None,
    ),
    Rule(
        scope="spec",
        field="env",
        accepted="variables with different names",
        # The CRD says this with x-kubernetes-list-type: map.
        cel="",
        is_kept=lambda spec: _is_unique([variable.name for variable in spec.env]),
        secret=True,
    ),
    Rule(
        scope="spec.volumes[]",
        field="",
        accepted="exactly one of configMap, secret, persistentVolumeClaim, emptyDir",
        cel=f"{_CEL_SOURCES}.filter(x, x).size() == 1",
        is_kept=lambda volume: _sources(volume) == 1,
    ),
    Rule(
        scope="spec.volumes[]",
        field="mountPath",
        accepted=f"a path outside {JOB_DIR}, where the operator mounts the job",
        cel=f"self.mountPath != '{JOB_DIR}' && !self.mountPath.startsWith('{JOB_DIR}/')",
        is_kept=lambda volume: volume.mount_path != JOB_DIR and not volume.mount_path.startswith(f"{JOB_DIR}/"),
    ),
    Rule(
        scope="spec.volumes[]",
        field="name",
        accepted="a name that does not start with posttrain-, as the operator's own volumes do",
        cel="!self.name.startsWith('posttrain-')",
        is_kept=lambda volume: not volume.name.startswith("posttrain-"),
    ),
    Rule(
        scope="spec",
        field="volumes",
        accepted="volumes with different names",
        cel="",
        is_kept=lambda spec: _is_unique([volume.name for volume in spec.volumes]),
    ),
    Rule(
        scope="spec",
        field="volumes",
        accepted="volumes with different mount paths",
        cel="!has(self.volumes) || self.volumes.all(a, self.volumes.exists_one(b, b.mountPath == a.mountPath))",
        is_kept=lambda spec: _is_unique([volume.mount_path for volume in spec.volumes]),
    ),
)
