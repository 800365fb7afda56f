"""The command that a workload runs: MaxText's post-training where it is one, and else any command in its image."""

from copy import deepcopy

from ptctl.errors import InputError
from ptctl.importers import maxtext
from ptctl.importers.command_line import as_text
from ptctl.importers.draft import Draft
from ptctl.importers.secrets import without_secrets
from ptctl.jobs.file import check

_ALGORITHM = "algorithm: sft"
_STANDS = "stands for what the command does, which posttrain cannot read: the command finds the job in its pods"

_NO_PROGRAM = "stands for a program of your own, which connects to Pathways from elsewhere"


def put_program(draft: Draft, command: str | None) -> None:
    """Write `--command` into a draft."""
    if command is None:
        draft.put("spec.algorithm", {"sft": {}}, "--command")
        is_headless = draft.get("spec.pathways.headless")
        draft.note(_ALGORITHM, _NO_PROGRAM if is_headless else "posttrain's own trainer runs, for want of a --command")
        return None
    program = maxtext.program_of(command)
    if program is None:
        return put_container(draft, command)
    attempt = deepcopy(draft)
    try:
        maxtext.put(attempt, program)
        check(attempt.filled(examples=True), "as runtime.maxtext")
    except InputError as error:
        draft.note("runtime.container", "MaxText runs as a plain command, because " + error.message)
        put_container(draft, command)
    else:
        draft.job, draft.notes, draft.secrets = attempt.job, attempt.notes, attempt.secrets


def put_container(draft: Draft, command: str) -> None:
    """Run a command in the job's image, by bash as XPK and gcluster do."""
    text, secrets = without_secrets(as_text(command))
    for name in secrets:
        draft.secret(name)
    draft.put("spec.runtime", {"container": {"command": ["bash", "-c", text.strip()]}}, "--command")
    draft.put("spec.algorithm", {"sft": {}}, "--command")
    draft.note(_ALGORITHM, _STANDS)
