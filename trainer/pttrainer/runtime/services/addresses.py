"""Where the replicas of a job's services listen, by the service's name."""

import json
import os
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from ptapi.run_directory import SERVICES_ENV
from pttrainer.errors import ConfigError
from pttrainer.runtime.distributed import processes

_HINT = (
    f"hint: the operator sets {SERVICES_ENV}; by hand, start the servers and set it to a JSON object, "
    '{{"{name}": ["http://127.0.0.1:8000"]}}'
)


def addresses(name: str, field: str, environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """Return the base URLs of a service's replicas, in their order. field: what names the service in the job.

    Raises ConfigError.
    """
    hint, text = _HINT.format(name=name), processes.services(environ)
    if not text:
        raise ConfigError(f"{field}: {name}: the environment variable {SERVICES_ENV} is not set; {hint}")
    try:
        services = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"environment: {SERVICES_ENV}: {text[:100]!r}: is not JSON: {error}; {hint}") from error
    if not isinstance(services, dict) or name not in services:
        names = ", ".join(sorted(services)) if isinstance(services, dict) else ""
        raise ConfigError(f"{field}: {name}: {SERVICES_ENV} has no such service; accepted: {names or 'none'}; {hint}")
    urls = services[name]
    if not isinstance(urls, list) or not urls or not all(map(_is_url, urls)):
        raise ConfigError(f"environment: {SERVICES_ENV}: {name}: {urls!r}: accepted: URLs, one of each replica; {hint}")
    return [url.rstrip("/") for url in urls]


def _is_url(url: Any) -> bool:
    if not isinstance(url, str):
        return False
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)
