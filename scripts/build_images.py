"""Build the images of operator and trainer with podman, buildah or docker, and try both. `make images`.

Each is started as its own user, with a root filesystem that is read-only where the tool can do that (buildah cannot):
`--help`, what is installed, and a training run of 3 steps on the CPU. The environment is read here alone:

    ACCELERATOR         what the trainer is for: cpu (unless set), tpu or cuda
    REGISTRY            before the images' names: REGISTRY/posttrain-operator:VERSION
    PYTHON_IMAGE        base image, instead of the Dockerfile's
    PIP_CONFIG_FILE     pip's configuration while it builds (pip's own variable); no layer of an image has it
    IMAGE_TOOL          podman, buildah or docker, or a path that ends so; unset: the first of them that is there
    IMAGE_BUILD_FLAGS   more flags of the tool's `build`, as --network host
    IMAGE_RUN_FLAGS     more flags of the tool's `run`
"""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("podman", "buildah", "docker")
ACCELERATORS = ("cpu", "tpu", "cuda")
TARGETS = ("operator", "trainer")

# chroot: buildah's other isolations need cgroups and a runtime, which containers and CI machines often lack.
BUILD = {"podman": ["build"], "buildah": ["build", "--layers", "--isolation=chroot"], "docker": ["build"]}
CONFINED = ["--rm", "-i", "--read-only", "--cap-drop=ALL", "--tmpfs=/tmp", "--tmpfs=/home/posttrain", "--entrypoint="]

USER = """
import os, pathlib
assert (os.getuid(), os.getgid()) == (65532, 65532), f"uid {os.getuid()}, gid {os.getgid()}"
(pathlib.Path.home() / "written").touch()
"""
NO_JAX = "import importlib.util; assert importlib.util.find_spec('jax') is None, 'jax is installed'"
TRAIN = """
cd /tmp
cat > job.yaml
for row in 1 2 3 4; do echo '{"prompt": "What is 2 plus 2?", "completion": "4"}'; done > train.jsonl
python -m pttrainer run job.yaml
test -s runs/smoke/export/model.safetensors
"""
JOB = """
apiVersion: posttrain.dev/v1alpha1
kind: PostTrainJob
metadata: {name: smoke}
spec:
  model: {uri: "random://tiny"}
  algorithm: {sft: {}}
  data: {train: {uri: file:///tmp/train.jsonl}}
  training: {steps: 3, batchSize: 2, sequenceLength: 64, optimizer: {learningRate: 1.0e-3}}
  accelerator: {type: cpu-1}
  output: {uri: file:///tmp/runs}
"""


class ImageError(Exception):
    """What stops `make images`, for whoever called it."""


@dataclass(frozen=True)
class Settings:
    """What the environment asks for."""

    tool: str
    accelerator: str = "cpu"
    registry: str = ""
    python_image: str = ""
    pip_config: str = ""
    build_flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return Path(self.tool).name

    def image(self, target: str) -> str:
        """Return the name and tag of a target's image."""
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        return "/".join(filter(None, (self.registry.rstrip("/"), f"posttrain-{target}:{version}")))


def main() -> int:
    try:
        settings = read(os.environ)
        for target in TARGETS:
            step(f"build {target} with {settings.tool}", build_command(settings, target, revision()))
        for target in TARGETS:
            smoke_test(settings, target)
    except ImageError as error:
        print(f"make images: {error}", file=sys.stderr)
        return 1
    images = " ".join(settings.image(target) for target in TARGETS)
    print(f"built and tried: {images} (the trainer for {settings.accelerator})")
    return 0


def read(environ: Mapping[str, str]) -> Settings:
    """Return the settings; raise ImageError for a value that cannot be meant."""
    accelerator = environ.get("ACCELERATOR") or "cpu"
    if accelerator not in ACCELERATORS:
        raise ImageError(f"ACCELERATOR: {accelerator}: expected one of {', '.join(ACCELERATORS)}")
    return Settings(
        tool=_tool(environ.get("IMAGE_TOOL", "")),
        accelerator=accelerator,
        registry=environ.get("REGISTRY", ""),
        python_image=environ.get("PYTHON_IMAGE", ""),
        pip_config=_pip_config(environ.get("PIP_CONFIG_FILE", "")),
        build_flags=_flags("IMAGE_BUILD_FLAGS", environ),
        run_flags=_flags("IMAGE_RUN_FLAGS", environ),
    )


def _tool(wanted: str) -> str:
    if wanted and Path(wanted).name not in TOOLS:
        raise ImageError(f"IMAGE_TOOL: {wanted}: expected one of {', '.join(TOOLS)}, or a path that ends so")
    for name in [wanted] if wanted else TOOLS:
        if shutil.which(name):
            return name
    missing = f"IMAGE_TOOL: {wanted}: no such program" if wanted else "no program to build images with is on PATH"
    raise ImageError(f"{missing}; hint: install podman, buildah (needs no daemon) or docker")


def _pip_config(name: str) -> str:
    if name in ("", os.devnull):
        return ""
    if not Path(name).is_file():
        raise ImageError(f"PIP_CONFIG_FILE: {name}: expected a file; hint: unset it to build with PyPI")
    return str(Path(name).resolve())


def _flags(name: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    value = environ.get(name, "")
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ImageError(f"{name}: {value}: expected words as for a shell ({error})") from None


def revision() -> str:
    """Return the commit that is checked out, with -dirty where files differ from it; nothing where git cannot say."""
    if not shutil.which("git"):
        return ""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def build_command(settings: Settings, target: str, revision: str) -> list[str]:
    """Return the command that builds a target's image, to be run in the repository's root."""
    command = [settings.tool, *BUILD[settings.kind], "--target", target]
    arguments = {
        "ACCELERATOR": settings.accelerator if target == "trainer" else "",
        "REVISION": revision,
        "PYTHON_IMAGE": settings.python_image,
    }
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"] if value else []
    command += ["--secret", f"id=pip.conf,src={settings.pip_config}"] if settings.pip_config else []
    return [*command, *settings.build_flags, "-t", settings.image(target), "."]


def smoke_test(settings: Settings, target: str) -> None:
    """Run an image's program, and look at what is installed; raise ImageError at the first thing that is wrong."""
    with container(settings, target) as inside:
        step(f"{target}: --help", [*inside, *entrypoint(settings, target), "--help"])
        step(f"{target}: its user and home", [*inside, "python", "-c", USER])
        step(f"{target}: pip check", [*inside, "python", "-m", "pip", "check"])
        if target == "operator":
            step(f"{target}: no JAX", [*inside, "python", "-c", NO_JAX])
        else:
            step(f"{target}: 3 steps of training", [*inside, "sh", "-ec", TRAIN], stdin=JOB)


@contextmanager
def container(settings: Settings, target: str) -> Iterator[list[str]]:
    """Yield the words before a command that runs it inside a target's image."""
    if settings.kind != "buildah":
        yield [settings.tool, "run", *CONFINED, *settings.run_flags, settings.image(target)]
        return
    name = output([settings.tool, "from", settings.image(target)])
    try:
        yield [settings.tool, "run", "--isolation=chroot", *settings.run_flags, name, "--"]
    finally:
        output([settings.tool, "rm", name])


def entrypoint(settings: Settings, target: str) -> list[str]:
    """Return what the image starts, one word a line in the tool's answer: `buildah run` does not know it."""
    config = ".OCIv1.Config" if settings.kind == "buildah" else ".Config"
    form = "{{range CONFIG.Entrypoint}}{{println .}}{{end}}".replace("CONFIG", config)
    return output([settings.tool, "inspect", "--type=image", f"--format={form}", settings.image(target)]).splitlines()


def step(what: str, command: list[str], stdin: str = "") -> None:
    """Run a command, its output on the terminal; raise ImageError with the step's name if it fails."""
    print(f"== {what}", flush=True)
    # Docker before 23 builds with BuildKit, which the Dockerfile's secrets need, only if asked.
    environ = os.environ | {"DOCKER_BUILDKIT": "1"}
    done = subprocess.run(command, cwd=ROOT, input=stdin, text=True, env=environ)
    if done.returncode:
        raise ImageError(f"{what}: exit code {done.returncode}; the command: {shlex.join(command)}")


def output(command: list[str]) -> str:
    """Return what a command prints; raise ImageError if it fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ImageError(f"exit code {done.returncode}; the command: {shlex.join(command)}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
