"""How the demo ends when it does not end well: nothing left running, and the job's own words."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ptlocal import cluster as local
from ptlocal.paths import Layout
from ptlocal.processes import CLUSTER_MARK, with_marker
from ptlocal.supervisor.identity import cluster_id


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory for a cluster of the test's own."""
    folder = tmp_path / "local"
    yield folder
    local.down(folder, say=lambda _: None, now=True)


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ptctl", "demo", "--dir", str(home.parent / "out"), *words],
        env={**os.environ, "POSTTRAIN_LOCAL_DIR": str(home)}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def processes_below(folder: Path) -> list[str]:
    """Command lines of this machine that name the folder."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        if str(folder) in line:
            lines.append(line)
    return lines


def listening_addresses(home: Path) -> set[str]:
    """The addresses that the cluster's API server and operator accept connections on."""
    connections = [c for p in with_marker(CLUSTER_MARK, cluster_id(Layout(home))) for c in p.net_connections("inet")]
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(("word", "number"), [("Cluster:", signal.SIGINT), ("Data:", signal.SIGTERM)])
def test_a_demo_that_is_interrupted_leaves_nothing_running(home: Path, word: str, number: signal.Signals) -> None:
    demo = start(home)
    while word not in (line := demo.stderr.readline()):
        assert line, "the demo ended before it was interrupted"
    if word == "Data:":  # everything is up
        assert listening_addresses(home) == {"127.0.0.1"}
    demo.send_signal(number)
    out, err = demo.communicate(timeout=900)
    assert demo.returncode == 130
    assert "nothing is left running" in err
    assert "Traceback" not in err
    assert out == ""
    assert local.status(home).phase == "stopped"
    assert processes_below(home) == []


def test_a_demo_that_is_interrupted_twice_leaves_nothing_running(home: Path) -> None:
    demo = start(home)
    assert demo.stderr is not None
    for word in ("Cluster:", "Interrupted."):
        while word not in (line := demo.stderr.readline()):
            assert line, "the demo ended before it was interrupted"
        demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=900)
    assert (demo.returncode, "Traceback" in err) == (130, False)
    deadline = time.monotonic() + 60
    checks_without = 0  # the second ends the demo before its cleanup, and maybe while the cluster's process starts
    while checks_without < 20 and time.monotonic() < deadline:
        checks_without = 0 if processes_below(home) else checks_without + 1
        time.sleep(0.1)
    assert processes_below(home) == []


def test_a_demo_that_is_killed_leaves_nothing_running(home: Path) -> None:
    demo = start(home)
    assert demo.stderr is not None
    while "loading the model" not in (line := demo.stderr.readline()):
        assert line, "the demo ended before it was killed"
    demo.kill()
    demo.communicate(timeout=900)  # until the end of all that writes to its pipes
    assert local.status(home).phase == "stopped"
    assert processes_below(home) == []


def test_a_job_that_fails_ends_the_demo_with_its_own_message(home: Path) -> None:
    runs = home.parent / "out" / "runs"
    runs.parent.mkdir()
    runs.write_text("a file where the run directories should be")
    demo = start(home)
    out, err = demo.communicate(timeout=900)
    assert demo.returncode == 1, err
    assert "error: job demo-sft failed: " in err
    assert str(runs) in err.split("error: job demo-sft failed: ")[1].splitlines()[0]
    assert "Traceback" not in err
    assert out == ""
    assert local.status(home).phase == "stopped"
    assert processes_below(home) == []
