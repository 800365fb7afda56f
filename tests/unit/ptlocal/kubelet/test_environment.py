"""What a container sees: $(VAR) expansion, local paths for mounts, local addresses for pod names."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptlocal.kubelet.container.command import command_of
from ptlocal.kubelet.container.path_rewriting import Mount, Rewriter, expand
from ptlocal.kubelet.ports import PortMap


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$A", "$A"),
        ("$$$(A)", "$1"),
        ("100$", "100$"),
        ("", ""),
    ],
)
def test_references_expand_as_in_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


MOUNTS = [
    Mount("/etc/posttrain", "/d/job"),
    Mount("/etc/posttrain/sub", "/d/sub"),
    Mount("/dev/termination-log", "/d/t"),
]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/etc/posttrain/job.yaml", "/d/job/job.yaml"),
        ("/etc/posttrain", "/d/job"),
        ("/etc/posttrain/", "/d/job/"),
        ("/etc/posttrain:/other", "/d/job:/other"),
        ("/etc/posttrain/sub/x", "/d/sub/x"),
        ("/etc/posttrainer", "/etc/posttrainer"),
        ("--file=/etc/posttrain/job.yaml", "--file=/d/job/job.yaml"),
        ("/dev/termination-log", "/d/t"),
        ("see /etc/posttrain", "see /etc/posttrain"),
        ("file=/etc/posttrain", "file=/etc/posttrain"),
    ],
)
def test_values_that_start_with_a_mount_path_become_local(value: str, expected: str) -> None:
    assert Rewriter(MOUNTS)(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("js-w-0-0.js:1234", "127.0.0.1:11234"),
        ("js-w-0-0.js", "127.0.0.1"),
        ("js-w-0-0.js.ns.svc.cluster.local:80", "127.0.0.1:10080"),
        ("js-w-0-0.js.ns.svc:80", "127.0.0.1:10080"),
        ("js-w-0-0.js.ns:80", "127.0.0.1:10080"),
        ("grpc://js-w-0-0.js:80/x", "grpc://127.0.0.1:10080/x"),
        ("a.js:80,b.js:81", "127.0.0.1:10080,127.0.0.1:10081"),
        ("app.json", "app.json"),
        ("lib/app.js-x", "lib/app.js-x"),
        ("js-w-0-0.other:80", "js-w-0-0.other:80"),
        ("x.js-w-0-0.js.ns2:80", "x.js-w-0-0.js.ns2:80"),
    ],
)
def test_pod_names_become_local_addresses(value: str, expected: str) -> None:
    rewrite = Rewriter(subdomain="js", namespace="ns", port_for=lambda _, port: port + 10000)
    assert rewrite(value) == expected


@given(st.text())
def test_without_mounts_and_subdomain_nothing_changes(value: str) -> None:
    assert Rewriter()(value) == value


def test_one_port_per_attempt_and_address_known_to_all_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    ports = PortMap(file)
    first = ports.port_for("job1/0", "js-w-0-0", 1234)
    assert ports.port_for("job1/0", "js-w-0-0", 1234) == first
    others = {
        ports.port_for("job1/1", "js-w-0-0", 1234),
        ports.port_for("job2/0", "js-w-0-0", 1234),
        ports.port_for("job1/0", "js-w-1-0", 1234),
        ports.port_for("job1/0", "js-w-0-0", 1235),
    }
    assert len(others | {first}) == 5
    assert PortMap(file).port_for("job1/0", "js-w-0-0", 1234) == first


def test_taken_ports_are_passed_over_and_ports_of_gone_jobs_given_back(tmp_path: Path) -> None:
    ports = PortMap(tmp_path / "ports.json", is_free=lambda port: port != 20000)
    assert ports.port_for("a", "h", 1) == 20001
    ports.keep_only(["b"])
    assert PortMap(tmp_path / "ports.json", is_free=lambda _: True).port_for("b", "h", 1) == 20000


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--port", "8477"], "18477"),
        (["--port", "1"], "1"),
        (["8477"], "8477"),
    ],
)
def test_a_declared_port_is_served_where_peers_reach_it_by_name(args: list[str], expected: str) -> None:
    container = {"name": "sampler", "command": ["serve"], "args": args, "ports": [{"containerPort": 8477}]}
    pod = {"metadata": {"name": "js-s-0-0-x"}, "spec": {"hostname": "js-s-0-0", "subdomain": "js"}}
    rewrite = Rewriter(subdomain="js", namespace="ns", port_for=lambda host, port: port + 10000)
    command = command_of(pod, container, {"PEER": "js-s-0-0.js:8477"}, rewrite, base={}, home=Path("/"))
    assert (command.argv[-1], command.env["PEER"]) == (expected, "127.0.0.1:18477")
    alone = command_of({**pod, "spec": {}}, container, {}, Rewriter(), base={}, home=Path("/"))
    assert alone.argv[1:] == args
