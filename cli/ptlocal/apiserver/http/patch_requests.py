"""PATCH: the four media types, over the writer.

Each turns (live object, patch) into a new object, which is then updated like a PUT. Server-side apply is the fourth and
may also create.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

from ptlocal.apiserver.errors import bad_request, forbidden_field, required, unsupported_media_type
from ptlocal.apiserver.http.encoding import bodies
from ptlocal.apiserver.http.routes import Target
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.write_options import WriteOptions, invalid_option
from ptlocal.apiserver.writes import admission, patch_formats, server_side_apply
from ptlocal.apiserver.writes.object_writer import Writer

Manifest = dict[str, Any]
_MEDIA = (bodies.JSON_PATCH, bodies.MERGE, bodies.APPLY)


@dataclass(frozen=True)
class Patch:
    """A patch request."""

    media: str
    raw: bytes
    has_manager: bool


@dataclass(frozen=True)
class Patched:
    """The result of a patch."""

    obj: Manifest
    is_new: bool = False
    warnings: list[str] = field(default_factory=list)


def apply(writer: Writer, target: Target, kind: Kind, patch: Patch, options: WriteOptions) -> Patched:
    """Apply a patch request."""
    accepted = _MEDIA if kind.is_custom else (*_MEDIA, bodies.STRATEGIC)
    if patch.media not in accepted:
        raise unsupported_media_type(list(accepted))
    if patch.media == bodies.APPLY:
        if not patch.has_manager:
            raise invalid_option("PatchOptions", required("fieldManager", "is required for apply patch"))
        sent = bodies.parse(patch.raw, patch.media, (bodies.APPLY,))
        obj, is_new = server_side_apply.apply(writer, kind, target.space, target.name, sent, options)
        return Patched(obj, is_new)
    if options.force:
        raise invalid_option("PatchOptions", forbidden_field("force", "may not be specified for non-apply patch"))
    sent = bodies.parse(patch.raw, patch.media, (patch.media,))
    live = writer.current(kind, target.space, target.name)
    obj = _patched(live, sent, patch.media, kind)
    warnings = admission.decode(obj, kind, options.field_validation, is_patched=True)
    return Patched(writer.update(kind, target.space, target.name, obj, options), warnings=warnings)


def _patched(live: Manifest, sent: Any, media: str, kind: Kind) -> Manifest:
    if media == bodies.JSON_PATCH:
        result = patch_formats.json_patch(live, sent)
    elif not isinstance(sent, dict):
        raise bad_request("a merge patch must be an object")
    elif media == bodies.MERGE:
        result = patch_formats.merge(copy.deepcopy(live), sent)
    else:
        result = patch_formats.strategic(copy.deepcopy(live), sent, kind.schema)
    if not isinstance(result, dict):
        raise bad_request("the patched object is not an object")
    return result
