"""Images behind https:// addresses: fetched once, kept in the cache; never by way of another scheme."""

import hashlib
import http.client
import os
import ssl
import urllib.error
import urllib.request
from typing import Any

from pttrainer.errors import DataError, NetworkError
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.outages import is_outage

MAX_BYTES = 64 << 20
TIMEOUT_S = 30.0
"""Of each answer and each part of one."""


def fetch(url: str, where: str) -> bytes:
    """Return what an address holds; raise DataError, or NetworkError where the same request may succeed later."""
    directory = processes.cache_directory() / "images"
    kept = directory / hashlib.sha256(url.encode()).hexdigest()
    if kept.is_file():
        return kept.read_bytes()
    content = _fetched(url, where)
    directory.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_bytes(content)
    part.rename(kept)
    return content


def _fetched(url: str, where: str) -> bytes:
    opener = urllib.request.build_opener(_HttpsOnly, urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as response:
            content: bytes = response.read(MAX_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None)
        raised = NetworkError if is_outage(reason if isinstance(reason, OSError) else error) else DataError
        raise raised(f"{where}: {url}: cannot be fetched: {error}") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"{where}: {url}: is larger than {MAX_BYTES >> 20} MiB; accepted: smaller images")
    return content


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https:// alone."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        if not newurl.startswith("https://"):
            raise urllib.error.URLError(f"leads to {newurl}; accepted: https://")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
