"""spec → YAML → spec is the identity, for jobs drawn at random from the schema."""

from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ptapi.errors import SpecError
from ptapi.load import dump_job, load_job, manifest, parse_job
from ptapi.spec import PostTrainJob, base
from ptapi.spec.openapi_schema import Schema, child, structural
from ptapi.text import kubectl_yaml

# Fields that rules tie to others, or that nothing does yet: left out here, set together in `jobs`.
TIED = {
    "dpo", "kto", "reward", "distill", "raft", "overlong", "mergeLora", "lora", "quantization",
    "samplerShare", "pathways", "runtime", "reservation", "revision", "uid", "best", "checkpoint",
    "steps", "epochs", "batchSize", "microBatchSize", "sequenceLength", "maxNewTokens", "everySteps", "pattern",
    "parallelism", "slices", "topology", "capacity", "placement", "engine", "maxStaleness", "beta1", "beta2", "eps",
    "labelSmoothing", "profile", "answers", "labels", "from", "minNewTokens", "queuePriorityClassName",
    "speculative", "vllm", "clipLow", "clipHigh", "dualClip", "softClip", "gammaWeight", "samplerCorrection",
    "resources", "pod", "kl", "finalFraction", "samples", "columns", "images", "vision", "stage", "panAndScan",
    "routingReplay", "separate", "inFlightUpdates", "entropyBonus", "referenceSync", "services",
}  # fmt: skip
ASCII = st.characters(min_codepoint=33, max_codepoint=126)
PLACES = ("gs://lab/m", "gs://a-b.c_d/e f/...x/", f"gs://{'a' * 63}.b", "file:///a", "file:///.cache/x-1")
# Patterns of many parts, which Hypothesis would draw from for minutes. No hf://, whose revisions are left out here.
EXAMPLES: dict[str, tuple[str, ...]] = {
    base.DATA_URI: (*PLACES, "gs://lab/part-*.jsonl"),
    base.OUTPUT_URI: PLACES,
    base.FILE_URI: ("gs://lab/t.jinja", "file:///a/t"),
    base.CODE_URI: ("gs://lab/r.py", "file:///a/b.c/r.py"),
    base.MODEL_URI: (*PLACES, "random://tiny"),
    base.HTTP_URL: ("https://a.b/v1", "http://[::1]:8000"),
    base.IMAGE: ("a", "r.io:5000/a/b-c:1.2", "a@sha256:" + "0" * 64),
    base.DNS_NAME: ("a", "a-b.c", "0"),
    base.ABSOLUTE_PATH: ("/a", "/a/.b/c-d"),
}
TEXT = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co"), exclude_characters="\u2028\u2029\ufeff"), max_size=40
)


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Values that a schema accepts, absent optional fields included."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema["type"]
    if kind == "object":
        return _maps(schema)
    if kind == "array":
        low, high = schema.get("minItems", 0), min(schema.get("maxItems", 3), 3)
        key = (lambda entry: entry["name"]) if "x-kubernetes-list-map-keys" in schema else repr
        return st.lists(values(schema["items"]), min_size=low, max_size=high, unique_by=key)
    if kind == "string":
        low, high = schema.get("minLength", 0), schema.get("maxLength", 40)
        if "pattern" in schema:
            if schema["pattern"] in EXAMPLES:
                return st.sampled_from(EXAMPLES[schema["pattern"]])
            drawn = st.from_regex(schema["pattern"], fullmatch=True, alphabet=ASCII)
            return drawn.filter(lambda text: low <= len(text) <= high)
        return TEXT.filter(lambda text: len(text) >= low)
    if kind == "boolean":
        return st.booleans()
    low, high = schema.get("minimum", 0), schema.get("maximum", 1000)
    if kind == "integer":
        return st.integers(low, high)
    return st.floats(low, high, exclude_min=schema.get("exclusiveMinimum", False),
                     exclude_max=schema.get("exclusiveMaximum", False))  # fmt: skip


def _maps(schema: Schema) -> st.SearchStrategy[Any]:
    if "properties" not in schema:
        entries = schema.get("additionalProperties")
        keys = st.sampled_from(("team", "a.b/c", "A_1"))
        return st.dictionaries(keys, values(entries), max_size=3) if entries else st.just({})
    drawn = {name: values(below) for name, below in schema["properties"].items() if name not in TIED}
    required = set(schema.get("required", []))
    return st.fixed_dictionaries(
        {name: field for name, field in drawn.items() if name in required},
        optional={name: field for name, field in drawn.items() if name not in required},
    )


@cache
def below(*path: str) -> st.SearchStrategy[Any]:
    """Values of a field of the spec."""
    node = structural(PostTrainJob)
    for step in ("spec", *path):
        field = child(node, step)
        assert field is not None
        node = field
    return values(node)


REWARD = st.one_of(
    st.builds(lambda drawn, name, kind: drawn | {"name": name} | kind,
              below("rewards").filter(bool).map(lambda rewards: {k: rewards[0][k] for k in rewards[0]
                                                                if k in ("weight", "timeoutSeconds")}),
              st.text("abcdefgh", min_size=1, max_size=20),
              st.sampled_from([{"builtin": "gsm8k"}, {"builtin": "format", "pattern": "a+"},
                               {"builtin": "length", "maxTokens": 64, "bufferTokens": 8},
                               {"python": {"uri": "file:///b/r.py"}, "batched": True},
                               {"model": {"uri": "gs://lab/m", "batchSize": 4}},
                               {"judge": {"url": "https://a.b/v1", "model": "m", "budget": {"calls": 9}}}])),
    st.sampled_from([{"builtin": "gsm8k"}, {"python": {"uri": "file:///r.py", "function": "score"}}]),
)  # fmt: skip


ENVIRONMENT = st.sampled_from(
    [None, {"tools": [{"builtin": "calculator"}, {"python": {"uri": "gs://lab/t.py", "function": "f"}}], "maxTurns": 2},
     {"python": {"uri": "file:///e.py", "className": "World"}, "rewardWeight": 0.5},
     {"gymnasium": {"id": "m:a/B-v0", "arguments": {"size": 3, "deep": {"x": [1.5, None]}}, "actions": ["up"]},
      "packages": ["m[x]==1.0.post1"]}, {"openenv": {"url": "http://e:8000", "actionField": "message"}},
     {"mcp": [{"name": "a", "url": "http://a:8000/mcp", "tools": ["look-up"], "apiKeyEnv": "KEY"}], "maxTurns": 3},
     {"mcp": [{"name": "a", "command": ["python", "-m", "a"]}], "packages": ["a==1"]},
     {"verifiers": {"id": "will/word-le", "arguments": {"deep": {"x": [1]}}}, "packages": ["verifiers==0.1.14"]}]
)  # fmt: skip


POD = st.sampled_from(
    [None, {"labels": {"team": "a"}, "hostNetwork": True, "affinity": {"podAntiAffinity": {}}},
     {"tolerations": [{"key": "a", "operator": "Exists"}], "containerSecurityContext": {"capabilities": {}},
      "initContainers": [{"name": "fetch", "command": ["fetch"], "restartPolicy": "Always"}]}]
)  # fmt: skip
AMOUNTS = {"cpu": "500m", "memory": 1073741824, "ephemeral-storage": "1e7"}
RESOURCES = st.sampled_from([None, {"trainer": {"requests": AMOUNTS, "limits": {"cpu": 1}}, "preflight": {}}])


SERVICES = st.sampled_from(
    [None, [{"name": "judge", "replicas": 2, "model": {"uri": "gs://lab/m"}, "accelerator": {"type": "v6e-4"}}],
     [{"name": "game", "image": "a/b:1", "command": ["play"], "env": [{"name": "A", "value": "1"}], "port": 9000}]]
)  # fmt: skip


SERVE = st.sampled_from(
    [None, {"tpu": "v6e-4", "name": "m", "replicas": {"min": 1, "max": 2}, "gateway": {"name": "outside"}},
     {"gpu": {"type": "nvidia-l4", "count": 2}, "adapters": [{"name": "a", "uri": "gs://lab/a"}], "maxLength": 4096}]
)  # fmt: skip


OPTIONAL = {
    "environment": ENVIRONMENT, "pod": POD, "resources": RESOURCES, "serve": SERVE, "services": SERVICES,
}  # fmt: skip


ENTROPY = st.sampled_from(
    [{}, {"entropyBonus": {"coefficient": 0.01}}, {"entropyBonus": {"adaptive": {"lowest": 0.0, "highest": 0.5}}},
     {"beta": 0.1, "referenceSync": {"everySteps": 4}}]
)  # fmt: skip


@cache
def _document() -> st.SearchStrategy[Any]:
    return values(structural(PostTrainJob))


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A random job that every rule accepts."""
    document: dict[str, Any] = draw(_document())
    spec = document["spec"]
    devices = draw(st.sampled_from([1, 2, 4, 8]))
    group = draw(st.sampled_from([2, 4, 8]))
    micro = 8 * draw(st.integers(1, 8))
    training = spec.setdefault("training", {})
    training |= {"batchSize": micro * draw(st.integers(1, 4)), "sequenceLength": draw(st.integers(64, 4096))}
    training |= draw(st.sampled_from([{}, {"steps": 5}, {"epochs": 0.5}]))
    training |= draw(st.sampled_from([{}, {"profile": {"start": 1, "steps": 5}}]))
    training |= draw(st.sampled_from([{}, {"microBatchSize": micro}]))
    training |= draw(st.sampled_from([{}, {"parallelism": {"fsdp": devices}}, {"parallelism": {"data": "auto"}}]))
    spec["accelerator"] = {"type": f"cpu-{devices}"}
    spec["capacity"] = [{"type": "existing"}]
    spec.setdefault("rollout", {})["maxNewTokens"] = draw(st.integers(1, training["sequenceLength"] - 1))
    if draw(st.booleans()):
        spec["algorithm"] = {"sft": draw(below("algorithm", "sft"))}
        spec["rewards"] = []
    else:
        spec["algorithm"] = {"grpo": draw(below("algorithm", "grpo")) | {"groupSize": group} | draw(ENTROPY)}
        spec["rewards"] = draw(st.lists(REWARD, min_size=1, max_size=3, unique_by=_label))
        spec["rewards"][0]["weight"] = draw(st.floats(0.5, 2))
    for name, drawn in OPTIONAL.items():
        spec.pop(name, None)
        value = draw(drawn)
        if value is not None:
            spec[name] = value
    spec.pop("sandbox", None)
    is_native = not set(spec.get("runtime", {})) - {"native"}
    if not is_native:
        spec.pop("services", None)
    if is_native and any("python" in tool for tool in spec.get("environment", {}).get("tools", [])):
        spec["sandbox"] = draw(below("sandbox")) | {"replicas": 3, "maxCreated": draw(st.integers(3, 9))}
    if "sft" in spec["algorithm"] and "environment" not in spec:
        spec["model"]["images"] = draw(st.booleans())
    spec["checkpoint"] = draw(below("checkpoint")) | {"everySteps": draw(st.integers(1, 1000))}
    if "eval" in spec["data"]:
        spec["checkpoint"] |= draw(st.sampled_from([{}, {"best": {"metric": "eval/loss", "keep": 2}}]))
        spec.setdefault("evaluation", {}).update(
            draw(st.sampled_from([{}, {"answers": ["macroF1"], "labels": ["a", "b"]}]))
        )
        spec.setdefault("evaluation", {})["everySteps"] = draw(st.integers(0, 100))
    spec.setdefault("export", {})["format"] = draw(st.sampled_from(["safetensors", "none"]))
    if spec["export"]["format"] == "none" or set(spec.get("runtime", {})) - {"native"}:
        spec.pop("serve", None)
    if not spec["output"]["uri"].startswith("gs://"):
        spec.setdefault("tensorboard", {})["server"] = False
    spec["model"].pop("images", None)
    tracking = spec.get("tracking", {})
    if "wandb" in tracking:
        tracking["wandb"]["mode"] = "online"
    if "trackio" in tracking:
        tracking["trackio"]["spaceId"] = "team/curves"
    if {"container", "maxtext"} & set(spec.get("runtime", {})):
        spec.pop("tracking", None)
    spec["env"] = [variable for variable in spec.get("env", []) if variable["name"].startswith("_")]
    for variable in spec["env"]:
        variable.pop("valueFrom", None)
        variable |= {"name": f"{variable['name']}_X", "value": draw(TEXT)}
    spec["volumes"] = [
        {"name": f"v{index}", "mountPath": f"/mnt/{index}", **source}
        for index, source in enumerate(draw(st.lists(SOURCES, max_size=3)))
    ]
    return document


def _label(reward: dict[str, Any]) -> str:
    function = reward.get("python", {}).get("function", "reward")
    return str(reward.get("name") or reward.get("builtin") or function)


SOURCES = st.sampled_from(
    [{"emptyDir": {}}, {"secret": {"secretName": "s"}}, {"configMap": {"name": "c"}, "readOnly": True},
     {"persistentVolumeClaim": {"claimName": "p"}}]
)  # fmt: skip


@settings(max_examples=30)
@given(jobs())
def test_spec_to_yaml_to_spec_is_the_identity(document: dict[str, Any]) -> None:
    job = parse_job(document)
    assert load_job(dump_job(job)) == job
    assert parse_job(job.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)) == job
    assert parse_job(manifest(job)) == job


@settings(max_examples=30)
@given(jobs())
def test_other_yaml_readers_see_the_same_job(document: dict[str, Any]) -> None:
    text = dump_job(parse_job(document))
    assert yaml.safe_load(text) == kubectl_yaml.read(text)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
    | st.sampled_from(["1e-6", "on", "y", "0o7", "1:30", "2024-01-01", "~", "null", "0x1", "1_000", ".5", "=", "<<"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8,
))  # fmt: skip
def test_yaml_that_is_written_is_read_back(value: Any) -> None:
    assert kubectl_yaml.read(kubectl_yaml.write({"value": value})) == {"value": value}


def test_numbers_are_kubectls() -> None:
    text = "a: 1e-6\nb: 1E3\nc: 6.0e-5\nd: .5\ne: 1_000\nf: 0x10\ng: 1:30\nh: 2026-01-01\ni: 1.\nj: -3\nk: 0o17\n"
    assert kubectl_yaml.read(text) == {
        "a": 1e-6, "b": 1000.0, "c": 6e-5, "d": 0.5, "e": 1000, "f": 16, "g": "1:30", "h": "2026-01-01", "i": 1.0,
        "j": -3, "k": 15,
    }  # fmt: skip


def test_file_modes_are_octal_and_no_other_number_begins_with_a_zero() -> None:
    assert kubectl_yaml.read("defaultMode: 0644\nitems: [{mode: 0400}]") == {
        "defaultMode": 420,
        "items": [{"mode": 256}],
    }
    for text in ("steps: 010", "steps: 09", "steps: -0_7", "010: steps"):
        with pytest.raises(SpecError, match=r'is an octal number to some.*"-?0'):
            kubectl_yaml.read(text)
