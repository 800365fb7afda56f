"""The CustomResourceDefinition of PostTrainJob, generated from the models and the rules.

`python -m ptapi.crd.definition` prints it. The one idea: at `kubectl apply` the API server refuses everything that JSON
schema and CEL can refuse, with the messages of `ptapi.load`; the operator refuses the rest (accelerators, batches over
devices). Defaults are materialised, so that `kubectl get -o yaml` shows them; fields without a default stay absent.
"""

import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ptapi.crd.immutable_fields import MESSAGE, QUEUE, QUEUE_MESSAGE, frozen_fields, queue_rule, transition_rule
from ptapi.spec import API_GROUP, API_VERSION, KIND, PLURAL, PostTrainJobSpec
from ptapi.spec.openapi_schema import Schema, structural
from ptapi.status import PostTrainJobStatus
from ptapi.text import kubectl_yaml
from ptapi.validation import RULES
from ptapi.validation.predicate import own
from ptapi.validation.rule import Rule

SHORT_NAMES = ["ptj"]
CATEGORIES = ["all"]
VALIDATIONS = "x-kubernetes-validations"
MAX_NAME = 63


def _column(name: str, path: str, type: str = "string", *, wide: bool = False, description: str = "") -> Schema:
    column: Schema = {"name": name, "type": type, "jsonPath": path, "description": description}
    return column | {"priority": 1} if wide else column


COLUMNS = [
    _column("Phase", ".status.phase", description="What the job is doing."),
    _column("Algorithm", ".status.algorithm", description="The algorithm, or the variant of GRPO."),
    _column("Accelerator", ".spec.accelerator.type", description="The chips; -o wide shows how many."),
    _column("Step", ".status.progress.steps", description="Optimizer steps done and in total."),
    _column("Loss", ".status.metrics.loss", description="Training loss."),
    _column("Reward", ".status.metrics.reward", description="Mean reward."),
    _column("ETA", ".status.progress.eta", description="Time to the end."),
    _column("Chips", ".status.chips", "integer", wide=True, description="TPU chips over all slices."),
    _column("Slices", ".spec.accelerator.slices", "integer", wide=True, description="Number of slices."),
    _column("Stage", ".status.progress.stage", wide=True, description="What the trainer is doing."),
    _column("Tokens/s/chip", ".status.metrics.tokensPerSecondPerChip", wide=True, description="Throughput."),
    _column("Failure", ".status.failure.failureClass", wide=True, description="Class of the newest failure."),
    _column("Queue", ".spec.queue", wide=True, description="Kueue LocalQueue."),
    _column("Run", ".status.links.run", wide=True, description="The run directory."),
    _column("Age", ".metadata.creationTimestamp", "date", description="Time since creation."),
]

SELECTABLE = [".spec.accelerator.type", ".spec.queue", ".status.phase"]


def crd() -> Schema:
    """Return the CRD as a document, ready to apply."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": SHORT_NAMES,
                "categories": CATEGORIES,
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def crd_yaml(annotations: Mapping[str, str] | None = None) -> str:
    """Return the CRD as a file; without annotations it is the one in manifests/crds."""
    document = crd()
    if annotations:
        document["metadata"]["annotations"] = dict(annotations)
    return (
        f"# Generated from api/ptapi by `make crds`; change the models, not this file.\n{kubectl_yaml.write(document)}"
    )


def openapi_schema() -> Schema:
    """Return the schema of a whole job, as the API server stores it."""
    spec = _with_defaults(structural(PostTrainJobSpec))
    root: Schema = {
        "description": "One post-training run: a model, data, an algorithm, and the chips to run it on.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{API_GROUP}/{API_VERSION}"},
            "kind": {"type": "string", "description": KIND},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": MAX_NAME}}},
            "spec": spec,
            "status": _without_defaults(structural(PostTrainJobStatus)),
        },
    }
    for rule in RULES:
        if rule.predicate.cel:
            node = _descend(root, rule.scope.split(".") if rule.scope else [])
            _attach(node, _validation(rule, node))
    _expand_validated_defaults(spec)
    for validation in _transitions():
        _attach(spec, validation)
    return root


def _version() -> Schema:
    return {
        "name": API_VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": COLUMNS,
        "selectableFields": [{"jsonPath": path} for path in SELECTABLE],
        "schema": {"openAPIV3Schema": openapi_schema()},
    }


def _validation(rule: Rule, node: Schema) -> Schema:
    if rule.cel_message:
        texts = {"message": rule.message, "messageExpression": rule.cel_message}
    else:
        texts = {"message": rule.message} if rule.secret else _texts(node, rule.field, rule.message, rule.predicate.cel)
    place = {"fieldPath": f".{rule.field}"} if rule.field else {}
    return {"rule": rule.predicate.cel, **texts, **place}


def _texts(node: Schema, field: str, message: str, rule: str) -> Schema:
    """Return the message with the field's value, and alone where the field may be unset and refused by the rule (CEL).

    Not alone everywhere: the definition must fit in an annotation of kubectl's.
    """
    if not _is_scalar(node, field):
        return {"message": message}
    is_set = _is_always_set(node, field) or rule.startswith(f"!has({own(field)}) ||")
    fallback = {} if is_set else {"message": message}
    return fallback | {"messageExpression": _with_value(field, message)}


def _is_scalar(node: Schema, field: str) -> bool:
    target = _descend(node, field.split(".")) if field else node
    return target.get("type") in ("string", "integer", "number", "boolean")


def _is_always_set(node: Schema, field: str) -> bool:
    """Return True if every object of a schema has the field: on the way to it, all is required or has a default."""
    for step in field.split(".") if field else ():
        if step not in node.get("required", ()) and "default" not in node["properties"][step]:
            return False
        node = node["properties"][step]
    return True


def _with_value(field: str, message: str) -> str:
    """Return CEL for the value and the message. Without a value CEL fails, and the message stands alone."""
    text = message.replace("\\", "\\\\").replace("'", "\\'").replace("%", "%%")
    return f"'%s: {text}'.format([{own(field)}])"


def _transitions() -> Iterator[Schema]:
    for field in frozen_fields():
        yield _transition(field, transition_rule(field), MESSAGE)
    yield _transition(QUEUE, queue_rule(), QUEUE_MESSAGE)


def _transition(field: str, rule: str, message: str) -> Schema:
    # Without the value: there is one for every field, and the definition must fit in an annotation of kubectl's.
    return {"rule": rule, "message": message, "fieldPath": f".{field}"}


def _attach(schema: Schema, validation: Schema) -> None:
    schema.setdefault(VALIDATIONS, []).append(validation)


def _descend(schema: Schema, steps: list[str]) -> Schema:
    for step in steps:
        schema = schema["properties"][step.removesuffix("[]")]
        schema = schema["items"] if step.endswith("[]") else schema
    return schema


def _with_defaults(schema: Schema) -> Schema:
    """Set defaults as the API server fills them in: a parent's default is {}, its children's follow."""
    node = copy.deepcopy(schema)
    for field in _objects(node):
        default = _crd_default(field, field.pop("default", None))
        if default is not None:
            field["default"] = default
    return node


def _expand_validated_defaults(spec: Schema) -> None:
    """Write out the defaults of objects with rules: the API server validates a default before it fills in more."""
    for node in _objects(spec):
        if node.get("default") == {} and VALIDATIONS in node:
            children = node["properties"].items()
            node["default"] = {name: below["default"] for name, below in children if "default" in below}


def _without_defaults(schema: Schema) -> Schema:
    """Remove defaults: a status has none, because what the operator has not observed is absent."""
    node = copy.deepcopy(schema)
    for field in _objects(node):
        field.pop("default", None)
    return node


def _objects(node: Schema) -> Iterator[Schema]:
    """Yield all nodes of the schema, children first."""
    for below in (*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")):
        if isinstance(below, dict):
            yield from _objects(below)
    yield node


def _crd_default(field: Schema, default: Any) -> Any:
    """Return the default as the CRD states it, or None for an empty list or a map that nothing would fill."""
    if isinstance(default, dict):
        return {} if any("default" in below for below in field["properties"].values()) else None
    if isinstance(default, list):
        return without_unset(default) or None
    return default


def without_unset(entries: list[Any]) -> list[Any]:
    """Return a list without what is unset in its maps."""
    return [
        {key: value for key, value in entry.items() if value not in (None, [])} if isinstance(entry, dict) else entry
        for entry in entries
    ]


if __name__ == "__main__":
    sys.stdout.write(crd_yaml())
