"""Ask an advisory service about every version that the images install. `make audit`.

    python scripts/audit.py [--unreachable-ok] [-- flags of pip-audit]

pip-audit does the work, with OSV as its service: PyPI's own answers "not found" for all packages where a mirror has no
advisories, which reads like no findings. Exit codes: 0 nothing known, 1 known vulnerabilities, 2 pip-audit failed, 69
the service is not reachable (0 with --unreachable-ok; make turns every other one into 2).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "constraints.txt"
CLEAN, VULNERABLE, FAILED, UNREACHABLE = 0, 1, 2, 69
_NO_ANSWER = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "ProxyError", "SSLError", "HTTPError", "ServiceError")


def main(words: list[str]) -> int:
    """Return the exit code."""
    flags = [word for word in words if word not in ("--unreachable-ok", "--")]
    code, text = verdict(*_pip_audit(flags))
    print(text, file=sys.stderr if code else sys.stdout)
    return CLEAN if code == UNREACHABLE and "--unreachable-ok" in words else code


def verdict(report: str, errors: str) -> tuple[int, str]:
    """Return the exit code and what to say of pip-audit's report (JSON) and of what it wrote to stderr."""
    if not report.strip():
        return _no_report(errors)
    packages = json.loads(report)["dependencies"]
    skipped = [each for each in packages if "skip_reason" in each]
    if len(skipped) == len(packages):
        return UNREACHABLE, "audit: not reachable: the service knows none of the packages; nothing was checked"
    findings = [_finding(each, finding) for each in packages for finding in each.get("vulns", [])]
    left_out = "".join(f"\nnot checked: {each['name']}: {each['skip_reason']}" for each in skipped)
    if findings:
        return VULNERABLE, "\n".join(["audit: known vulnerabilities:", *findings]) + left_out
    return CLEAN, f"audit: no known vulnerabilities in {len(packages) - len(skipped)} packages{left_out}"


def _finding(package: dict[str, Any], finding: dict[str, Any]) -> str:
    fixed = ", ".join(finding["fix_versions"]) or "nothing yet"
    return f"{package['name']} {package['version']}: {finding['id']}; fixed in: {fixed}"


def _no_report(errors: str) -> tuple[int, str]:
    last = (errors.strip().splitlines() or ["pip-audit wrote nothing"])[-1]
    if any(name in last for name in _NO_ANSWER):
        return UNREACHABLE, f"audit: not reachable, nothing was checked: {last}"
    return FAILED, f"audit: pip-audit failed: {last}"


def _pip_audit(flags: list[str]) -> tuple[str, str]:
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", "osv", "--format", "json"]
    command += ["--no-deps", "--disable-pip", "--progress-spinner", "off"]
    command += ["--requirement", str(PACKAGES)]
    done = subprocess.run([*command, *flags], capture_output=True, text=True)
    return done.stdout, done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
