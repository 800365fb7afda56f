"""What logs, nodes and kubelets say, case by case, in shapes as clusters and libraries write them."""

from typing import Any

import pytest

from ptapi.failures import FailureClass
from ptkube.resources import Manifest
from ptoperator.failures.log_excerpt import log_tail, most_relevant_line
from ptoperator.failures.node_failures import NodeFailureHint, gone, node_failure_hint
from ptoperator.failures.pod_failures import PodFailure, pod_failure
from ptoperator.failures.redaction import HIDDEN, redact
from ptoperator.kube import labels


def pod(code: int, tail: str, **status: Any) -> Manifest:
    terminated = {"exitCode": code, "message": tail, "reason": "Error", "finishedAt": "2026-01-01T00:00:09Z"}
    return {
        "metadata": {"name": "p-0", "labels": {labels.RESTART_ATTEMPT: "0"}},
        "spec": {"nodeName": "gke-tpu-1"},
        "status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": terminated}}], **status},
    }


XLA_HBM = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 12, in <module>\n'
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in "
    "memory space hbm. Used 38.21G of 31.25G hbm. Exceeded hbm capacity by 6.96G.\n"
    "Largest program allocations in hbm:\n"
)
LOGS: dict[str, tuple[int, str, FailureClass, str]] = {
    "XLA cannot compile into the chip's memory": (1, XLA_HBM, FailureClass.OUT_OF_MEMORY_HBM, "Exceeded hbm capacity"),
    "a step asks for more than is free": (
        1,
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 "
        "bytes.",
        FailureClass.OUT_OF_MEMORY_HBM,
        "2147483648 bytes",
    ),
    "a chip that is gone": (1,
     "RuntimeError: Unable to initialize backend 'tpu': UNAVAILABLE: No ba16c7433 device found.",
     FailureClass.HOST_ERROR, "No ba16c7433 device"),
    "memory of a GPU that is broken": (
        1,
        "jaxlib._jax.XlaRuntimeError: INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered",
        FailureClass.HOST_ERROR,
        "ECC_UNCORRECTABLE",
    ),
    "a GPU's link that is broken": (134, "CUDA_ERROR_NVLINK_UNCORRECTABLE: uncorrectable NVLink error detected",
     FailureClass.HOST_ERROR, "NVLINK"),
    "a GPU that fell off the bus": (134, "NVRM: Xid (PCI:0000:04:00): 79, pid=12, GPU has fallen off the bus.",
     FailureClass.HOST_ERROR, "79"),
    "rows that wait to be remapped": (
        134,
        "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
        FailureClass.HOST_ERROR,
        "63",
    ),
    "an Xid of the program itself": (134, "NVRM: Xid (PCI:0000:04:00): 13, Graphics Exception", FailureClass.UNKNOWN,
     "13"),
    "a GPU's memory is full": (1, "INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
     FailureClass.OUT_OF_MEMORY_HBM, "OUT_OF_MEMORY"),
    "NCCL says only that a peer is gone": (
        1,
        "INTERNAL: NCCL operation ncclGroupEnd() failed: remote process exited or there was a network error.",
        FailureClass.UNKNOWN,
        "remote process exited",
    ),
    "faulthandler's thread": (1,
     'Timeout (0:10:00)!\nThread 0x00007f11 (most recent call first):\n  File "x.py", line 3 in wait',
     FailureClass.HANG, "GIL"),
    "the middle of a dump of all stacks": (1,
     '  File "x.py", line 3 in wait\nThread 0x00007f11aa [tokenizer] (most recent call first):\n  File "y.py"',
     FailureClass.HANG, "stacks"),
    "Python's own memory": (1, "Traceback\nMemoryError", FailureClass.OUT_OF_MEMORY_HOST, "MemoryError"),
    "C++'s memory": (134, "terminate called after throwing an instance of 'std::bad_alloc'",
     FailureClass.OUT_OF_MEMORY_HOST, "bad_alloc"),
    "a full disk": (1, "OSError: [Errno 28] No space left on device: '/runs/x'", FailureClass.STORAGE, "No space"),
    "a peer that went away explains nothing": (
        1,
        "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: The following tasks are unhealthy (stopped sending "
        "heartbeats): /job:jax_worker/replica:0/task:3",
        FailureClass.UNKNOWN,
        "task:3",
    ),
    "an error of nobody's": (1, "step 3\nValueError: boom\n", FailureClass.UNKNOWN, "ValueError: boom"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_the_end_of_a_log_has_a_class_and_the_line_that_matters(name: str) -> None:
    code, tail, kind, words = LOGS[name]
    failure = pod_failure(pod(code, tail))
    assert failure.kind == kind
    assert words in failure.message
    assert "\n" not in failure.message
    assert failure.log.endswith(tail.strip()[-40:])


def test_a_fatal_exit_code_is_not_argued_with() -> None:
    failure = pod_failure(pod(65, XLA_HBM))
    assert failure.kind == FailureClass.DATA_ERROR


def test_a_tpu_under_repair_refuses_its_pods_and_that_is_the_hosts_fault() -> None:
    refused = {
        "metadata": {"name": "p-0", "labels": {}},
        "spec": {"nodeName": "gke-tpu-1"},
        "status": {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
            "google.com/tpu, which is unexpected",
        },
    }
    failure = pod_failure(refused)
    assert (failure.kind, failure.is_charged) == (FailureClass.HOST_ERROR, False)
    assert failure.message.startswith("UnexpectedAdmissionError: Allocate failed due to no healthy devices")


def node(
    marks: dict[str, str] | None = None, taints: tuple[str, ...] = (), ready: tuple[str, str, str] = ("True", "", "")
) -> Manifest:
    status, reason, message = ready
    return {
        "metadata": {"name": "gke-tpu-1", "labels": marks or {}},
        "spec": {"taints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]
                 + [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"conditions": [
            {"type": "MemoryPressure", "status": "False"},
            {"type": "Ready", "status": status, "reason": reason, "message": message},
        ]},
    }  # fmt: skip


SPOT = {"cloud.google.com/gke-spot": "true"}
NODES: dict[str, tuple[Manifest, FailureClass | None, str]] = {
    "a node that is well": (node(SPOT), None, ""),
    "a spot VM that is taken": (
        node(SPOT, ("cloud.google.com/impending-node-termination",)),
        FailureClass.PREEMPTED,
        "Google is stopping the VM (spot)",
    ),
    "a VM of ours that is stopped": (
        node({}, ("cloud.google.com/impending-node-termination",)),
        FailureClass.MAINTENANCE,
        "Google is stopping the VM",
    ),
    "a host that is maintained": (
        node({"cloud.google.com/active-node-maintenance": "true"}, ("node.kubernetes.io/unschedulable",)),
        FailureClass.MAINTENANCE,
        "under maintenance",
    ),
    "a maintenance that is planned is none yet": (
        node({"cloud.google.com/active-node-maintenance": "false", "cloud.google.com/scheduled-maintenance-time": "1"}),
        None,
        "",
    ),
    "a spot VM that was shut down": (
        node(SPOT, ("node.cloudprovider.kubernetes.io/shutdown",), ("Unknown", "NodeStatusUnknown", "x")),
        FailureClass.PREEMPTED,
        "its VM was stopped",
    ),
    "a kubelet that is silent": (
        node({}, ("node.kubernetes.io/unreachable",), ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting")),
        FailureClass.HOST_ERROR,
        "not ready (NodeStatusUnknown: Kubelet stopped posting)",
    ),
    "a drained node": (node({}, ("node.kubernetes.io/unschedulable",)), FailureClass.MAINTENANCE, "drained"),
    "a node that is scaled away": (
        node({}, ("ToBeDeletedByClusterAutoscaler",)),
        FailureClass.MAINTENANCE,
        "autoscaler",
    ),
    "a node out of service": (
        node({}, ("node.kubernetes.io/out-of-service",)),
        FailureClass.HOST_ERROR,
        "out of service",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_a_node_says_why_its_pods_went_away(name: str) -> None:
    manifest, kind, words = NODES[name]
    sign = node_failure_hint(manifest)
    assert (sign.kind if sign else None) == kind
    assert sign is None or words in sign.message


def test_a_node_explains_a_crash_but_not_wrong_data() -> None:
    sign = NodeFailureHint(FailureClass.MAINTENANCE, "node n: its host is under maintenance")
    crash = PodFailure(FailureClass.UNKNOWN, "exit code 1", "p", node="n")
    assert crash.with_node_hint(sign).kind == FailureClass.MAINTENANCE
    assert crash.with_node_hint(sign).message == "node n: its host is under maintenance; exit code 1"
    assert not crash.with_node_hint(sign).is_charged
    assert not crash.with_node_hint(None).needs_node_check
    wrong = PodFailure(FailureClass.DATA_ERROR, "row 3", "p", node="n")
    assert wrong.with_node_hint(sign).kind == FailureClass.DATA_ERROR


def test_a_spot_node_that_is_gone_was_preempted() -> None:
    assert gone("n", is_spot=True).kind == FailureClass.PREEMPTED
    assert gone("n", is_spot=False).kind == FailureClass.HOST_ERROR


@pytest.mark.parametrize(
    "text",
    [
        "HTTPError: 401 for hf_AbCdEfGhIjKlMnOpQrSt",
        "Authorization: Bearer ya29.c.b0AXv0zTPQ",
        "curl -H 'authorization: basic dXNlcjpwYXNzd29yZA=='",
        "HF_TOKEN=supersecretvalue is set",
        "password: 'supersecretvalue'",
        "https://user:supersecretvalue@host/x",
        "-----BEGIN RSA PRIVATE KEY-----\nsupersecretvalue\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_secret_is_not_repeated(text: str) -> None:
    kept = redact(f"before {text} after")
    assert HIDDEN in kept
    assert kept.startswith("before ")
    for secret in ("AbCdEfGh", "b0AXv0z", "dXNlcjp", "supersecretvalue"):
        assert secret not in kept


def test_ordinary_words_are_repeated_as_they_are() -> None:
    text = "tokens per second: 12345; token count 99; the tokenizer's secret: none; step 3 of 10"
    assert redact(text) == text


def test_the_end_of_a_log_is_bounded_and_begins_with_a_whole_line() -> None:
    tail = log_tail("\n".join(f"line {number:04d} of many" for number in range(1000)))
    assert len(tail) <= 2000
    assert tail.startswith("line ")
    assert most_relevant_line("") == ""
