"""Kubernetes' protobuf bodies, parsed into the same dicts as JSON.

Field numbers come from protobuf.json. The server never writes protobuf; clients that send it accept JSON responses. Go
writes empty strings and zero times for unset fields, so those are dropped.
"""

import base64
import json
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from ptlocal.apiserver.errors import bad_request

Manifest = dict[str, Any]
MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_GROUPS = {  # API group -> its prefix in protobuf.json
    "": "core",
    "batch": "batch",
    "apps": "apps",
    "coordination.k8s.io": "coordination",
    "scheduling.k8s.io": "scheduling",
    "rbac.authorization.k8s.io": "rbac",
    "authorization.k8s.io": "authorization",
    "policy": "policy",
    "events.k8s.io": "events",
    "discovery.k8s.io": "discovery",
}
_ABSENT = object()


@cache
def _messages() -> dict[str, dict[str, list[str]]]:
    parsed: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_name("protobuf.json").read_text())
    return parsed


def parse(raw: bytes) -> Manifest:
    """Return the object in a body: an envelope of apiVersion, kind and the message."""
    try:
        if not raw.startswith(_MAGIC):
            raise ValueError("the prefix of a Kubernetes protobuf body is missing")
        envelope = {number: value for number, _, value in _fields(raw[len(_MAGIC) :])}
        type_meta = {number: value.decode() for number, _, value in _fields(envelope.get(1, b""))}
        api_version, kind = type_meta.get(1, ""), type_meta.get(2, "")
        body = _message(_message_name(api_version, kind), envelope.get(2, b""))
    except (ValueError, IndexError, struct.error, AttributeError, TypeError, KeyError) as error:
        raise bad_request(f"cannot decode the protobuf body: {error}") from None
    return {"apiVersion": api_version, "kind": kind, **body}


def _message_name(api_version: str, kind: str) -> str:
    if kind == "DeleteOptions":
        return "meta.DeleteOptions"
    group = api_version.rpartition("/")[0]
    name = f"{_GROUPS.get(group, group)}.{kind}"
    if name not in _messages():
        raise ValueError(f"{api_version} {kind} is not read as protobuf here; send JSON")
    return name


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield (number, wire type, value): an int for varints and fixed widths, bytes for the rest."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, wire, value
        elif wire == 2:
            length, position = _varint(data, position)
            if position + length > len(data):
                raise ValueError("a field is longer than the body")
            yield number, wire, data[position : position + length]
            position += length
        elif wire in (1, 5):
            width = 8 if wire == 1 else 4
            yield number, wire, struct.unpack("<d" if wire == 1 else "<f", data[position : position + width])[0]
            position += width
        else:
            raise ValueError(f"unknown wire type {wire}")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _message(name: str, data: bytes) -> Any:
    if name in _SPECIAL:
        return _SPECIAL[name](data)
    fields = _messages()[name]
    made: Manifest = {}
    for number, wire, value in _fields(data):
        field = fields.get(str(number))
        if field is None:
            continue
        key, kind, mode = field
        if mode == "map":
            made.setdefault(key, {}).update([_entry(kind, value)])
        elif mode == "repeated":
            made.setdefault(key, []).extend(_packed(kind, wire, value))
        elif mode == "inline":
            made.update(_value(kind, value))
        else:
            item = _value(kind, value)
            if item not in ("", _ABSENT):
                made[key] = item
    return made


def _packed(kind: str, wire: int, value: Any) -> list[Any]:
    if wire == 2 and kind in ("int32", "int64", "bool"):
        numbers, position = [], 0
        while position < len(value):
            number, position = _varint(value, position)
            numbers.append(_value(kind, number))
        return numbers
    return [_value(kind, value)]


def _entry(kind: str, data: bytes) -> tuple[str, Any]:
    parts = {number: value for number, _, value in _fields(data)}
    empty: Any = b"" if kind not in ("int32", "int64", "bool") else 0
    return parts.get(1, b"").decode(), _value(kind, parts.get(2, empty))


def _value(kind: str, value: Any) -> Any:
    if kind == "string":
        return value.decode()
    if kind == "bytes":
        return base64.b64encode(value).decode()
    if kind == "bool":
        return bool(value)
    if kind in ("int32", "int64"):
        return value - 2**64 if value >= 2**63 else value
    if "." in kind:
        return _message(kind, value)
    return value


def _time(data: bytes) -> Any:
    parts = {number: value for number, _, value in _fields(data)}
    if not parts:
        return _ABSENT
    seconds = _value("int64", parts.get(1, 0))
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds > 0 else _ABSENT


def _micro_time(data: bytes) -> Any:
    text = _time(data)
    if text is _ABSENT:
        return text
    nanos = {number: value for number, _, value in _fields(data)}.get(2, 0)
    return f"{text[:-1]}.{nanos // 1000:06d}Z"


def _quantity(data: bytes) -> str:
    parts: dict[int, bytes] = {number: value for number, _, value in _fields(data)}
    return parts.get(1, b"0").decode()


def _int_or_string(data: bytes) -> Any:
    parts = {number: value for number, _, value in _fields(data)}
    return parts.get(3, b"").decode() if parts.get(1) else _value("int32", parts.get(2, 0))


def _raw_json(data: bytes) -> Any:
    raw = {number: value for number, _, value in _fields(data)}.get(1, b"")
    return json.loads(raw) if raw else _ABSENT


def _texts(data: bytes) -> list[str]:
    return [value.decode() for _, _, value in _fields(data)]


_SPECIAL: dict[str, Callable[[bytes], Any]] = {
    "meta.Time": _time,
    "meta.MicroTime": _micro_time,
    "meta.FieldsV1": _raw_json,
    "resource.Quantity": _quantity,
    "intstr.IntOrString": _int_or_string,
    "runtime.RawExtension": _raw_json,
    "authorization.ExtraValue": _texts,
}
