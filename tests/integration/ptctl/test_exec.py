"""`ptctl workload exec`: commands in the container of a running job, by the WebSocket protocol of Kubernetes."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptkube.objects import pod_phase
from ptkube.resources import PODS, Manifest

Run = Callable[..., subprocess.CompletedProcess[str]]
Command = Callable[..., list[str]]


@pytest.fixture
def pod(cluster: Any, ptctl: Run, job: Callable[..., str], namespace: str) -> Manifest:
    """The running pod of the job `a`, which sleeps."""
    document = yaml.safe_load(job("a", suspend=False))
    document["spec"]["env"] = [{"name": "COLOUR", "value": "green"}]
    document["spec"]["runtime"] = {"container": {"command": ["sleep", "600"]}}
    document["spec"]["image"] = "mine:1"
    document["spec"]["runPolicy"]["terminationGracePeriodSeconds"] = 1
    created = ptctl("workload", "create", "-f", "-", stdin=json.dumps(document))
    assert created.returncode == 0, created.stderr
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        pods = cluster.kube.list(PODS, namespace).items
        if pods and pod_phase(pods[0]) == "Running":
            return dict(pods[0])
        time.sleep(0.1)
    raise AssertionError("the pod does not run")


def test_a_command_runs_in_the_container_with_input_output_and_exit_code(
    pod: Manifest, ptctl_command: Command, kubeconfig: Path, namespace: str
) -> None:
    def execute(*command: str, stdin: bytes | None = None, flags: tuple[str, ...] = ()) -> Any:
        words = [*ptctl_command("workload", "exec", "a", *flags), "--", *command]
        return subprocess.run(words, input=stdin, capture_output=True, timeout=300)

    code = 'echo "$COLOUR $HOSTNAME"; echo problem >&2; exit 7'
    both = execute("sh", "-c", code)
    hostname = pod["spec"].get("hostname") or pod["metadata"]["name"]
    assert (both.returncode, both.stderr) == (7, b"problem\n")
    assert both.stdout == f"green {hostname}\n".encode()

    content = os.urandom(300_000)
    copied = execute("cat", stdin=content, flags=("-i",))
    assert (copied.returncode, copied.stdout == content) == (0, True), copied.stderr
    assert execute("cat", stdin=b"not passed on").stdout == b""

    absent = execute("no-such-program")
    assert (absent.returncode, b"executable file not found" in absent.stderr) == (1, True), absent.stderr
    other = execute("true", flags=("--rank", "5"))
    assert (other.returncode, b"--rank 5" in other.stderr, b"accepted: 0 to 0" in other.stderr) == (3, True, True)
    no_terminal = execute("true", flags=("-t",))
    assert (no_terminal.returncode, b"stdin is not a terminal" in no_terminal.stderr) == (2, True)

    if shutil.which("kubectl"):
        words = ["kubectl", "--kubeconfig", str(kubeconfig), "-n", namespace, "exec", "-i", pod["metadata"]["name"]]
        peer = subprocess.run([*words, "--", "sh", "-c", "cat; exit 3"], input=b"hi", capture_output=True, timeout=300)
        assert (peer.returncode, peer.stdout) == (3, b"hi"), peer.stderr


@pytest.mark.usefixtures("pod")
def test_a_terminal_is_one_and_ctrl_c_goes_to_the_command(ptctl_command: Command) -> None:
    ours, theirs = pty.openpty()
    words = [*ptctl_command("workload", "exec", "a", "-it"), "--", "sh", "-c", "stty size; echo ready; sleep 60"]
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as child:
        shown = b""
        while b"ready" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"\x03")
        assert child.wait(300) == 130
    assert re.search(rb"\d+ \d+\r\n", shown), shown


def test_the_command_ends_with_ptctl_and_with_its_container(
    cluster: Any, pod: Manifest, ptctl_command: Command, namespace: str, tmp_path: Path
) -> None:
    def sleeps() -> subprocess.Popen[bytes]:
        code = f"echo $$ > {tmp_path}/pid; echo on; exec sleep 60"
        child = subprocess.Popen(
            [*ptctl_command("workload", "exec", "a"), "--", "sh", "-c", code], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"on\n"
        return child

    def is_gone() -> bool:
        deadline = time.monotonic() + 300
        while (path := Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}")).exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return not path.exists()

    with sleeps() as child:
        child.send_signal(signal.SIGINT)
        assert (child.wait(300), is_gone()) == (130, True)
    with sleeps() as child:
        cluster.kube.delete(PODS, pod["metadata"]["name"], namespace, grace_s=0)
        assert (child.wait(300), is_gone()) == (137, True)
