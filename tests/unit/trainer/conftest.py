"""Eight virtual devices for the whole room, so that layouts can be compared in one process, and quick compilation."""

from __future__ import annotations

import os

from tests.builders import quick

# Read when jax wakes up; tests that need one device use a mesh of one.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    flags = [os.environ.get("XLA_FLAGS", ""), quick.FLAGS, "--xla_force_host_platform_device_count=8"]
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()
