"""Drafts as YAML: notes as comments before the job, and hints beside the fields that are left to fill in."""

from ptapi.text import kubectl_yaml
from ptctl.importers.draft import FILL_IN, Draft


def document(draft: Draft) -> str:
    """Return one manifest with its comments."""
    lines = [f"# Imported from {draft.source}."]
    if draft.changes:
        lines += [
            "# No counterpart, and so something else is trained:",
            *(f"#   {_line(one)}" for one in draft.changes),
        ]
    if draft.notes:
        lines += ["# Not imported, and what to do instead:", *(f"#   {_line(note)}" for note in draft.notes)]
    missing = draft.missing()
    for line in kubectl_yaml.write(draft.filled(examples=False)).rstrip("\n").splitlines():
        key, mark, path = line.partition(f": {FILL_IN} ")
        lines.append(f"{key}: {FILL_IN} # {missing[path][1]}" if mark else line)
    return "\n".join(lines)


def _line(note: str) -> str:
    """Return a note as one line that no YAML reader takes for anything but a comment."""
    return " ".join("".join(char if char.isprintable() else " " for char in note).split())
