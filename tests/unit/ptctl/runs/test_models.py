"""Which model `chat`, `eval` and `serve` load: that of a job in the cluster, of a run directory, or of a path."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ptctl.errors import CliError, InputError, MissingError
from ptctl.runs.storage import model_uri
from ptctl.ui.app import App, Target
from ptkube.client import Kube
from ptkube.resources import POSTTRAINJOBS

Make = Callable[..., Any]


@pytest.fixture
def app(kube: Any) -> App:
    return App(connect=lambda target: cast(Kube, kube))


def test_a_job_is_loaded_from_where_its_status_says_that_it_runs(app: App, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", links={"run": "gs://bucket/runs/a"}))
    assert model_uri.of(app, Target(), "a") == "gs://bucket/runs/a"
    assert model_uri.of(app, Target(), "a", 40) == "gs://bucket/runs/a/checkpoints/40"


def test_paths_and_uris_need_no_cluster(tmp_path: Path) -> None:
    def connect(target: Target) -> Kube:
        raise AssertionError

    app = App(connect=connect)
    for name in ("hf://org/model", "random://tiny", "gs://bucket/run", "./run", str(tmp_path)):
        assert model_uri.of(app, Target(), name) == name
    assert model_uri.of(app, Target(), f"{tmp_path}/", 3) == f"file://{tmp_path}/checkpoints/3"
    assert model_uri.of(app, Target(), f"{tmp_path}/run 1", 3) == f"file://{tmp_path}/run 1/checkpoints/3"


def test_a_step_needs_a_run(app: App) -> None:
    with pytest.raises(InputError, match="--step 3: hf://org/model has no checkpoints"):
        model_uri.of(app, Target(), "hf://org/model", 3)


def test_a_run_that_this_machine_does_not_see_is_named(app: App, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", spec={"output": {"uri": "file:///nowhere/runs"}}))
    with pytest.raises(MissingError, match="file:///nowhere/runs/a is not on this machine"):
        model_uri.of(app, Target(), "a")


def test_a_directory_without_a_slash_is_recommended_where_no_job_has_its_name(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-run").mkdir()
    with pytest.raises(CliError, match="job 'my-run' does not exist") as error:
        model_uri.of(app, Target(), "my-run")
    assert error.value.hint == "the directory of that name is ./my-run"
