"""Credentials: one bearer token over TLS with a certificate of our own.

TLS even on loopback, because kubectl sends no credentials over plain HTTP. The authority, the serving certificate and
the token are created once and kept in the data directory, readable only by its owner, so kubeconfigs and running
clients stay valid across restarts. Left out: users, roles, rotation; certificates last ten years.
"""

import ipaddress
import os
import secrets
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_YEARS = 10


class Credentials:
    """The files in `pki`, created if they are missing."""

    def __init__(self, pki: Path) -> None:
        self.ca = pki / "ca.crt"
        self.certificate = pki / "server.crt"
        self._key = pki / "server.key"
        token = pki / "token"
        pki.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self.ca.exists() and self.certificate.exists() and self._key.exists()):
            self._make_certificates()
        if not token.exists():
            write_private(token, secrets.token_urlsafe(32).encode())
        self.token = token.read_text().strip()

    def context(self) -> ssl.SSLContext:
        """Return the server's TLS context."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self._key)
        return context

    def _make_certificates(self) -> None:
        ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        ca_name, name = _name("posttrain-local-ca"), _name("posttrain-local")
        ca = (
            _builder(ca_name, ca_name, ca_key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(ca_key, hashes.SHA256())
        )
        hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        certificate = (
            _builder(name, ca_name, key.public_key())
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        write_private(
            self._key, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        write_private(self.certificate, certificate.public_bytes(pem))
        write_private(self.ca, ca.public_bytes(pem))  # last: if it exists, all exist


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically, readable only by its owner from the first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    temporary.replace(path)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    start = datetime.now(UTC) - timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
