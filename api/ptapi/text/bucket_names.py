"""Names of buckets, where no field of a job is checked: Google Cloud Storage's own rule."""

import re

from ptapi.spec.base import BUCKET

ACCEPTED = (
    "3 to 63 lower-case letters, digits, - and _, a letter or digit at both ends; "
    "with dots up to 222, each part up to 63"
)


def problem(uri: str) -> str:
    """Return what is wrong with the bucket of a `gs://` URI, and what is accepted; nothing if its name is one."""
    name = uri.removeprefix("gs://").partition("/")[0]
    if len(name) <= 222 and re.fullmatch(BUCKET, name):
        return ""
    return f"{uri}: bucket {name!r}; accepted: {ACCEPTED}"
