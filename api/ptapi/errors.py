"""What is said when an input is wrong: every finding names field, value and what is accepted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing wrong with an input.

    field: dotted path as a user writes it (`spec.accelerator.type`); value: what was seen, already short
    enough to print; accepted: what would have been right; hint: the next thing to try, or empty.
    """

    field: str
    value: str
    accepted: str
    hint: str = ""

    def __str__(self) -> str:
        seen = f" {self.value}:" if self.value else ""
        tail = f"; hint: {self.hint}" if self.hint else ""
        return f"{self.field}:{seen} {self.accepted}{tail}"


class SpecError(ValueError):
    """A job that cannot be accepted; `findings` holds every reason, not only the first."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        super().__init__("\n".join(str(finding) for finding in findings))
