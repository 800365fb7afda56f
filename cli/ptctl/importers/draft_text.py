"""Drafts as YAML: notes as comments before the job, and hints beside the fields that are left to fill in."""

from ptapi.text import kubectl_yaml
from ptctl.importers.draft import FILL_IN, Draft


def document(draft: Draft) -> str:
    """Return one manifest with its comments."""
    lines = [f"# Imported from {draft.source}."]
    if draft.notes:
        lines += ["# Not imported, and what to do instead:", *(f"#   {_line(note)}" for note in draft.notes)]
    hints = iter(hint for _, (_, hint) in _by_position(draft))
    for line in kubectl_yaml.write(draft.filled(examples=False)).rstrip("\n").splitlines():
        lines.append(f"{line} # {next(hints)}" if line.endswith(f": {FILL_IN}") else line)
    return "\n".join(lines)


def _by_position(draft: Draft) -> list[tuple[str, tuple[str, str]]]:
    order = list(draft.filled(examples=False)["spec"])
    return sorted(
        draft.missing().items(), key=lambda item: order.index(item[0].split(".")[1]) if item[0][:1] == "s" else -1
    )


def _line(note: str) -> str:
    """Return a note as one line that no YAML reader takes for anything but a comment."""
    return " ".join("".join(char if char.isprintable() else " " for char in note).split())
