"""The jobs in a text, which is a shell script or YAML; start reading here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ptctl.errors import InputError
from ptctl.importers.command_lines import gcluster, xpk
from ptctl.importers.command_lines.shell import Command, parse, unknown
from ptctl.importers.documents import yaml_stream
from ptctl.importers.draft import Draft
from ptctl.importers.huggingface import settings_files, trainers
from ptctl.importers.program import put_program
from ptctl.importers.secrets import is_secret, without_secrets
from ptctl.jobs.definition.set_field import assign

_IGNORED = ("set", "echo", "printf", "export", "true", "exit", ":", "[", "[[", "test", "read", "sleep", "done", "fi")
"""Shell words that create nothing."""
_SOURCES = (xpk, gcluster, trainers)


def drafts(text: str, where: str, variables: Mapping[str, str]) -> list[Draft]:
    """Return the jobs of a script or of YAML documents. Raises InputError if there is none."""
    if settings_files.is_settings(text):
        return [settings_files.draft_of(text, where)]
    if yaml_stream.is_document(text):
        return yaml_stream.drafts(text, where)
    script = parse(text, variables)
    folder = Path() if where in ("-", "--command") else Path(where).parent
    jobs = [(command, source) for command in script.commands for source in _SOURCES if source.is_submit(command)]
    if not jobs:
        accepted = (
            "a script with `xpk workload create`, `gcluster job submit`, `trl sft`, `accelerate launch … dpo.py` or "
            "`axolotl train`, or YAML of a PathwaysJob, JobSet, TrainJob or Axolotl"
        )
        raise InputError(f"{where}: no job in it; accepted: {accepted}")
    _refuse_unknown([command for command, _ in jobs], where)
    made = [
        source.draft_of(replace(command, environment={**script.exported, **command.environment}), folder)
        if source is trainers
        else source.draft_of(command)
        for command, source in jobs
    ]
    for (command, _), draft in zip(jobs, made, strict=True):
        if command.is_conditional:
            draft.note(f"line {command.line}", "it is in an if or a loop, which is not run: imported once")
    _note_rest([command for command in script.commands if all(command is not job for job, _ in jobs)], made[0])
    return made


def is_script(command: str) -> bool:
    """Return True if a command line is one that submits, and not the program itself."""
    return any(source.is_submit(one) for one in parse(command, {}).commands for source in _SOURCES)


def draft_of_program(command: str, assignments: Sequence[str]) -> Draft:
    """Return the job of a trainer's command; --set names the chips first, because its batch may depend on them."""
    draft = Draft("a command")
    for assignment in assignments:
        if assignment.removeprefix("spec.").startswith(("accelerator.", "pathways.")):
            assign(draft.job, assignment)
    put_program(draft, command)
    return draft


def _refuse_unknown(commands: Sequence[Command], where: str) -> None:
    """Refuse variables whose values only running the script could tell, all at once; secrets need no value."""
    names = dict.fromkeys(name for command in commands for word in command.words for name in unknown(word))
    lacking = [name for name in names if not is_secret(name)]
    if not lacking:
        return
    hints = " ".join(f"--var {name}=…" for name in lacking if name[0] not in "$`")
    shown = ", ".join(without_secrets(name)[0] for name in lacking)
    written = "write the value of $(…) into the script" if any(name[0] in "$`" for name in lacking) else ""
    raise InputError(f"{where}: no value for {shown}; accepted: scripts whose words are known without running them",
                     "; ".join(part for part in (hints, written) if part))  # fmt: skip


def _note_rest(commands: Sequence[Command], draft: Draft) -> None:
    for command in commands:
        if command.words[0] not in _IGNORED:
            shown = " ".join(without_secrets(" ".join(command.words[:3]))[0].split())
            draft.note(f"line {command.line}: {shown} …", "not imported: run it as before, if it is still needed")
