"""`stage --report`: as the operator stages a job's model, beside the runs, for every job that names the same commit.

Each commit has a directory of its own, so a model that moves on at the hub is copied anew and nobody's copy changes.
Where another process copies, this one waits: as long as the record changes, somebody is at it.
"""

import time

from ptapi.failures import ExitCode
from pttrainer.commands import note
from pttrainer.commands.model import stage
from pttrainer.commands.model.stage import BEAT_S, BusyError, HubModel
from pttrainer.runtime.io import storage
from pttrainer.runtime.io.gcs_bucket import Bucket
from pttrainer.runtime.io.huggingface import HUB
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import Attempt

SILENT_S = 5 * BEAT_S
"""Nobody writes a record that has not changed for so long."""
POLL_S = 10.0


def report(source: str, parent: str, revision: str | None) -> ExitCode:
    """Stage the model under a directory; write the copy's URI, or why there is none, into the termination message."""
    try:
        copy = _shared_copy(source, parent, revision)
    except BaseException as error:
        code = termination.exit_code(error)
        termination.show(error, code)
        termination.report(code, termination.describe(error), Attempt())
        return code
    termination.report(ExitCode.OK, "", Attempt(), staged=copy)
    return ExitCode.OK


def _shared_copy(source: str, parent: str, revision: str | None) -> str:
    stage.check(source, parent)
    model = stage.hub_model(source, revision)
    name = model.uri.removeprefix(HUB).replace("/", "--")
    target = f"{parent.rstrip('/')}/{name}@{model.commit}"
    bucket = storage.bucket(target)
    while True:
        _wait_for_others(bucket, model)
        try:
            stage.copy(model, target)
        except BusyError as error:
            note(str(error))
        else:
            return target


def _wait_for_others(bucket: Bucket, model: HubModel) -> None:
    """Return once the copy is complete, or nobody writes its record."""
    generation, changed = 0, time.monotonic()
    while True:
        record, missing = stage.state_of(bucket, model)
        if not missing or not record.generation:
            return
        if record.generation != generation:
            generation, changed = record.generation, time.monotonic()
        elif time.monotonic() - changed >= SILENT_S:
            return
        note(f"{bucket.uri}: waiting for another process, which stages the model")
        time.sleep(POLL_S)
