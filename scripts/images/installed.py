"""Print pip's report of an installation (stdin) as requirements by version and hash. Runs while an image is built.

Without addresses: they name whatever index the build used.
"""

import json
import sys
from typing import Any


def requirement(item: dict[str, Any]) -> str:
    """Return a line that pip takes with --require-hashes."""
    metadata, archive = item["metadata"], item["download_info"]["archive_info"]
    algorithm, _, digest = archive["hash"].partition("=")
    return f"{metadata['name']}=={metadata['version']} --hash={algorithm}:{digest}"


def requirements(report: dict[str, Any]) -> list[str]:
    """Return a line for each package, by name."""
    return sorted((requirement(item) for item in report["install"]), key=str.lower)


if __name__ == "__main__":
    print("\n".join(requirements(json.load(sys.stdin))))
