"""What `import posttrain` costs, and which names it has."""

import subprocess
import sys

import pytest

import posttrain

CODE = """
import sys, time
before = time.process_time()
import posttrain
print(time.process_time() - before)
posttrain.PostTrainJob, posttrain.Run, posttrain.Client
heavy = {"jax", "kubernetes", "numpy", "pandas", "click", "rich", "google", "asyncio"} & set(sys.modules)
assert not heavy, heavy
"""


def test_importing_the_package_and_every_class_of_it_needs_no_cluster_client_and_no_jax() -> None:
    costs = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        costs.append(float(done.stdout))
    assert min(costs) < 0.1


def test_every_name_of_the_package_is_there_and_others_are_refused_with_the_list() -> None:
    assert [name for name in posttrain.__all__ if not hasattr(posttrain, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'Trainer'; accepted: Client"):
        _ = posttrain.Trainer
