"""Who may see what where the page runs in a cluster: the caller of a signed header, by their own Kubernetes rights.

A proxy in front (Google's IAP, or one that passes on an OIDC ID token) logs people in. Its token is verified here, so
that a request which goes around the proxy is refused. Every read asks the API server (SubjectAccessReview) what this
caller may do; nobody is impersonated, so the page's own ServiceAccount needs no right to be anybody else.
"""

from __future__ import annotations

import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptctl.cluster.doctor.rights import SUBJECT_REVIEWS, may
from ptctl.errors import CliError, MissingError
from ptctl.page.job_sources import ClusterJobs
from ptkube.errors import Forbidden
from ptkube.resources import NODES, PODS, POSTTRAINJOBS, Manifest, Resource

if TYPE_CHECKING:
    from ptkube.client import Kube

IAP_HEADER = "X-Goog-IAP-JWT-Assertion"
_IAP_KEYS = "https://www.gstatic.com/iap/verify/public_key-jwk"
_IAP_ISSUER = "https://cloud.google.com/iap"
_KEYS_KEPT_S = 3600.0
_RIGHT_KEPT_S = 30.0
_TIMEOUT_S = 10.0
_EVERYBODY = "system:authenticated"
"""The group that the API server puts every caller in."""


@dataclass(frozen=True)
class Caller:
    """Somebody as Kubernetes knows them. Without groups: which of a token's the API server knows is its setting."""

    user: str


@dataclass(frozen=True)
class Issuer:
    """Whose tokens count. keys: URL of their keys; empty: as the issuer's OpenID configuration says."""

    name: str
    audience: str
    header: str = "Authorization"
    keys: str = ""


def identity_aware_proxy(audience: str) -> Issuer:
    """Return the issuer of Google's Identity-Aware Proxy."""
    return Issuer(_IAP_ISSUER, audience, IAP_HEADER, _IAP_KEYS)


class RefusedError(CliError):
    """The request carries no token that counts."""


class Identities:
    """Verifies tokens with the issuer's public keys, which are fetched anew every hour or for a key that is new."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self._keys: dict[str, bytes] = {}
        self._fetched = float("-inf")
        self._lock = threading.Lock()

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return who asks. Raises RefusedError without a valid token in the header."""
        from google.auth import exceptions, jwt

        header = self.issuer.header
        token = headers.get(header, "").removeprefix("Bearer ").strip()
        if not token:
            raise RefusedError(
                f"{header}: not set; accepted: a token of {self.issuer.name}", "open the page by its proxy"
            )
        try:
            claims = jwt.decode(token, certs=self._keys_for(token), audience=self.issuer.audience)
        except (ValueError, exceptions.GoogleAuthError) as error:
            raise RefusedError(f"{header}: {error}", f"accepted: a token of {self.issuer.name}") from error
        return _caller(claims, self.issuer)

    def _keys_for(self, token: str) -> dict[str, bytes]:
        from google.auth import jwt

        kind = str(jwt.decode_header(token).get("kid"))
        with self._lock:
            age = time.monotonic() - self._fetched
            if age > _KEYS_KEPT_S or (kind not in self._keys and age > _TIMEOUT_S):
                self._keys = {key["kid"]: _public_key(key) for key in _fetch(self._keys_url())["keys"] if "kid" in key}
                self._fetched = time.monotonic()
            return self._keys

    def _keys_url(self) -> str:
        configuration = f"{self.issuer.name.rstrip('/')}/.well-known/openid-configuration"
        return self.issuer.keys or str(_fetch(configuration)["jwks_uri"])


def _fetch(url: str) -> Any:
    import requests

    try:
        answer = requests.get(url, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        return answer.json()
    except (requests.RequestException, ValueError) as error:
        raise CliError(f"{url}: the keys of tokens cannot be read: {error}") from error


def _caller(claims: Mapping[str, Any], issuer: Issuer) -> Caller:
    if claims.get("iss") != issuer.name:
        raise RefusedError(f"{issuer.header}: issuer {claims.get('iss')!r}; accepted: {issuer.name}")
    email = claims.get("email")
    if not isinstance(email, str) or "@" not in email or claims.get("email_verified", True) is not True:
        raise RefusedError(f"{issuer.header}: email: {email!r}; accepted: a token with a verified e-mail address")
    if email.startswith("system:"):
        raise RefusedError(f"{issuer.header}: email: {email!r}; accepted: an address of a person")
    return Caller(email)


def _public_key(key: Mapping[str, str]) -> bytes:
    """Return a JSON Web Key as PEM."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    def number(name: str) -> int:
        return int.from_bytes(urlsafe_b64decode(key[name] + "=" * (-len(key[name]) % 4)))

    public = (
        rsa.RSAPublicNumbers(number("e"), number("n")).public_key()
        if key["kty"] == "RSA"
        else ec.EllipticCurvePublicNumbers(number("x"), number("y"), ec.SECP256R1()).public_key()
    )
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class Rights:
    """What callers may do, as the API server says; kept for half a minute."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._kept: dict[tuple[Caller, str, str, str, str], tuple[float, bool]] = {}

    def allow(self, caller: Caller, verb: str, r: Resource, namespace: str = "", subresource: str = "") -> bool:
        """Return True if the caller may; an empty namespace is all of them."""
        key = (caller, verb, r.plural, namespace, subresource)
        until, is_allowed = self._kept.get(key, (0.0, False))
        if time.monotonic() >= until:
            who = {"user": caller.user, "groups": [_EVERYBODY]}
            is_allowed = may(self._kube, SUBJECT_REVIEWS, who, verb, r, subresource, namespace)
            self._kept = {each: kept for each, kept in self._kept.items() if kept[0] > time.monotonic()}
            self._kept[key] = (time.monotonic() + _RIGHT_KEPT_S, is_allowed)
        return is_allowed


class CallersJobs:
    """The jobs that one caller may see, of those that the page may."""

    def __init__(self, everything: ClusterJobs, rights: Rights, caller: Caller) -> None:
        self.kube: Kube | None = everything.kube
        self.title = f"jobs that {caller.user} may see"
        self._everything, self._rights, self._caller = everything, rights, caller

    def jobs(self) -> list[Manifest]:
        """Return the jobs of the namespaces in which the caller may list jobs."""
        jobs = self._everything.jobs()
        namespaces = {job["metadata"]["namespace"] for job in jobs}
        visible = {each for each in namespaces if self._rights.allow(self._caller, "list", POSTTRAINJOBS, each)}
        return [job for job in jobs if job["metadata"]["namespace"] in visible]

    def job(self, identity: str) -> Manifest:
        """Return a job that the caller may get. What may not be seen is not said to exist."""
        namespace = identity.partition("/")[0]
        if not self._rights.allow(self._caller, "get", POSTTRAINJOBS, namespace):
            raise MissingError(f"job {identity!r} does not exist, or {self._caller.user} may not get it")
        return self._everything.job(identity)

    def events(self, job: Manifest) -> list[Manifest]:
        """Return the job's events."""
        return self._everything.events(job)

    def check_run(self, job: Manifest) -> None:
        """Raise Forbidden unless the caller may read the log of the job's pods: a run directory tells as much."""
        namespace = job["metadata"]["namespace"]
        if not self._rights.allow(self._caller, "get", PODS, namespace, "log"):
            raise Forbidden(403, "Forbidden", f"{self._caller.user} may not get pods/log in namespace {namespace!r}")

    def check_nodes(self) -> None:
        """Raise Forbidden unless the caller may list nodes and all pods: rows of nodes name jobs of every namespace."""
        for r in (NODES, PODS):
            if not self._rights.allow(self._caller, "list", r):
                raise Forbidden(403, "Forbidden", f"{self._caller.user} may not list {r.plural} of the whole cluster")
