"""The API package is light: a wheel without extras validates a job, and imports nothing that it need not."""

import subprocess
import sys

HEAVY = ("jax", "kopf", "kubernetes", "rich", "click", "aiohttp", "numpy", "google.cloud")


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=900)
    return set(result.stdout.split())


def test_every_module_of_ptapi_imports_nothing_heavy() -> None:
    loaded = loaded_by(
        "import importlib, pkgutil, ptapi\n"
        "for module in pkgutil.walk_packages(ptapi.__path__, 'ptapi.'):\n"
        "    importlib.import_module(module.name)"
    )
    assert "ptapi.crd.definition" in loaded
    assert not {name for name in loaded if name in HEAVY or name.split(".")[0] in HEAVY}


def test_the_accelerators_need_neither_pydantic_nor_yaml() -> None:
    loaded = loaded_by("from ptapi.accelerators import resolve\nresolve('v5p-128')")
    assert not {"pydantic", "yaml"} & loaded


def test_the_crd_is_printed_by_the_module() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "ptapi.crd.definition"], capture_output=True, text=True, check=True, timeout=900
    )
    assert result.stdout.startswith("# Generated")
    assert "posttrainjobs.posttrain.dev" in result.stdout
