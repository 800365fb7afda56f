"""`ptctl image build`: a directory on a base image, pushed to a registry that speaks OCI's protocol."""

import base64
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.builders.servers import bucket as buckets
from tests.builders.servers.oci_registry import OciRegistry, oci_registry

from ptctl.cluster.images import container_file, reference
from ptctl.cluster.images import registry as registry_module
from ptctl.cluster.images.action import recipe
from ptctl.cluster.images.registry import DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST

Invoke = Callable[..., Any]
Built = Callable[..., Any]
BASE, MINE = "library/base", "team/mine"


def put(registry: OciRegistry, kind: str, content: bytes, media_type: str, name: str = BASE, tag: str = "") -> str:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    for version in {digest, tag or digest}:
        registry.contents[name, kind, version] = (media_type, content)
    return digest


def image(registry: OciRegistry, kind: str, architecture: str) -> dict[str, Any]:
    """Put an image of one layer there; return its entry in an index."""
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w") as archive:
        info = tarfile.TarInfo("etc/os-release")
        info.size = len(architecture)
        archive.addfile(info, io.BytesIO(architecture.encode()))
    layer = gzip.compress(files.getvalue(), mtime=0)
    config = {
        "os": "linux",
        "architecture": architecture,
        "config": {"Env": ["PATH=/bin", "LEVEL=1"], "User": "1000"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(files.getvalue()).hexdigest()}"]},
    }
    if kind == DOCKER_MANIFEST:  # the other has no history, as some tools leave it
        config["history"] = [{"created_by": "ADD"}, {"created_by": "ENV", "empty_layer": True}]
    text = json.dumps(config).encode()
    blobs = {name: put(registry, "blobs", content, "") for name, content in (("config", text), ("layer", layer))}
    is_oci = kind == OCI_MANIFEST
    types = {
        "config": "application/vnd.oci.image.config.v1+json"
        if is_oci
        else "application/vnd.docker.container.image.v1+json",
        "layer": "application/vnd.oci.image.layer.v1.tar+gzip"
        if is_oci
        else "application/vnd.docker.image.rootfs.diff.tar.gzip",
    }
    parts = {
        name: {"mediaType": types[name], "digest": blobs[name], "size": len(content)}
        for name, content in (("config", text), ("layer", layer))
    }
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": parts["config"], "layers": [parts["layer"]]}
    content = json.dumps(manifest).encode()
    platform = {"os": "linux", "architecture": architecture}
    return {
        "mediaType": kind,
        "digest": put(registry, "manifests", content, kind),
        "size": len(content),
        "platform": platform,
    }


@pytest.fixture(params=["oci", "docker"])
def registry(request: pytest.FixtureRequest) -> Iterator[OciRegistry]:
    """A registry with a base image for two architectures."""
    index, manifest = (OCI_INDEX, OCI_MANIFEST) if request.param == "oci" else (DOCKER_INDEX, DOCKER_MANIFEST)
    with oci_registry() as served:
        entries = [image(served, manifest, architecture) for architecture in ("arm64", "amd64")]
        body = {"schemaVersion": 2, "mediaType": index, "manifests": entries}
        put(served, "manifests", json.dumps(body).encode(), index, tag="v1")
        yield served


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with what goes into an image, and what does not."""
    files = {
        "train.py": "print(1)",
        "run.sh": "#!/bin/sh",
        "data/rows.jsonl": "{}",
        "data/big.bin": "big",
        "data/keep.bin": "kept",
        ".git/config": "secret",
        "a/__pycache__/x.pyc": "x",
        "notes.md": "mine",
        ".dockerignore": "# comment\n*.md\n**/*.bin\n!data/keep.bin\n.dockerignore\n",
    }
    for name, text in files.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "source" / "run.sh").chmod(0o750)
    (tmp_path / "source" / "link").symlink_to("train.py")
    return tmp_path / "source"


@pytest.fixture
def build(
    invoke: Invoke, registry: OciRegistry, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Built:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))

    def run(*words: str, base: str = f"{BASE}:v1", folder: Path = source) -> Any:
        tag = () if "--tag" in words else ("--tag", f"{registry.address}/{MINE}:1")
        where = base if base.count("/") > 1 else f"{registry.address}/{base}"
        return invoke("image", "build", str(folder), "--base", where, *tag, *words)

    return run


def pushed(registry: OciRegistry, name: str = MINE) -> tuple[dict[str, Any], dict[str, Any], tarfile.TarFile]:
    """The manifest, the config and the last layer; every blob of the manifest must be there."""
    kind, content = registry.contents[name, "manifests", "1"]
    manifest = json.loads(content)
    assert manifest["mediaType"] == kind
    for part in (manifest["config"], *manifest["layers"]):
        assert len(registry.contents[name, "blobs", part["digest"]][1]) == part["size"]
    config = json.loads(registry.contents[name, "blobs", manifest["config"]["digest"]][1])
    steps = [step for step in config["history"] if not step.get("empty_layer")]
    assert len(steps) == len(manifest["layers"]), "podman refuses to build on an image without"
    archives = [gzip.decompress(registry.contents[name, "blobs", part["digest"]][1]) for part in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in archives]
    return manifest, config, tarfile.open(fileobj=io.BytesIO(archives[-1]))


def test_the_files_are_one_layer_on_the_base_of_this_platform(build: Built, registry: OciRegistry) -> None:
    done = build("--path", "/work", "--env", "LEVEL=2")
    assert done.code == 0, done.err
    digest = hashlib.sha256(registry.contents[MINE, "manifests", "1"][1]).hexdigest()
    assert done.out == f"{registry.address}/{MINE}@sha256:{digest}\n"
    manifest, config, archive = pushed(registry)
    assert (len(manifest["layers"]), config["architecture"]) == (2, "amd64")
    assert config["config"] == {"Env": ["PATH=/bin", "LEVEL=2"], "User": "1000", "WorkingDir": "/work"}
    modes = {info.name: oct(info.mode) for info in archive}
    assert modes == {
        "work": "0o755", "work/a": "0o755", "work/data": "0o755", "work/data/keep.bin": "0o644",
        "work/data/rows.jsonl": "0o644", "work/link": "0o777", "work/run.sh": "0o755", "work/train.py": "0o644",
    }  # fmt: skip
    assert {(info.uid, info.gid, info.mtime) for info in archive} == {(0, 0, 0)}
    assert archive.getmember("work/link").linkname == "train.py"


def test_the_same_files_have_the_same_digest_and_are_not_sent_again(
    build: Built, registry: OciRegistry, source: Path, tmp_path: Path
) -> None:
    first = build()
    assert any("mount=" in line for line in registry.requests), "the base's layer is in the registry already"
    copy = tmp_path / "copy"
    shutil.copytree(source, copy, symlinks=True)
    os.utime(copy / "train.py", (1, 1))
    registry.requests.clear()
    assert build(folder=copy).out == first.out
    assert [line.split()[0] for line in registry.requests if "uploads" in line] == []
    (copy / "train.py").write_text("print(2)")
    assert build(folder=copy).out != first.out
    before = dict(registry.contents)
    assert build("--dry-run", folder=copy).out.startswith(f"{registry.address}/{MINE}@sha256:")
    assert registry.contents == before


def test_a_base_of_another_registry_is_copied(
    build: Built, registry: OciRegistry, source: Path, invoke: Invoke
) -> None:
    with oci_registry() as other:
        tag = f"{other.address}/{MINE}:1"
        done = invoke("image", "build", str(source), "--base", f"{registry.address}/{BASE}:v1", "--tag", tag)
        assert (done.code, "copied from" in done.err) == (0, True), done.err
        pushed(other)


@pytest.mark.parametrize(
    "faults",
    [
        [("PUT /v2/team/mine/blobs", 0)],
        [("PUT /v2/team/mine/blobs", 500), ("POST /v2/team", 429)],
        [("PUT /v2/team/mine/manifests", 503), ("GET /v2/library/base/blobs", 0), ("HEAD", 429)],
    ],
    ids=["dies in an upload", "fails and is busy", "elsewhere"],
)
def test_a_registry_that_fails_for_a_moment_gets_the_whole_image(
    build: Built, registry: OciRegistry, monkeypatch: pytest.MonkeyPatch, faults: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(registry_module, "time", SimpleNamespace(sleep=lambda _: None))
    registry.faults = list(faults)
    done = build()
    assert (done.code, registry.faults) == (0, []), done.err
    pushed(registry)


def test_a_registry_that_stays_busy_is_an_error_and_nothing_is_published(
    build: Built, registry: OciRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "time", SimpleNamespace(sleep=lambda _: None))
    registry.faults = [("PUT /v2/team/mine/manifests", 429)] * 9
    done = build()
    assert (done.code, "answers 429" in done.err, (MINE, "manifests", "1") in registry.contents) == (1, True, False)


def test_content_that_is_not_what_its_digest_says_is_refused(build: Built, registry: OciRegistry) -> None:
    for key in [key for key in registry.contents if key[1] == "blobs"]:
        registry.contents[key] = ("", b"{}")
    done = build()
    assert (done.code, "sends content of sha256:" in done.err) == (1, True), done.err
    assert (MINE, "manifests", "1") not in registry.contents


def test_credentials_are_those_of_docker(
    build: Built, registry: OciRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.login = ("me", "secret:word")
    refused = build()
    assert (refused.code, f"docker login {registry.address}" in refused.err) == (1, True), refused.err
    config = tmp_path / "docker" / "config.json"
    config.parent.mkdir()
    for password, code in (("wrong", 1), ("secret:word", 0)):
        entry = {"auth": base64.b64encode(f"me:{password}".encode()).decode()}
        config.write_text(json.dumps({"auths": {registry.address: entry}}))
        done = build()
        assert (done.code, "incorrect username or password" in done.err) == (code, bool(code)), done.err
        assert password not in done.err
    registry.contents = {key: value for key, value in registry.contents.items() if key[0] != MINE}
    helper = tmp_path / "bin" / "docker-credential-tests"
    helper.parent.mkdir()
    helper.write_text('#!/bin/sh\ncat > /dev/null\necho \'{"Username": "me", "Secret": "secret:word"}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(helper.parent), prepend=os.pathsep)
    config.write_text(json.dumps({"credHelpers": {registry.address: "tests"}}))
    assert build().code == 0
    pushed(registry)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--platform", "linux/s390x"), "no image of linux/s390x; it has linux/amd64, linux/arm64"),
        (("--path", "app"), "--path app: accepted: an absolute path"),
        (("--env", "A"), "--env A: accepted: NAME=VALUE"),
        (("--tag", "Team/Mine:1"), "--tag 'Team/Mine:1': not an image's name"),
        (("--tag", "r.io/x@sha256:" + "0" * 64), "a digest; accepted: REGISTRY/NAME:TAG"),
    ],
)
def test_wrong_words_are_refused_with_what_is_accepted(build: Built, words: tuple[str, ...], message: str) -> None:
    done = build(*words)
    assert (done.code, message in done.err) == (2, True), done.err


def test_names_are_read_as_docker_reads_them() -> None:
    assert str(reference.parse("python:3.12-slim", "-")) == "docker.io/library/python:3.12-slim"
    assert reference.parse("python", "-").url == "https://registry-1.docker.io"
    assert str(reference.parse("me/x", "-")) == "docker.io/me/x:latest"
    assert reference.parse("localhost:5000/x", "-").url == "http://localhost:5000"


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")
def test_skopeo_pulls_what_was_pushed(build: Built, registry: OciRegistry, tmp_path: Path) -> None:
    name = build().out.strip()
    command = [
        "skopeo",
        "--insecure-policy",
        "copy",
        "--src-tls-verify=false",
        f"docker://{name}",
        f"dir:{tmp_path}/out",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    layer = json.loads((tmp_path / "out" / "manifest.json").read_text())["layers"][-1]["digest"]
    with tarfile.open(tmp_path / "out" / layer.removeprefix("sha256:")) as archive:
        assert "app/train.py" in archive.getnames()


@pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed")
def test_podman_builds_the_same_and_builds_on_what_was_built_without_it(
    build: Built, registry: OciRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {
        "CONTAINERS_REGISTRIES_CONF": f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n',
        "CONTAINERS_STORAGE_CONF": f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/g"\nrunroot = "{tmp_path}/r"\n',
    }
    for name, text in own.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text("{}")  # podman wants it where DOCKER_CONFIG says
    assert build("--path", "/first").code == 0
    done = build("--with", "podman", base=f"{registry.address}/{MINE}:1")
    assert (done.code, done.out.startswith(f"{registry.address}/{MINE}@sha256:")) == (0, True), done.err
    manifest, config, archive = pushed(registry)
    assert (len(manifest["layers"]), config["config"]["WorkingDir"]) == (3, "/app")
    assert "app/train.py" in archive.getnames()


def test_cloud_build_gets_the_files_and_its_digest_is_printed(
    build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.builders.servers.cloud_build import cloud_build

    with buckets.serve_here(monkeypatch) as bucket, cloud_build() as service:
        monkeypatch.setenv("PTCTL_CLOUD_BUILD_ENDPOINT", service.url)
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "planted")
        monkeypatch.setenv("PTCTL_POLL_SECONDS", "0.01")
        done = build("--with", "cloud-build", "--project", "p")
        assert (done.code, done.out.strip().endswith(service.digest)) == (0, True), done.err
        (body,) = service.bodies
        place = body["source"]["storageSource"]
        with tarfile.open(fileobj=io.BytesIO(bucket.content(place["bucket"], place["object"]))) as archive:
            assert {".posttrain-containerfile", "train.py"} <= set(archive.getnames())
        assert body["steps"][0]["args"][:3] == ["build", "-f", ".posttrain-containerfile"]
        service.status = "FAILURE"
        failed = build("--with", "cloud-build", "--project", "p")
        assert (failed.code, "FAILURE: step 0 failed" in failed.err) == (1, True), failed.err


def test_a_containerfile_says_the_same(source: Path) -> None:
    plan = recipe(source, "base:1", "r.io/x:1", "/app", ('NAME=a "b"',), "linux/amd64")
    assert container_file.text(plan) == (
        'FROM docker.io/library/base:1\nCOPY . /app\nWORKDIR /app\nENV NAME="a \\"b\\""\n'
    )
