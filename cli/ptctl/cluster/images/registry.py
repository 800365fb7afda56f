"""A registry through OCI's distribution API: manifests, blobs, uploads, mounts from another repository.

A request that is refused for its speed, or that breaks off, is sent again; every content is checked against its digest.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin

import requests

from ptctl.cluster.images.credentials import Login, login
from ptctl.cluster.images.reference import Reference
from ptctl.errors import CliError

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_ACCEPT = ", ".join((OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST))
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT_S = 60.0
_TRIES = 5
_LONGEST_PAUSE_S = 30.0
_CHUNK = 2**20
Body = bytes | Callable[[], IO[bytes]]


class Registry:
    """The repository of an image, with the credentials that this machine has. reads: other repositories there."""

    def __init__(self, image: Reference, *, writes: bool = False, reads: tuple[str, ...] = ()) -> None:
        self.image = image
        self._session = requests.Session()
        self._login: Login | None = None
        self._scopes = [f"repository:{image.repository}:{'pull,push' if writes else 'pull'}"]
        self._scopes += [f"repository:{each}:pull" for each in reads]
        self._path = f"{image.url}/v2/{image.repository}"

    def manifest(self, version: str) -> tuple[str, bytes]:
        """Return the media type and content of a manifest or an index."""
        answer = self._send("GET", f"{self._path}/manifests/{version}", headers={"Accept": _ACCEPT})
        if version.startswith("sha256:"):
            _check(f"{self.image}", version, hashlib.sha256(answer.content).hexdigest())
        return answer.headers.get("Content-Type", "").partition(";")[0], answer.content

    def read(self, digest: str, path: Path) -> None:
        """Write a blob into a file."""
        answer = self._send("GET", f"{self._path}/blobs/{digest}", stream=True)
        sha256 = hashlib.sha256()
        with path.open("wb") as file:
            for chunk in answer.iter_content(_CHUNK):
                sha256.update(chunk)
                file.write(chunk)
        _check(f"{self._path}/blobs/{digest}", digest, sha256.hexdigest())

    def has(self, digest: str) -> bool:
        """Return True if the repository has a blob."""
        return self._send("HEAD", f"{self._path}/blobs/{digest}", accepts=(404,)).status_code != 404

    def mount(self, digest: str, source: str) -> bool:
        """Take a blob over from another repository of the registry; return False if it must be uploaded."""
        answer = self._send("POST", f"{self._path}/blobs/uploads/?mount={digest}&from={source}")
        return answer.status_code == 201

    def upload(self, digest: str, path: Path) -> None:
        """Upload a blob; an upload that breaks off begins anew."""
        for attempt in range(_TRIES):
            try:
                begun = self._send("POST", f"{self._path}/blobs/uploads/")
                where = urljoin(begun.url, begun.headers["Location"])
                target = f"{where}{'&' if '?' in where else '?'}digest={digest}"
                headers = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)}
                self._send("PUT", target, data=lambda: path.open("rb"), headers=headers, tries=1)
                return
            except CliError:
                if self.has(digest):  # the answer was lost, not the upload
                    return
                if attempt == _TRIES - 1:
                    raise
                time.sleep(min(_LONGEST_PAUSE_S, 2.0**attempt))

    def publish(self, media_type: str, content: bytes) -> str:
        """Write a manifest under the image's tag; return its digest."""
        url = f"{self._path}/manifests/{self.image.version}"
        self._send("PUT", url, data=content, headers={"Content-Type": media_type})
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def _send(
        self,
        method: str,
        url: str,
        *,
        data: Body = b"",
        headers: dict[str, str] | None = None,
        accepts: tuple[int, ...] = (),
        stream: bool = False,
        tries: int = _TRIES,
    ) -> requests.Response:
        """Return the answer of 2xx, or of an accepted code. Raises CliError with what the registry says."""
        logged_in = False
        attempt = 0
        while True:
            attempt += 1
            pause_s = min(_LONGEST_PAUSE_S, 2.0 ** (attempt - 1))
            try:
                body = data() if callable(data) else data
                answer = self._session.request(
                    method, url, data=body, headers=headers, stream=stream, timeout=_TIMEOUT_S, auth=self._basic
                )
            except requests.RequestException as error:
                if attempt >= tries:
                    raise CliError(f"{self.image.registry} cannot be reached: {_cause(error)}") from error
            else:
                if answer.ok or answer.status_code in accepts:
                    return answer
                if answer.status_code == 401 and not logged_in:
                    logged_in, attempt = True, attempt - 1
                    self._log_in(answer)
                    continue
                if attempt >= tries or answer.status_code not in (408, 429, 500, 502, 503, 504):
                    raise self._refusal(answer)
                pause_s = _retry_after_s(answer, pause_s)
            time.sleep(pause_s)

    def _basic(self, request: Any) -> Any:
        """Add what the last challenge asked for; given as `auth`, so that no ~/.netrc takes its place."""
        if "Authorization" in self._session.headers:
            request.headers["Authorization"] = self._session.headers["Authorization"]
        return request

    def _log_in(self, refused: requests.Response) -> None:
        """Answer a challenge: with user and password, or with a token that the registry's service gives for them."""
        kind, _, rest = refused.headers.get("WWW-Authenticate", "").partition(" ")
        self._login = self._login or login(self.image.registry)
        if kind.lower() == "basic" and self._login is not None:
            self._session.headers["Authorization"] = requests.auth._basic_auth_str(*self._login)
            return
        facts = dict(_CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or "realm" not in facts:
            raise self._refusal(refused)
        query = [("service", facts.get("service", "")), *(("scope", scope) for scope in self._scopes)]
        try:
            answer = requests.get(facts["realm"], params=query, auth=self._login, timeout=_TIMEOUT_S)
            token = answer.json() if answer.ok else {}
        except (requests.RequestException, ValueError) as error:
            raise CliError(f"{facts['realm']} gives no token: {_cause(error)}") from error
        if not answer.ok:
            raise self._refusal(answer)
        self._session.headers["Authorization"] = f"Bearer {token.get('token') or token.get('access_token')}"

    def _refusal(self, answer: requests.Response) -> CliError:
        try:
            message = "; ".join(str(each.get("message") or each.get("code")) for each in answer.json()["errors"])
        except (ValueError, KeyError, TypeError, AttributeError):
            message = answer.reason or ""
        hint = ""
        if answer.status_code in (401, 403):
            hint = (
                f"docker login {self.image.registry}; for Google's registries `gcloud auth application-default login`"
            )
        if answer.status_code == 404:
            hint = (
                "check the registry, the repository and the tag; Artifact Registry's repositories are made beforehand"
            )
        return CliError(f"{self.image}: the registry answers {answer.status_code}: {message}", hint)


def _check(name: str, digest: str, sha256: str) -> None:
    if digest != f"sha256:{sha256}":
        raise CliError(f"{name}: the registry sends content of sha256:{sha256} for {digest}")


def _retry_after_s(answer: requests.Response, otherwise_s: float) -> float:
    text = answer.headers.get("Retry-After", "")
    return min(_LONGEST_PAUSE_S, float(text)) if text.isdecimal() else otherwise_s


def _cause(error: BaseException) -> str:
    inner = error.__cause__ or error.__context__ or next((a for a in error.args if isinstance(a, Exception)), None)
    return _cause(inner) if inner else str(getattr(error, "strerror", None) or error)
