"""The command that a workload runs: MaxText's post-training if it is one, else any command in its image."""

import shlex
from copy import deepcopy

from ptctl.errors import InputError
from ptctl.importers import maxtext
from ptctl.importers.command_lines.shell import as_text
from ptctl.importers.draft import Draft
from ptctl.importers.secrets import without_secrets
from ptctl.jobs.definition.file import check

_ALGORITHM = "algorithm: sft"
_PLACEHOLDER = "a placeholder: the command itself decides what it trains"
_NO_PROGRAM = "a placeholder: your own program connects to Pathways and decides what it trains"


def put_program(draft: Draft, command: str | None, shell: tuple[str, ...] = ("bash", "-c")) -> None:
    """Write `--command` into a draft."""
    if command is None:
        draft.put("spec.algorithm", {"sft": {}}, "--command")
        is_headless = draft.get("spec.pathways.headless")
        draft.note(
            _ALGORITHM, _NO_PROGRAM if is_headless else "posttrain's trainer runs, because there is no --command"
        )
        return None
    program = maxtext.program_of(command)
    if program is None:
        return put_container(draft, command, shell)
    attempt = deepcopy(draft)
    try:
        maxtext.put(attempt, program)
        check(attempt.filled(examples=True), "as runtime.maxtext")
    except InputError as error:
        draft.note("runtime.container", "MaxText runs as a plain command, because " + error.message)
        put_container(draft, command, shell)
    else:
        draft.job, draft.notes, draft.secrets = attempt.job, attempt.notes, attempt.secrets


def put_container(draft: Draft, command: str, shell: tuple[str, ...] = ("bash", "-c")) -> None:
    """Run a command in the job's image, by bash as XPK and gcluster do."""
    text, secrets = without_secrets(as_text(command))
    for name in secrets:
        draft.secret(name)
    draft.put("spec.runtime", {"container": {"command": [*shell, text.strip()]}}, "--command")
    draft.put("spec.algorithm", {"sft": {}}, "--command")
    draft.note(_ALGORITHM, _PLACEHOLDER)


def put_command_words(draft: Draft, words: list[str]) -> None:
    """Run words without a shell; a secret among them needs one, which reads it from its variable."""
    if without_secrets(shlex.join(words))[1]:
        return put_container(draft, shlex.join(words))
    draft.put("spec.runtime", {"container": {"command": words[:1], "args": words[1:]}}, "command")
    draft.put("spec.algorithm", {"sft": {}}, "command")
    return draft.note(_ALGORITHM, _PLACEHOLDER)
