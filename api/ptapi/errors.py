"""Errors about invalid input: every finding names the field, the value and what is accepted."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One error in an input.

    field: dotted path as the user writes it (`spec.accelerator.type`); value: the actual value, already short enough to
    print; accepted: what would be valid; hint: what to do, or empty.
    """

    field: str
    value: str
    accepted: str
    hint: str = ""

    def __str__(self) -> str:
        value = f" {self.value}:" if self.value else ""
        tail = f"; hint: {self.hint}" if self.hint else ""
        return f"{self.field}:{value} {self.accepted}{tail}"


class SpecError(ValueError):
    """A job that cannot be accepted; `findings` holds every error, not only the first."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        super().__init__("\n".join(str(finding) for finding in findings))
