"""Rules for distillation, sdpo's too: who teaches, and on whose samples."""

from ptapi.validation.predicate import Predicate, compare, differs, equals, filled, has, unset
from ptapi.validation.rule import SPEC, Rule, Scope

_HAS_NO_SELF_TEACHER = unset("algorithm.distill") | unset("algorithm.distill.selfTeacher")
_DISTILL = Scope("spec.algorithm.distill")
_SELF_TEACHER = Scope("spec.algorithm.distill.selfTeacher")
_SDPO = Scope("spec.algorithm.sdpo")


RULES: tuple[Rule, ...] = (
    _DISTILL.rule(
        "teacher",
        "a teacher, or selfTeacher; none where mode is offline",
        Predicate(
            "[has(self.teacher), has(self.selfTeacher)].filter(x, x).size() == (self.mode == 'offline' ? 0 : 1)",
            lambda distill: (
                [distill.teacher, distill.self_teacher].count(None) == (2 if distill.mode == "offline" else 1)
            ),
        ),
        "teacher: {uri: gs://bucket/dir}",
    ),
    _DISTILL.rule(
        "mode",
        "on-policy where selfTeacher is set: it teaches on the student's own samples",
        unset("selfTeacher") | equals("mode", "on-policy"),
    ),
    _DISTILL.rule(
        "studentShare",
        "1 where selfTeacher is set: it teaches on the student's own samples",
        unset("selfTeacher") | equals("studentShare", 1.0),
    ),
    _SELF_TEACHER.rule(
        "privilegedContext",
        "text with {prompt}, which stands for the question",
        unset("privilegedContext")
        | Predicate(
            "self.privilegedContext.contains('{prompt}')", lambda teacher: "{prompt}" in teacher.privileged_context
        ),
        'privilegedContext: "{prompt}\\n\\nA right answer: {answer}"',
    ),
    _SELF_TEACHER.rule(
        "weights",
        "initial or average without privilegedContext, because nobody learns from saying the same again",
        has("privilegedContext") | differs("weights", "current"),
    ),
    SPEC.rule(
        "algorithm.distill.selfTeacher.weights",
        "initial or current, unless training.ema keeps an average",
        _HAS_NO_SELF_TEACHER | has("training.ema") | differs("algorithm.distill.selfTeacher.weights", "average"),
        "training: {ema: {decay: 0.99}}",
    ),
    SPEC.rule(
        "data.eval",
        "unset, or together with rewards: a self-teacher is asked about the student's samples alone",
        _HAS_NO_SELF_TEACHER | unset("data.eval") | filled("rewards"),
    ),
    _DISTILL.rule(
        "topK", "0 where mode is offline, because the data say how many", equals("topK", 0) | differs("mode", "offline")
    ),
    _DISTILL.rule(
        "studentShare",
        "1, because only mode on-policy mixes the student's samples with the data",
        equals("studentShare", 1.0) | equals("mode", "on-policy"),
    ),
    _SDPO.rule(
        "solutionContext",
        "text with {prompt} and {solution}, which stand for the question and a good sample",
        Predicate(
            "self.solutionContext.contains('{prompt}') && self.solutionContext.contains('{solution}')",
            lambda sdpo: "{prompt}" in sdpo.solution_context and "{solution}" in sdpo.solution_context,
        ),
        'solutionContext: "{prompt}\\n\\nA correct solution:\\n\\n{solution}"',
    ),
    _SDPO.rule(
        "feedbackContext",
        "text with {prompt} and without {solution}: no other sample is good there",
        unset("feedbackContext")
        | Predicate(
            "self.feedbackContext.contains('{prompt}') && !self.feedbackContext.contains('{solution}')",
            lambda sdpo: "{prompt}" in sdpo.feedback_context and "{solution}" not in sdpo.feedback_context,
        ),
        'feedbackContext: "{prompt}\\n\\nA hint: {hint}"',
    ),
    _SDPO.rule(
        "beta",
        "1 with signal: sampled-token, whose gradient is that of the reverse KL",
        equals("beta", 1.0) | equals("signal", "distribution"),
    ),
    _SDPO.rule(
        "topK",
        "0 with signal: sampled-token, which compares one token",
        equals("topK", 0) | equals("signal", "distribution"),
    ),
    _SDPO.rule(
        "policy",
        "unset with distillationWeight: 1, which leaves the policy loss out",
        unset("policy") | compare("distillationWeight", "<", 1.0),
        "distillationWeight: 0.5",
    ),
    SPEC.rule(
        "algorithm.sdpo.distillationWeight",
        "1 with a rollout.temperature other than 1: the policy loss would weigh samples of another distribution",
        unset("algorithm.sdpo") | equals("algorithm.sdpo.distillationWeight", 1.0) | equals("rollout.temperature", 1.0),
        "rollout: {temperature: 1.0}",
    ),
    SPEC.rule(
        "algorithm.sdpo.teacher",
        "initial or current, unless training.ema keeps an average",
        unset("algorithm.sdpo") | has("training.ema") | differs("algorithm.sdpo.teacher", "average"),
        "training: {ema: {decay: 0.95}}",
    ),
)
