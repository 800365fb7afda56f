"""Resolve the packages of vLLM's server for TPUs, as its image installs them: print what changed, or write it.

    python scripts/images/vllm_tpu/resolve.py                   exit 1 if the pins do not resolve together
    python scripts/images/vllm_tpu/resolve.py --upgrade 0.33.0  pins of that vllm-tpu, and of today for the rest

By uv, for a Python and a platform that this machine need not have; pip took minutes. Nothing is installed.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).with_name("requirements.txt")
FOR = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_35", "--only-binary", ":all:")


def resolved(version: str, *options: str) -> list[str]:
    """Return `NAME==VERSION` of all packages. Raises SystemExit with uv's words if there is no solution."""
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", *FOR, *options, "-"]
    done = subprocess.run(command, input=f"vllm-tpu=={version}\n", capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"vllm-tpu=={version}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def main() -> int:
    """Check or renew the pins. Return 1 if packages are missing in them, or needed by nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", metavar="VERSION", help="of vllm-tpu")
    upgrade = parser.parse_args().upgrade
    comment, *pins = PINS.read_text(encoding="utf-8").splitlines()
    if upgrade:
        PINS.write_text("\n".join([comment.replace(version_of(comment), upgrade), *resolved(upgrade)]) + "\n", "utf-8")
        return 0
    wrong = set(pins) ^ set(resolved(version_of(comment), "--constraints", str(PINS)))
    for pin in sorted(wrong):
        print(f"{PINS.name}: {pin}: {'nothing needs it' if pin in pins else 'missing'}", file=sys.stderr)
    if not wrong:
        print(f"{len(pins)} packages resolve together")
    return 1 if wrong else 0


def version_of(text: str) -> str:
    """Return the version in `vllm-tpu==VERSION`."""
    return re.findall(r"vllm-tpu==([\d.]+\d)", text)[0]


if __name__ == "__main__":
    sys.exit(main())
