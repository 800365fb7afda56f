"""The CRD: up to date, structural, bounded, complete; and its rules in CEL agree with Python.

What a server makes of every wrong manifest and every example: tests/integration/ptapi.
"""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.unit.ptapi import test_wrong_manifests as table

from ptapi.crd.definition import COLUMNS, crd, crd_yaml, openapi_schema
from ptapi.crd.immutable_fields import frozen_fields
from ptapi.errors import SpecError
from ptapi.load import parse_job
from ptapi.spec import PostTrainJob, PostTrainJobSpec
from ptapi.spec.openapi_schema import ANY_SCALAR, INT_OR_STRING, Schema
from ptapi.text.messages import PATTERN_DESCRIPTIONS
from ptapi.validation import RULES
from ptapi.validation.accelerator_cel import UNKNOWN
from ptapi.validation.rule import Rule, objects_at
from ptapi.validation.rules.chips.accelerator import checked_by_table
from ptlocal.apiserver.schema.cel import RuleWalk, activation, program
from ptlocal.apiserver.schema.cel.values import as_cel, escaped
from ptlocal.apiserver.schema.defaulting import apply_defaults

ROOT = Path(__file__).parents[3]
SCHEMA = openapi_schema()
# The name and kind of an object are the API server's own business.
OURS = [wrong for wrong in table.WRONG if wrong.field not in ("apiVersion", "kind", "metadata.name")]


def is_well_formed(wrong: Any) -> bool:
    """Whether the mistake is one between fields, so that rules are reached at all."""
    try:
        PostTrainJob.model_validate(table.patched(wrong.patch), strict=True, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def defaulted(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the schema's defaults, as the API server fills them in."""
    filled = copy.deepcopy(document)
    apply_defaults(filled, SCHEMA)
    return filled


def test_crd_files_are_up_to_date() -> None:
    for name, marks in (("manifests/crds", {}), ("charts/posttrain/files", {"helm.sh/resource-policy": "keep"})):
        written = (ROOT / name / "posttrain.dev_posttrainjobs.yaml").read_text()
        assert written == crd_yaml(marks), "hint: make crds"
    assert yaml.safe_load(crd_yaml()) == crd()


def test_schema_is_structural() -> None:
    for path, node in nodes(SCHEMA):
        assert not {"$ref", "anyOf", "oneOf", "allOf", "title", "const"} & node.keys(), path
        assert "type" in node or node.get(INT_OR_STRING) or node.get(ANY_SCALAR), path
        assert ("items" in node) == (node.get("type") == "array"), path


def test_no_rule_stands_twice_at_one_place_because_a_server_takes_them_by_their_text() -> None:
    """Server-side apply refuses such a CRD as a whole."""
    for path, node in nodes(SCHEMA):
        rules = [each["rule"] for each in node.get("x-kubernetes-validations", [])]
        assert len(rules) == len(set(rules)), path


def test_no_rule_reads_a_field_by_a_word_that_cel_reserves() -> None:
    reserved = re.compile(r"\.(as|const|continue|else|for|function|if|import|in|let|namespace|package|return|var)\b")
    rules = [each["rule"] for _, node in nodes(SCHEMA) for each in node.get("x-kubernetes-validations", [])]
    assert len(rules) > 100
    assert [rule for rule in rules if reserved.search(rule)] == [], "Kubernetes has such a field as __function__"


def test_a_builtins_and_a_functions_name_distinguish_rewards() -> None:
    (rule,) = (rule.predicate.cel for rule in RULES if rule.accepted.startswith("rewards with different names"))
    schema = SCHEMA["properties"]["spec"]
    for function, accepted in (("reward", True), ("length", False)):
        rewards = [{"builtin": "length"}, {"python": {"code": "a = 1", "function": function}}]
        assert program(rule).run(activation({"self": as_cel({"rewards": rewards}, schema)})) is accepted


def test_every_default_keeps_the_rules_as_it_is_written() -> None:
    """As the API server holds it against them, before it fills in the defaults below it."""
    judged = [(path, node) for path, node in nodes(SCHEMA) if isinstance(node.get("default"), dict)]
    assert ".spec.rollout" in [path for path, _ in judged]
    for path, node in judged:
        assert RuleWalk(node).errors(node["default"]) == [], path


def test_everything_in_a_spec_is_bounded_so_that_rules_over_it_have_a_cost() -> None:
    for path, node in nodes(SCHEMA["properties"]["spec"]):
        kind = node.get("type")
        assert kind != "string" or "maxLength" in node or "enum" in node, path
        assert kind != "array" or "maxItems" in node, path
        assert kind != "integer" or {"minimum", "maximum"} <= node.keys(), path


def test_bounds_of_numbers_are_whole_where_zero_or_one_is_a_value() -> None:
    # The API server compares a whole number with the whole part of a bound: 0 is not below 0.5 to it.
    for path, node in nodes(SCHEMA):
        if node.get("exclusiveMaximum"):
            assert node["maximum"] == int(node["maximum"]), path


def test_every_field_has_a_description() -> None:
    for path, node in nodes(SCHEMA):
        if path and not path.endswith("[]") and not path.startswith(".metadata"):
            assert node.get("description"), path


def test_every_pattern_has_words() -> None:
    for path, node in nodes(SCHEMA):
        assert node.get("pattern", "^/.+$") in {*PATTERN_DESCRIPTIONS, "^/.+$"}, path


def test_every_column_reads_a_field_that_exists() -> None:
    paths = {path for path, _ in nodes(SCHEMA)}
    for column in COLUMNS:
        assert column["jsonPath"] in paths | {".metadata.creationTimestamp"}, column
    shown = [column["name"] for column in COLUMNS if "priority" not in column]
    assert shown == ["Phase", "Algorithm", "Accelerator", "Step", "Loss", "Reward", "ETA", "Age"]


def test_defaults_show_the_recipe_and_nothing_that_is_unset() -> None:
    spec = defaulted(table.GOOD)["spec"]
    recipe = {"beta": 0.0, "combineRewards": "sum", "groupSize": 4, "kl": "k2", "loss": "grpo", "updatesPerBatch": 1}
    recipe |= {"maskTruncated": False}
    correction = {"mode": "token-truncate", "lowest": 0.0, "highest": 2.0}
    assert spec["algorithm"] == {"grpo": {**recipe, "samplerCorrection": correction}}
    assert spec["capacity"] == [{"type": "existing"}]
    assert spec["runPolicy"] == {"suspend": False, "maxRestarts": 3, "terminationGracePeriodSeconds": 300}
    assert spec["training"]["optimizer"]["maxGradNorm"] == 1.0
    assert not {"env", "volumes", "runtime", "queue", "imagePullSecrets"} & spec.keys()


def evaluate(rule: str, **values: Any) -> bool:
    """By the embedded API server's CEL."""
    return program(rule).run(activation(values)) is True


def has_cel(rule: Rule) -> bool:
    # Python says more about chips, and about functions of the same name; both are tested apart.
    return (
        bool(rule.predicate.cel)
        and rule.predicate.holds is not checked_by_table
        and "different names" not in rule.accepted
    )


@pytest.mark.parametrize("wrong", list(filter(is_well_formed, OURS)), ids=lambda wrong: wrong.name)
def test_each_rule_says_the_same_in_cel_and_in_python(wrong: Any) -> None:
    document = table.patched(wrong.patch)
    job = PostTrainJob.model_validate(document, by_alias=True, by_name=False)
    whole = as_cel(defaulted(document), SCHEMA)
    for rule in filter(has_cel, RULES):
        for path, value in objects_at(job, rule.scope):
            here = _document_at(whole, path)
            # Where nothing is, the API server evaluates nothing.
            kept = here is None or evaluate(rule.predicate.cel, self=here)
            assert kept == rule.predicate.holds(value), (rule, path)


def _document_at(document: Any, path: str) -> Any:
    for step in path.replace("]", "").replace("[", ".").split(".") if path else []:
        document = document[int(step)] if isinstance(document, list) else document.get(escaped(step))
        if document is None:
            return None
    return document


CHANGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"spec.runPolicy": {"suspend": True}}, ""),
    ({}, {"spec.runPolicy": {"activeDeadlineSeconds": 60}}, ""),
    ({}, {"spec.runPolicy": {"ttlSecondsAfterFinished": 60}}, ""),
    ({}, {"metadata.labels": {"team": "a"}}, ""),
    ({"spec.runPolicy": {"suspend": True}}, {"spec.runPolicy": {"suspend": True}, "spec.queue": "b"}, ""),
    ({"spec.runPolicy": {"suspend": True}}, {"spec.queue": "b"}, ""),
    ({}, {"spec.queue": "b"}, "spec.queue"),
    ({"spec.queue": "a"}, {}, "spec.queue"),
    ({}, {"spec.runPolicy": {"suspend": True}, "spec.queue": "b"}, "spec.queue"),
    ({}, {"spec.runPolicy": {"maxRestarts": 4}}, "spec.runPolicy.maxRestarts"),
    ({}, {"spec.model.uri": "random://small"}, "spec.model.uri"),
    ({}, {"spec.training.steps": 11}, "spec.training.steps"),
    ({}, {"spec.training.steps": table.GONE}, "spec.training.steps"),
    ({}, {"spec.accelerator.slices": 2}, "spec.accelerator.slices"),
    ({}, {"spec.output.uri": "file:///other"}, "spec.output.uri"),
    ({}, {"spec.pathways": {"enabled": False}}, "spec.pathways"),
    ({}, {"spec.training.optimizer": {"learningRate": 1e-3}}, "spec.training.optimizer.learningRate"),
    ({}, {"spec.training.parallelism": {"fsdp": 2}}, "spec.training.parallelism.fsdp"),
    ({}, {"spec.algorithm.grpo.groupSize": 8}, "spec.algorithm.grpo"),
    ({}, {"spec.env": [{"name": "A", "value": "1"}]}, "spec.env"),
    ({}, {"spec.priorityClassName": "high"}, "spec.priorityClassName"),
]


@pytest.mark.parametrize(("before", "after", "field"), CHANGES, ids=lambda value: str(value)[:60])
def test_changes_after_creation_are_refused_and_the_field_is_named(
    before: dict[str, Any], after: dict[str, Any], field: str
) -> None:
    old, new = table.patched(before), table.patched(after)
    specs = {"self": defaulted(new)["spec"], "oldSelf": defaulted(old)["spec"]}
    broken = [
        f"spec{validation['fieldPath']}"
        for validation in SCHEMA["properties"]["spec"]["x-kubernetes-validations"]
        if "oldSelf" in validation["rule"] and not evaluate(validation["rule"], **specs)
    ]
    assert broken == ([field] if field else [])


def test_every_field_of_the_spec_is_either_frozen_or_named_as_changeable() -> None:
    tops = {name.partition(".")[0] for name in frozen_fields()}
    assert tops == {field.alias for field in PostTrainJobSpec.model_fields.values()} - {"queue"}
    assert [name for name in frozen_fields() if name.startswith("runPolicy")] == [
        "runPolicy.maxRestarts",
        "runPolicy.terminationGracePeriodSeconds",
        "runPolicy.hangTimeoutSeconds",
    ]


NAMES = (
    "v5p-8", "v5p-9", "v5e-16", "v5litepod-16", "trillium-4", "ironwood-128", "tpu7x-4x4x4", "cpu-64", "cpu-65",
    "cpu-0", "v4-2", "v6e-512", "v5p-12288", "v5p-17920", "gpu-8", "v5p", "tpu7x-2", "v6e-1", "v5p-4x4x4",
)  # fmt: skip


def spec_rules() -> list[Rule]:
    return [rule for rule in RULES if rule.predicate.holds is checked_by_table]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parallelism", [{}, {"tensor": 2}, {"fsdp": 4, "data": 2}, {"sequence": 4}, {"data": 3}])
@pytest.mark.parametrize(("batch", "slices"), [(64, 1), (12288, 1), (12288, 2)])
def test_what_chips_ask_is_the_same_in_cel_and_in_python(
    name: str, parallelism: dict[str, Any], batch: int, slices: int
) -> None:
    training = {"spec.training.batchSize": batch, "spec.training.parallelism": parallelism}
    chips = {"spec.accelerator": {"type": name, "slices": slices}}
    document = table.patched({**table.SFT, **training, **chips})
    try:
        parse_job(document)
        fields = set()
    except SpecError as error:
        fields = {finding.field for finding in error.findings} - {"spec.accelerator.slices"}  # no rule of the table
    spec = defaulted(document)["spec"]
    refused = {
        f"{rule.scope}.{rule.field}"
        for rule in spec_rules()
        if not evaluate(rule.predicate.cel, self=spec if rule.scope == "spec" else spec["accelerator"])
    }
    if "x" in name.partition("-")[2]:
        assert refused == set(), "shapes are left to Python"
    elif "spec.accelerator.type" in fields:
        assert "spec.accelerator.type" in refused
    elif "spec.training.parallelism" in fields:
        assert "spec.training.parallelism" in refused
    else:
        assert refused == fields


@pytest.mark.parametrize(
    ("type", "topology", "kept"),
    [
        ("v5p-128", "4x4x4", True), ("v5p-128", "2x4x8", True), ("v5p-128", "4x4x8", False), ("v6e-16", "4x4", True),
        ("v6e-16", "4x8", False), ("cpu-8", "2x4", False), ("tpu7x-16", "2x2x2", True), ("v5p-4x4x4", "2x2x2", True),
    ],
)  # fmt: skip
def test_topology_with_other_chips_is_refused_at_the_server(type: str, topology: str, kept: bool) -> None:
    rule = next(rule for rule in RULES if rule.field == "topology")
    assert evaluate(rule.predicate.cel, self={"type": type, "topology": topology}) == kept


@pytest.mark.parametrize(
    ("type", "message"),
    [
        ("v5p-9", "v5p-9: does not exist; nearest: v5p-8 (4 chips), v5p-16 (8 chips)"),
        ("v5e-12", "v5e-12: does not exist; nearest: v5e-8 (8 chips), v5e-16 (16 chips)"),
        ("v4-2", "v4-2: does not exist; nearest: v4-8 (4 chips)"),
        ("v6e-512", "v6e-512: does not exist; nearest: v6e-256 (256 chips)"),
        ("h800-8", f"h800-8: {UNKNOWN}"),
        ("h100-3", "h100-3: does not exist; nearest: h100-2 (2 GPUs), h100-4 (4 GPUs)"),
        ("rtx-pro-6000-9", "rtx-pro-6000-9: does not exist; nearest: rtx-pro-6000-8 (8 GPUs)"),
    ],
)
def test_message_of_the_server_names_the_neighbours(type: str, message: str) -> None:
    rule = next(rule for rule in RULES if rule.scope == "spec.accelerator" and rule.field == "type")
    assert program(rule.cel_message).run(activation({"self": {"type": type}})) == message


def test_kubectl_can_keep_the_definition_in_an_annotation() -> None:
    """`kubectl apply` without --server-side keeps it whole in one annotation, and those have 256 KiB together.

    Go writes each of <, > and & as six bytes, and the others of a CRD need less than 1 KiB.
    """
    written = json.dumps(crd(), separators=(",", ":"), ensure_ascii=False)
    assert len(written.encode()) + 5 * sum(map(written.count, "<>&")) < 255 * 1024
