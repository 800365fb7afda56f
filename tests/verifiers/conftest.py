"""The real `verifiers` package is in the directory VERIFIERS: `make verifiers`. Else nothing is collected."""

import os

collect_ignore_glob = [] if os.environ.get("VERIFIERS") else ["test_*.py"]
