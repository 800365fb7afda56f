"""Rules for serving: what there is to serve, where, and what decides."""

from ptapi.validation.predicate import Predicate, compare, differs, has, is_true, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.pods.runtime_image_queue import IS_NATIVE

_SERVE = Scope("spec.serve")

RULES: tuple[Rule, ...] = (
    _SERVE.exactly_one("tpu", "gpu", hint="tpu: v6e-4, or gpu: {type: nvidia-l4}"),
    Scope("spec.serve.replicas").rule(
        "max", "at least serve.replicas.min", compare("max", ">=", "min"), "max: the most servers at a time"
    ),
    _SERVE.unset_unless(
        "gateway",
        compare("replicas.min", ">=", 1),
        "or together with replicas.min of at least 1: to a server that may not run, KEDA's interceptor leads",
        "replicas: {min: 1, max: 4}",
    ),
    Scope("spec.serve.bar").exactly_one("atLeast", "atMost"),
    SPEC.rule(
        "serve.bar",
        "unset, or together with data.eval and evaluation.atEnd: the last evaluation decides",
        unset("serve") | unset("serve.bar") | (has("data.eval") & is_true("evaluation.atEnd")),
        "data.eval: {uri: …}",
    ),
    SPEC.rule(
        "serve.bar.metric",
        "checkpoint.best.metric, because export.checkpoint is best: those weights are measured by it",
        unset("serve")
        | unset("serve.bar")
        | unset("checkpoint.best")
        | differs("export.checkpoint", "best")
        | compare("serve.bar.metric", "==", "checkpoint.best.metric"),
    ),
    SPEC.rule(
        "serve",
        "unset, or together with an export of posttrain's own trainer",
        unset("serve") | (differs("export.format", "none") & IS_NATIVE),
        "export: {format: safetensors}",
    ),
    _SERVE.rule(
        "adapters",
        "names that differ from the served model's own",
        Predicate("", lambda serve: serve.name is None or all(each.name != serve.name for each in serve.adapters)),
    ),
)
