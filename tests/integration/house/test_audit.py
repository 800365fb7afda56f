"""`make audit` against a service that speaks OSV, with the real pip-audit, which `make audit` installs (CI: first)."""

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from scripts.audit import CLEAN, FAILED, UNREACHABLE, VULNERABLE, verdict

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv-audit" / "bin" / "python"

needs_pip_audit = pytest.mark.skipif(not PYTHON.exists(), reason="pip-audit is not installed; hint: make audit")


class Osv(ThreadingHTTPServer):
    """Knows one vulnerability of one package."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.vulnerable = ""

    @property
    def flags(self) -> list[str]:
        """pip-audit's, so that it asks this service."""
        return ["--osv-url", f"http://127.0.0.1:{self.server_port}/v1/query", "--cache-dir", "/nonexistent"]


class _Handler(BaseHTTPRequestHandler):
    server: Osv

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = query["package"]["name"]
        body = json.dumps({"vulns": [_advisory(name)]} if name == self.server.vulnerable else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _advisory(name: str) -> dict[str, object]:
    events = [{"introduced": "0"}, {"fixed": "999"}]
    affected = {
        "package": {"name": name, "ecosystem": "PyPI", "purl": f"pkg:pypi/{name}"},
        "ranges": [{"type": "ECOSYSTEM", "events": events}],
    }
    return {"id": "PYSEC-0000-1", "summary": "bad", "details": "bad", "affected": [affected]}


@pytest.fixture
def osv() -> Iterator[Osv]:
    server = Osv()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def audit(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PYTHON, ROOT / "scripts/audit.py", *words], capture_output=True, text=True)


@needs_pip_audit
def test_a_known_vulnerability_fails_and_is_named_with_its_fix(osv: Osv) -> None:
    clean = audit(*osv.flags)
    assert (clean.returncode, clean.stderr) == (CLEAN, "")
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    assert f"no known vulnerabilities in {len(pinned)} packages" in clean.stdout
    osv.vulnerable = "pyyaml"
    vulnerable = audit("--unreachable-ok", *osv.flags)
    assert vulnerable.returncode == VULNERABLE
    assert "PYSEC-0000-1; fixed in: 999" in vulnerable.stderr


@needs_pip_audit
def test_a_service_that_is_away_is_told_apart_and_may_be_let_pass() -> None:
    nowhere = ["--osv-url", "http://127.0.0.1:9/v1/query"]
    away = audit(*nowhere)
    assert away.returncode == UNREACHABLE
    assert "not reachable, nothing was checked" in away.stderr
    passed = audit("--unreachable-ok", *nowhere)
    assert (passed.returncode, "not reachable" in passed.stderr) == (0, True)
    broken = audit("--unreachable-ok", "--no-such-flag")
    assert broken.returncode == FAILED


def test_a_service_that_knows_no_package_has_checked_nothing() -> None:
    """As pip-audit reports it of PyPI behind a mirror without advisories, with exit code 0."""
    reason = "Dependency not found on PyPI and could not be audited: idna (2.0)"
    report = {"dependencies": [{"name": "idna", "skip_reason": reason}], "fixes": []}
    assert verdict(json.dumps(report), "")[0] == UNREACHABLE
