"""What documents name exists: jobs are accepted, commands are ptctl's; fields, files, pages and headings are there."""

import copy
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from tests.builders.verbs import verbs

from ptapi import run_directory
from ptapi.load import parse_job
from ptapi.spec import PostTrainJobSpec
from ptapi.spec.openapi_schema import structural
from ptapi.status import PostTrainJobStatus
from ptctl.cli import root
from ptctl.planning.prices import read as read_prices
from ptctl.ui.command_line import xpk_flags

ROOT = Path(__file__).resolve().parents[3]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HISTORY = {"docs/results.md"}
"""It tells what was, with the names of then."""

ABSENT = {
    "docs/decisions/NNNN-title.md",  # a form
    "operator/__init__.py",  # what must not exist
    "docs/build_maxtext.md",  # MaxText's
    "tests/e2e",  # of the rules of style: there is none yet
}

Manifest = dict[str, Any]


def pages() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listing.decode().split("\0") if name]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(language: str) -> list[tuple[str, str]]:
    """(where, text) of the fenced blocks of a language."""
    return [
        (f"{name_of(page)}:{page.read_text()[: match.start()].count(chr(10)) + 1}", match[2])
        for page in pages()
        for match in _FENCE.finditer(page.read_text())
        if match[1] == language
    ]


def documents() -> list[tuple[str, Manifest]]:
    return [(where, document) for where, text in blocks("yaml") for document in yaml.safe_load_all(text)]


BASE: Manifest = {
    "apiVersion": "posttrain.dev/v1alpha1",
    "kind": "PostTrainJob",
    "metadata": {"name": "document"},
    "spec": {
        "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"},
        "algorithm": {"grpo": {}},
        "data": {"train": {"uri": "gs://my-bucket/train.jsonl"}},
        "accelerator": {"type": "v6e-16"},
        "output": {"uri": "gs://my-bucket/runs"},
    },
}
"""What a part of a job in a page is put into; a part that needs more says so itself."""


def whole(part: Manifest) -> Manifest:
    job = copy.deepcopy(BASE)
    job["spec"] |= part
    if not {"sft", "dpo", "kto", "reward", "distill"} & set(job["spec"]["algorithm"]):
        job["spec"].setdefault("rewards", [{"builtin": "gsm8k"}])
    return job


@pytest.mark.parametrize(("where", "document"), documents(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_yaml_in_a_document_is_accepted(where: str, document: Manifest, tmp_path: Path) -> None:
    if "kind" in document:
        if document["kind"] == "PostTrainJob":
            parse_job(document)
    elif "chipHour" in document:
        path = tmp_path / "prices.yaml"
        path.write_text(yaml.safe_dump(document))
        read_prices(str(path))
    elif "prices" in document:
        values = yaml.safe_load((ROOT / "charts/posttrain/values.yaml").read_text())
        assert set(document["prices"]) <= set(values["prices"])
    else:
        parse_job(whole(document.get("spec", document)))


def test_what_install_applies_needs_nothing_that_it_does_not_create() -> None:
    text = (ROOT / "docs/guides/install.md").read_text()
    saved = re.findall(r"ave this as `([^`]+)`:", text)
    applied = [path for path in re.findall(r"^kubectl apply -f (\S+)$", text, re.MULTILINE) if path not in saved]
    assert applied
    for path in applied:
        spec = parse_job(yaml.safe_load((ROOT / path).read_text())).spec
        uris = [spec.model.uri, spec.data.train.uri if spec.data.train else "", spec.output.uri]
        assert [uri for uri in uris if "my-bucket" in uri or "meta-llama" in uri] == []
        assert spec.volumes == []
        assert [reward for reward in spec.rewards if reward.python] == []
        assert spec.accelerator.type.startswith("cpu-")


def commands() -> Iterator[tuple[str, str]]:
    """(where, command line) of ptctl, from fenced blocks and from the examples of every help."""
    for where, text in [block for language in ("bash", "") for block in blocks(language)]:
        yield from ((where, line) for line in _lines(text))
    for path, command in verbs():
        yield from ((f"{' '.join(path)} --help", line) for line in _lines(getattr(command, "examples", "")))


def _lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").replace("2>&1", "").splitlines():
        for part in re.split(r"[|;&]|\$\(|<\(", line):
            words = re.match(r"\s*\$?\s*((?:ptctl|python -m pttrainer) [^)#>]*?)\s*(?:[)#>].*)?$", part)
            if words:
                yield words[1]


def parse(line: str) -> None:
    """As far as click parses it; raises its UsageError."""
    words = shlex.split(line)[1:]
    command: click.Command = root
    context: click.Context | None = None
    while isinstance(command, click.Group):
        assert words, f"{line}: a group alone"
        if command.invoke_without_command and words[0] not in command.list_commands(click.Context(command)):
            break
        context = click.Context(command, parent=context, info_name=words[0])
        name, child, words = command.resolve_command(context, words)
        assert child is not None, name
        command = child
    command.make_context(command.name, list(words), parent=context)


@pytest.mark.parametrize(("where", "line"), [pair for pair in commands() if pair[1].startswith("ptctl")])
def test_every_command_in_a_document_or_a_help_is_one_of_ptctl(where: str, line: str) -> None:
    parse(line)


def test_every_verb_of_ptctl_named_in_a_sentence_exists() -> None:
    paths = {path[1:] for path, command in verbs() if not isinstance(command, click.Group)}
    groups = {path[:end] for path in paths for end in range(len(path) + 1)}
    named = [
        (name_of(page), span.split())
        for page in pages()
        if page.name != "CHANGELOG.md"  # it names commands that are answered with what to type
        for span in re.findall(r"`ptctl ((?:[a-z][a-z-]+ ?)+)", _FENCE.sub("", page.read_text()))
    ]
    assert len(named) > 50

    def is_verb(words: list[str]) -> bool:
        known = max((end for end in range(len(words) + 1) if tuple(words[:end]) in groups), default=0)
        return tuple(words[:known]) in paths or known == len(words)

    assert [(where, " ".join(words)) for where, words in named if not is_verb(words)] == []


NEEDS = {
    "GKE",
    "kubectl",
    "a GPU",
    "a container engine",
    "a package index",
    "llama.cpp",
    "the environment of `make parity`",
}
_MARK = re.compile(r"<!-- (needs|run by): ([^>]+) -->\n```bash")


def test_the_mark_of_a_command_block_names_a_test_that_is_there_or_a_known_reason() -> None:
    marks = [(name_of(page), *mark) for page in pages() for mark in _MARK.findall(page.read_text())]
    assert len(marks) > 20
    assert [mark for mark in marks if mark[1] == "needs" and mark[2] not in NEEDS] == []
    assert [mark for mark in marks if mark[1] == "run by" and not (ROOT / mark[2]).is_file()] == []


def test_commands_stand_in_blocks_that_are_run_or_marked() -> None:
    """A block without a language shows output, or another tool's commands."""
    command = re.compile(r"(?:ptctl|kubectl|make|helm|pip|gcloud|python -m pt\w+) ")
    assert [
        where for language in ("", "sh", "console") for where, text in blocks(language) if command.match(text)
    ] == []


@cache
def fields() -> tuple[frozenset[str], frozenset[str]]:
    """Every path of spec, status and the chart's values, from each of its words on; and the words that begin one."""
    paths = [path for name, model in (("spec", PostTrainJobSpec), ("status", PostTrainJobStatus))
             for path in _paths(structural(model), (name,))]  # fmt: skip
    paths += _values(yaml.safe_load((ROOT / "charts/posttrain/values.yaml").read_text()), ())
    ends = frozenset(".".join(path[start:]) for path in paths for start in range(len(path)))
    heads = frozenset(word for path in paths for word in path[:2] if path[0] == "spec") | {"status"}
    return ends, heads | frozenset(PostTrainJobSpec.model_fields["algorithm"].annotation.model_fields)  # type: ignore[union-attr]


def _paths(schema: Manifest, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from _paths(inner, above)
    for name, field in schema.get("properties", {}).items():
        yield (*above, name)
        yield from _paths(field, (*above, name))


def _values(value: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield (*above, name)
        yield from _values(inner, (*above, name))


def present(page: Path) -> str:
    """A page's text without fenced blocks; nothing of a page that tells of the past."""
    return "" if name_of(page) in _HISTORY else _FENCE.sub("", page.read_text())


def test_every_field_named_in_a_document_exists() -> None:
    ends, heads = fields()
    named = [
        (name_of(page), path)
        for page in pages()
        for path in re.findall(r"`([a-zA-Z]+(?:\.[a-zA-Z]+)+)`", present(page))
    ]
    assert len(named) > 100
    missing = [(where, path) for where, path in named if path.split(".")[0] in heads and path not in ends]
    assert [(where, path) for where, path in missing if not path.endswith((".py", ".json", ".yaml", ".js"))] == []


def test_every_field_that_a_hint_for_users_of_xpk_sets_exists() -> None:
    hints = " ".join([*xpk_flags.CREATE.values(), *xpk_flags.LIST.values(), *xpk_flags.DELETE.values()])
    named = re.findall(r"--set '?([a-zA-Z.]+)=", hints)
    assert len(named) > 10
    assert [path for path in named if path not in fields()[0]] == []


def test_every_file_named_in_a_document_exists() -> None:
    roots = "api|kube|operator|trainer|cli|charts|manifests|tests|docs|benchmarks|examples|scripts"
    named = [
        (name_of(page), path) for page in pages() for path in re.findall(rf"`((?:{roots})/[\w./-]+)`", present(page))
    ]
    assert len(named) > 20
    assert [(where, path) for where, path in named if not (ROOT / path).exists() and path not in ABSENT] == []


def test_every_module_that_a_document_names_by_the_end_of_its_path_exists() -> None:
    listing = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = tuple(f"/{name}" for name in listing.stdout.split())
    named = {(name_of(page), path) for page in pages() for path in re.findall(r"`([\w/-]+/\w+\.py)`", present(page))}
    assert len(named) > 20
    missing = {(where, path) for where, path in named if not any(name.endswith(f"/{path}") for name in modules)}
    assert sorted((where, path) for where, path in missing if path not in ABSENT) == []


def test_every_heading_that_is_linked_to_exists() -> None:
    broken = []
    for page in pages():
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text()):
            text = (page.parent / target).read_text() if target else page.read_text()
            slugs = {re.sub(r"[^\w -]", "", line.lower()).strip().replace(" ", "-")
                     for line in re.findall(r"^#+ (.*)", text, re.MULTILINE)}  # fmt: skip
            broken += [] if anchor in slugs else [f"{name_of(page)} -> {target}#{anchor}"]
    assert broken == []


def test_every_page_that_the_code_names_exists() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "*.py", "*.yaml"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    named = {
        page
        for name in listing.stdout.split()
        for page in re.findall(
            r"\bdocs/(?:guides|reference|concepts|decisions|findings)/[\w-]+\.md", (ROOT / name).read_text()
        )
    }
    assert len(named) > 8
    assert sorted(page for page in named - ABSENT if not (ROOT / page).exists()) == []


def test_every_file_of_a_run_directory_stands_on_its_page() -> None:
    page = (ROOT / "docs/concepts/run-directory.md").read_text()
    files = {
        value
        for name, value in vars(run_directory).items()
        if isinstance(value, str)
        and re.fullmatch(r"[a-z.-]+", value)
        and (value.startswith(".") or value.endswith((".json", ".jsonl", ".yaml")))
    }
    folders = {run_directory.SAMPLES, run_directory.CHECKPOINTS, run_directory.EXPORT, run_directory.STACKS}
    assert len(files) > 10
    assert sorted(name for name in files | folders if name not in page) == []


def test_the_soak_that_is_told_of_is_that_of_its_records() -> None:
    records = [json.loads(line) for line in (ROOT / "docs/results/soak.jsonl").read_text().splitlines()]
    assert [each["stretch"] for each in records] == list(range(len(records)))
    minutes, jobs = sum(each["minutes"] for each in records), sum(each["jobs"] for each in records)
    text = " ".join((ROOT / "docs/findings/operator.md").read_text().split())
    assert f"in all {minutes:.1f} minutes of real time and {jobs} jobs" in text
