"""Import what is used of the official client, and little else: 0.42 CPU-seconds of a command in place of 0.57.

`import kubernetes` executes all of its packages, and `kubernetes.config` those of auth-providers: `google.auth` for
`gcp`, which kubectl has not had since 1.26, and `requests_oauthlib` for `oidc`. Here the former is left out, as where
it is not installed, and the others are executed when something asks for them. Nothing stays changed for other imports.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any


class _LazyPackages:
    """A finder on `sys.meta_path` of packages that are executed at the first access to one of their attributes."""

    names = frozenset(
        f"kubernetes.{package}" for package in ("dynamic", "informer", "leaderelection", "stream", "utils", "watch")
    )

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in cls.names else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


class _OAuth(ModuleType):
    """`requests_oauthlib` as `kubernetes.config` uses it, imported when an oidc auth-provider renews its token."""

    @staticmethod
    def OAuth2Session(*args: Any, **options: Any) -> Any:  # its name there
        import requests_oauthlib  # type: ignore[import-untyped]

        return requests_oauthlib.OAuth2Session(*args, **options)


@contextmanager
def _in_place_of(name: str, module: ModuleType | None) -> Iterator[None]:
    """Let imports find another module, or fail if it is None, unless this process has the real one already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = module  # type: ignore[assignment]  # None is the documented way to stop an import
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def _cheap_imports() -> Iterator[None]:
    """Keep modules made inside out of garbage collection, too: they stay until the end, where nobody walks them."""
    collects = gc.isenabled()
    gc.disable()
    sys.meta_path.insert(0, _LazyPackages)
    try:
        with _in_place_of("google.auth", None), _in_place_of("requests_oauthlib", _OAuth("requests_oauthlib")):
            yield
    finally:
        sys.meta_path.remove(_LazyPackages)
        gc.freeze()
        if collects:
            gc.enable()


with _cheap_imports():
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config import ConfigException, incluster_config
    from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

__all__ = [
    "ApiClient",
    "ConfigException",
    "Configuration",
    "KubeConfigLoader",
    "KubeConfigMerger",
    "incluster_config",
]
