"""Pathways: the trainer hands the devices to pathwaysutils where JAX_PLATFORMS says proxy, and only there."""

import importlib.util
import os
import subprocess
import sys
import types

import pytest

from pttrainer.errors import ConfigError
from pttrainer.runtime.distributed import processes

PROXY = {"JAX_PLATFORMS": "proxy,cpu", "JAX_COORDINATOR_ADDRESS": "localhost:1"}


def test_pathways_is_joined_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    package = types.ModuleType("pathwaysutils")
    monkeypatch.setattr(package, "initialize", lambda: calls.append("initialize"), raising=False)
    monkeypatch.setitem(sys.modules, "pathwaysutils", package)
    processes.initialize(dict(PROXY))  # would wait for a coordinator
    assert calls == ["initialize"]


def test_a_missing_package_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pathwaysutils", None)
    with pytest.raises(ConfigError, match=r"pathwaysutils cannot be imported .*; hint: .*posttrain\[trainer-tpu\]"):
        processes.initialize(dict(PROXY))


@pytest.mark.parametrize(
    ("platforms", "is_it"), [("proxy", True), ("proxy,cpu", True), ("tpu,cpu", False), ("", False)]
)
def test_pathways_is_known_by_its_platform(platforms: str, is_it: bool) -> None:
    assert processes.is_pathways({"JAX_PLATFORMS": platforms}) == is_it


@pytest.mark.skipif(importlib.util.find_spec("pathwaysutils") is None, reason="needs pathwaysutils; hint: make aot")
def test_the_real_package_registers_its_backend_and_turns_the_compilation_cache_off() -> None:
    program = (
        "from pttrainer.runtime.distributed import processes; processes.initialize(); import jax; "
        "from jax._src import xla_bridge; print('proxy' in xla_bridge._backend_factories, "
        "jax.config.jax_compilation_cache_dir, jax.config.jax_enable_compilation_cache)"
    )
    env = {**os.environ, "JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": "grpc://localhost:29000"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "None", "False"]
