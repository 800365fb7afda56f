"""`ptctl import`: command lines and documents of other tools, each with the exact manifest that it becomes.

The cases are files of blocks: `=== name`, the input, `--- exit code`, the output, `--- stderr`. `UPDATE_GOLDEN=1`
writes what comes out; read it before you keep it.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.ptctl.conftest import FakeKube
from tests.unit.ptoperator.render.test_render import SETTINGS, job, pod_spec

from ptapi.load import load_job
from ptctl.importers.command_lines.shell import as_text, parse, unknown
from ptoperator.render import jobset, layout_of

CASES = Path(__file__).parent / "cases"
ROOT = Path(__file__).parents[4]
SECRETS = ("hf_aaaabbbbccccdddd", "0123456789abcdef0123456789abcdef01234567", "sk-aaaabbbbccccdddd", "s3cr3tvalue")
"""The values of every secret in the cases."""
TOOLS = """
tool() { printf "%s\\0" "$@"; printf "\\1"; }
xpk() { tool xpk "$@"; }
gcluster() { tool gcluster "$@"; }
"""
"""What stands for the tools in bash: it prints the words that they get."""
EQUIVALENT = {
    "1h": "3600", "90s": "90", "flex-start": "flexStart", "on-demand": "onDemand", "ct5p-hightpu-4t": "v5p-128",
    "ct6e-standard-4t": "v6e-16", "ct5lp-hightpu-4t": "v5litepod-32", "tpu7x-standard-4t": "tpu7x-128",
}  # fmt: skip
"""Words of the cases that become another word."""
Invoke = Callable[..., Any]


def blocks(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each case's name, input, and expected block."""
    for part in re.split(r"(?m)^(?==== )", file.read_text()):
        if part:
            name, _, rest = part.removeprefix("=== ").partition("\n")
            source, _, expected = rest.partition("\n--- ")
            yield name, source.rstrip("\n") + "\n", expected


ALL = [(file, *case) for file in sorted(CASES.glob("*.txt")) for case in blocks(file)]
IDS = [f"{file.stem}-{name}" for file, name, *_ in ALL]


def imported(invoke: Invoke, tmp_path: Path, source: str) -> Any:
    file = tmp_path / "source"
    for beside in (CASES / "files").iterdir():
        shutil.copy(beside, tmp_path)
    options = shlex.split(match[1]) if (match := re.match(r"#\? (.*)\n", source)) else []
    file.write_text(source)
    return invoke("import", str(file), *options)


def block(result: Any, where: Path) -> str:
    err = result.err.replace(str(where), "source")
    return f"{result.code}\n{result.out}--- stderr\n{err}"


@pytest.mark.parametrize(("file", "name", "source", "expected"), ALL, ids=IDS)
def test_every_case_becomes_exactly_its_manifest(
    invoke: Invoke, tmp_path: Path, file: Path, name: str, source: str, expected: str
) -> None:
    result = imported(invoke, tmp_path, source)
    actual = block(result, tmp_path / "source")
    if os.environ.get("UPDATE_GOLDEN"):
        before, after = f"=== {name}\n{source}", f"=== {name}\n{source}--- {actual}"
        old = f"{before}--- {expected}" if expected else before
        file.write_text(file.read_text().replace(old, after))
        expected = actual
    assert actual == expected
    assert not any(secret in actual for secret in SECRETS)
    if result.code == 0:
        for document in result.out.split("\n---\n"):
            load_job(document)


def test_there_are_a_hundred_cases() -> None:
    assert len(IDS) == len(set(IDS)) >= 100


def outcomes() -> Iterator[tuple[str, str]]:
    for _, _, source, expected in ALL:
        if "\nspec:" in expected and source.startswith(("xpk ", "gcluster ")):
            yield source, expected


@pytest.mark.parametrize(("source", "expected"), list(outcomes()))
def test_no_flag_of_a_command_line_is_dropped(source: str, expected: str) -> None:
    """Each flag's value stands in the manifest or in a comment; secrets alone do not."""
    (command, *_) = parse(source, {}).commands
    for word in command.words:
        flag, sign, value = word.partition("=")
        if flag.startswith("-") and flag != "--command" and sign and not any(secret in word for secret in SECRETS):
            text = as_text(value).partition(" ")[0].partition("=")[2] or as_text(value)
            assert EQUIVALENT.get(text, text).strip("'\"") in expected or flag in expected, word


@pytest.mark.parametrize(("source", "expected"), list(outcomes()))
def test_words_are_those_that_bash_passes(source: str, expected: str) -> None:
    """Without secrets, whose values are left out of words, and without variables that only the caller's shell has."""
    if any(secret in source for secret in SECRETS):
        source = re.sub("|".join(SECRETS), "plain", source)
        source = re.sub(r"(?i)(TOKEN|API_KEY)=", "NAME=", source)
    commands = parse(source, {}).commands
    if any(unknown(word) for command in commands for word in command.words):
        return
    done = subprocess.run(["bash", "-c", TOOLS + source], capture_output=True, text=True, check=True)
    theirs = [tuple(command.split("\0")[:-1]) for command in done.stdout.split("\1")[:-1]]
    assert [command.words for command in commands if command.words[0] in ("xpk", "gcluster")] == theirs


def rendered(document: dict[str, Any]) -> dict[str, Any]:
    """The JobSet of a job, with MaxText's words as a set, because their order says nothing."""
    made = jobset(layout_of(job(document), SETTINGS))
    (container,) = pod_spec(made)["containers"]
    container["args"] = sorted(container["args"])
    container["env"].sort(key=lambda variable: variable["name"])
    return {key: value for key, value in made.items() if key != "metadata"}


@pytest.mark.parametrize(
    ("case", "example"),
    [("the 70B tutorial, GSPO-token", "maxtext-rl-v5p-128"), ("the Ironwood demo", "maxtext-rl-tpu7x-128")],
)
def test_published_commands_become_what_the_examples_become(
    invoke: Invoke, tmp_path: Path, case: str, example: str
) -> None:
    """The examples were written by hand, and compared with what XPK applies (test_maxtext_command.py)."""
    (source,) = [source for _, name, source, _ in ALL if name == case]
    by_hand = yaml.safe_load((ROOT / "manifests" / "examples" / f"{example}.yaml").read_text())
    assert rendered(yaml.safe_load(imported(invoke, tmp_path, source).out)) == rendered(by_hand)


def same(theirs: str, ours: str) -> bool:
    try:
        return float(theirs) == float(ours)
    except ValueError:
        return theirs.replace("'", "") == ours.replace("'", "") or (theirs in ("-1", "") and not ours)


def maxtext_cases() -> Iterator[tuple[str, str, str]]:
    for file, name, source, expected in ALL:
        if file.stem != "kubernetes" and expected.startswith("0") and "    maxtext:" in expected:
            yield name, source, expected.partition("\n")[2].partition("--- stderr")[0]


@pytest.mark.parametrize(("name", "source", "manifest"), list(maxtext_cases()))
def test_maxtext_is_started_with_every_word_of_the_command(name: str, source: str, manifest: str) -> None:
    """From the command line to the operator's pods: each word, or one that means the same number."""
    pods = pod_spec(jobset(layout_of(job(yaml.safe_load(manifest)), SETTINGS)))["containers"][0]["args"]
    ours = dict(word.partition("=")[::2] for word in pods)
    (submit,) = [command for command in parse(source, {}).commands if command.words[0] in ("xpk", "gcluster")]
    text = next(word for word in submit.words if "train_rl" in word or "train_sft" in word)
    text = as_text(text).removeprefix("--command=")
    words = dict(word.partition("=")[::2] for word in parse(text, {}).commands[-1].words if "=" in word)
    for key, value in words.items():
        if key not in ("run_name", "hf_access_token", "wandb_api_key") and not key.isupper():
            assert same(value, ours.get(key, "")), (key, value, ours.get(key))


def test_apply_creates_every_job_of_a_script(invoke: Invoke, kube: FakeKube, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    lines = "".join(
        f"xpk workload create --workload {name} --tpu-type v5p-8 --docker-image gcr.io/p/m --command true\n"
        for name in ("one", "two")
    )
    file.write_text(lines)
    words = [
        f"--set={word}" for word in ("model.uri=hf://o/m", "data.train.uri=gs://lab/x.jsonl", "output.uri=gs://lab/r")
    ]
    assert invoke("import", str(file), *words, "--apply").code == 0
    assert {name for _, _, name in kube.objects} == {"one", "two"}


def test_apply_creates_nothing_while_something_is_left_to_fill_in(
    invoke: Invoke, kube: FakeKube, tmp_path: Path
) -> None:
    file = tmp_path / "run.sh"
    file.write_text("xpk workload create --workload one --tpu-type v5p-8 --docker-image gcr.io/p/m --command true\n")
    result = invoke("import", str(file), "--apply")
    assert result.code == 2
    assert "one: spec.output.uri: where results go" in result.err
    assert not kube.objects


def test_apply_creates_nothing_that_trains_something_else_unless_allowed(invoke: Invoke, kube: FakeKube) -> None:
    command = "trl rloo --model_name_or_path a/b --dataset_name c/d --num_processes 8 --reward_funcs accuracy_reward"
    words = ["import", "--command", command, "--set=accelerator.type=v6e-8", "--set=output.uri=gs://lab/r", "--apply"]
    result = invoke(*words)
    assert (result.code, kube.objects) == (2, {})
    assert "TRL clips the ratio of whole sequences" in result.err
    assert "--allow-changes" in result.err
    assert invoke(*words, "--allow-changes").code == 0
    assert {name for _, _, name in kube.objects} == {"b-rloo"}


def test_a_command_of_a_trainer_is_a_job_with_what_it_lacks_by_set(invoke: Invoke) -> None:
    command = (
        "python3 -m maxtext.trainers.post_train.sft.train_sft model_name=llama3.1-8b steps=10 per_device_batch_size=1"
    )
    words = (
        "metadata.name=a",
        "accelerator.type=v6e-16",
        "image=i",
        "model.uri=gs://lab/m/0/items",
        "output.uri=gs://lab/r",
    )
    result = invoke("import", "--command", command, *[f"--set={word}" for word in words])
    assert result.code == 0, result.err
    assert load_job(result.out).spec.training.batch_size == 16


def test_a_file_and_a_command_exclude_each_other(invoke: Invoke) -> None:
    assert invoke("import", "x.sh", "--command", "y").code == invoke("import").code == 2
