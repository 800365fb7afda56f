"""Kubernetes protobuf bodies."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptlocal.apiserver.errors import StatusError
from ptlocal.apiserver.http.encoding import protobuf


def varint(number: int) -> bytes:
    made = bytearray()
    number &= 2**64 - 1
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def field(number: int, value: bytes | int | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def envelope(api_version: str, kind: str, body: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, api_version) + field(2, kind)) + field(2, body)


def test_a_config_map() -> None:
    meta = field(1, "a") + field(2, "") + field(8, b"") + field(11, field(1, "k") + field(2, "v"))
    body = field(1, meta) + field(2, field(1, "x") + field(2, "1")) + field(3, field(1, "b") + field(2, b"\x00\xff"))
    assert protobuf.parse(envelope("v1", "ConfigMap", body)) == {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"k": "v"}},
        "data": {"x": "1"}, "binaryData": {"b": "AP8="}}  # fmt: skip


def test_a_job_with_inlined_quantities_and_negative_numbers() -> None:
    limits = field(1, field(1, "cpu") + field(2, field(1, "500m")))
    probe = field(1, field(2, field(1, "/healthz") + field(2, field(1, 0) + field(2, 80)))) + field(2, 5)
    container = field(1, "c") + field(2, "img") + field(3, "sh") + field(4, "-c") + field(8, limits) + field(10, probe)
    volume = field(1, "v") + field(2, field(19, field(1, field(1, "cm"))))
    pod_spec = field(1, volume) + field(2, container) + field(3, "Never") + field(4, -1)
    body = field(1, field(1, "j")) + field(2, field(1, 2) + field(6, field(2, pod_spec)))
    job: Any = protobuf.parse(envelope("batch/v1", "Job", body))
    assert job["spec"]["parallelism"] == 2
    spec = job["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == -1
    assert spec["volumes"] == [{"name": "v", "configMap": {"name": "cm"}}]
    (container,) = spec["containers"]
    assert container["command"] == ["sh"]
    assert container["args"] == ["-c"]
    assert container["resources"] == {"limits": {"cpu": "500m"}}
    assert container["livenessProbe"] == {"httpGet": {"path": "/healthz", "port": 80}, "initialDelaySeconds": 5}


def test_a_micro_time_keeps_six_decimals() -> None:
    spec = field(1, "me") + field(4, field(1, 1_767_225_600) + field(2, 1_000))
    lease: Any = protobuf.parse(envelope("coordination.k8s.io/v1", "Lease", field(2, spec)))
    assert lease["spec"] == {"holderIdentity": "me", "renewTime": "2026-01-01T00:00:00.000001Z"}


def test_a_kind_that_is_not_known_is_refused_with_a_way_out() -> None:
    with pytest.raises(StatusError, match="send JSON"):
        protobuf.parse(envelope("foo.io/v1", "Bar", b""))


@given(body=st.binary(max_size=60))
def test_any_bytes_are_refused_or_read_but_never_crash(body: bytes) -> None:
    for raw in (body, b"k8s\x00" + body, envelope("v1", "Pod", body)):
        with suppress(StatusError):
            assert "kind" in protobuf.parse(raw)
