"""`runtime: function`: posttrain's own image, with a verb that calls the function."""

from typing import Any

from tests.unit.ptoperator.render.test_render import env_of, made_for, pod_spec

from ptkube.resources import Manifest

RUNTIME = {"runtime": {"function": {"code": "def main(): return 1"}}}


def made(accelerator: str = "v6e-16", slices: int = 1, **spec: Any) -> Manifest:
    return made_for(accelerator, slices, **RUNTIME, **spec)


def test_the_trainers_image_calls_the_function_and_needs_no_other() -> None:
    (container,) = pod_spec(made())["containers"]
    assert (container["command"], container["args"]) == (
        ["python", "-m", "pttrainer"], ["function", "/etc/posttrain/job.yaml"],
    )  # fmt: skip
    assert container["image"] == pod_spec(made_for("v6e-16"))["containers"][0]["image"]


def test_all_but_the_verb_is_as_for_the_native_runtime() -> None:
    ours, function = made_for("v6e-16"), made()
    for manifest in (ours, function):
        for key in ("args", "env"):
            del pod_spec(manifest)["containers"][0][key]
    assert function == ours


def test_it_is_told_its_run_directory_and_numbers_its_processes_itself() -> None:
    output = {"uri": "gs://bucket/runs"}
    native, env = env_of(made_for("v6e-16", 2, output=output)), env_of(made(slices=2, output=output))
    assert native.pop("LIBTPU_INIT_ARGS"), "of our own programs"
    assert env == {**native, "POSTTRAIN_RUN_DIRECTORY": "gs://bucket/runs/llama"}
