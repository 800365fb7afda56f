"""Eight virtual devices for the whole room, so that layouts can be compared in one process, and quick compilation: what
one test has compiled, no other of this process and session compiles again."""

import os

from tests.builders.trainer import quick, runs

# Read when jax wakes up; tests that need one device use a mesh of one.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    flags = [os.environ.get("XLA_FLAGS", ""), quick.FLAGS, "--xla_force_host_platform_device_count=8"]
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()
os.environ.setdefault("NPROC", "32")  # as `processes.prepare_environment` has it

import jax

jax.config.update("jax_compilation_cache_dir", runs.compiled())
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)  # the rest is compiled as quickly as it is read
quick.share_ir_contexts()
jax.devices()  # now, because a test may run a job that wants another number of them in this process
