"""Request bodies: media types, size, JSON, YAML and protobuf; a malformed body is a 400 or 415."""

import json
from typing import Any, NoReturn

import yaml

from ptlocal.apiserver.errors import bad_request, unsupported_media_type
from ptlocal.apiserver.http.encoding import protobuf

MAX_BYTES = 3 * 1024 * 1024
JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = protobuf.MEDIA_TYPE
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(raw: bytes, content_type: str, accepted: tuple[str, ...] = (JSON, YAML, PROTOBUF)) -> Any:
    """Return the decoded body. An empty content type means JSON."""
    media = media_type(content_type)
    if media not in accepted:
        raise unsupported_media_type(list(accepted))
    if not raw.strip():
        raise bad_request("the request body is empty; an object is expected")
    if media == PROTOBUF:
        return protobuf.parse(raw)
    return _yaml(raw) if media in (YAML, APPLY) and not raw.lstrip().startswith(b"{") else _json(raw)


def media_type(content_type: str) -> str:
    """Return the media type without its parameters."""
    return content_type.split(";")[0].strip().lower() or JSON


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw, parse_constant=_not_a_number)
    except RecursionError:
        raise bad_request("the object is nested too deeply") from None
    except ValueError as error:  # includes invalid UTF-8
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None


def _not_a_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _yaml(raw: bytes) -> Any:
    try:
        return json.loads(json.dumps(yaml.load(raw, Loader=_LOADER), allow_nan=False, default=str))
    except RecursionError:
        raise bad_request("the object is nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise bad_request(f"error converting YAML to JSON: {error}") from None
