"""Live comparisons need torch, transformers and peft: `make parity`. Elsewhere there is nothing to collect."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
