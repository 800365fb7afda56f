"""The program of a bundle (`python3 BUNDLE`), in a sandbox: answer its requests, print one line of JSON.

`{"loaded": …, "replies": [[value, error, stopped, seconds], …]}`, or `{"broken": why}` for a user's file that cannot be
loaded. Standard output has that line alone: what the user's code prints goes to standard error.
"""

import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from pttrainer.errors import UserCodeError
from pttrainer.sandbox.pool import Pool, Request, default_children

TASK, CODE = "task.json", "user_code/"
"""Names in the bundle: of the requests, and of the folder with the user's file."""


def main() -> None:
    """Answer the requests of the bundle that this is the program of."""
    bundle = Path(sys.path[0]).resolve()
    sys.path[0] = str(bundle)  # children start with another directory
    os.environ["PYTHONUNBUFFERED"] = "1"  # a child is killed with its last answer
    home = tempfile.mkdtemp(prefix="posttrain-")
    try:
        with zipfile.ZipFile(bundle) as archive:
            task = json.loads(archive.read(TASK))
            source = task["source"]
            if "path" in source:
                source["path"] = archive.extract(CODE + source["path"], home)
        print(json.dumps(answer(task["field"], source, task["requests"])))
    finally:
        shutil.rmtree(home, ignore_errors=True)
        bundle.unlink(missing_ok=True)


def answer(field: str, source: dict[str, object], requests: list[tuple[object, float]]) -> dict[str, object]:
    """Return the answer to requests, in their order."""
    children = max(1, min(default_children(), len(requests)))
    try:
        pool = Pool(field, source, children)
    except UserCodeError as error:
        return {"broken": str(error)}
    try:
        replies = pool.call([Request(message, limit_s) for message, limit_s in requests], lambda: None)
    finally:
        pool.close()
    return {
        "loaded": pool.loaded,
        "replies": [[each.value, each.error, each.stopped, each.seconds] for each in replies],
    }


if __name__ == "__main__":
    main()
