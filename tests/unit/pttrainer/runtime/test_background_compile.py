"""A compiled function leaves no memory behind that the C library would give back."""

import json
import os
import subprocess
import sys

SCRIPT = """
import ctypes, json
import jax, jax.numpy as jnp
from pttrainer.runtime.background_compile import BackgroundCompile
from pttrainer.runtime.distributed.sharding import make_mesh

def resident():
    status = open("/proc/self/status").read()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024

def freed():
    before = resident()
    ctypes.CDLL(None).malloc_trim(0)
    return before - resident()

def layers(x, number):
    for layer in range(40):
        x = jnp.tanh(x @ x.T @ x + layer + number)
    return jnp.sum(x)

mesh, shape = make_mesh((1,), jax.devices()[:1]), jax.ShapeDtypeStruct((16, 16), "float32")
function = jax.jit(jax.grad(layers), static_argnums=1)
freed()
function.lower(shape, 1).compile()
plain = freed()
step = jax.jit(jax.grad(lambda x: layers(x, 2)))
with jax.set_mesh(mesh):
    arguments = (jax.ShapeDtypeStruct((16, 16), "float32", sharding=jax.NamedSharding(mesh, jax.P())),)
assert BackgroundCompile(step, mesh, arguments).compiled(arguments) is not None
print(json.dumps([plain, freed()]))
"""


def test_memory_of_the_compiler_is_given_back() -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    plain, ours = json.loads(done.stdout)
    assert plain > 20, "MiB that a compiled function leaves, so that this test can fail"
    assert ours < plain / 4
