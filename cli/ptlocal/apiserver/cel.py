"""CEL rules (x-kubernetes-validations)."""

from __future__ import annotations

from typing import Any

from ptlocal.apiserver.status import FieldError


def rule_errors(value: Any, old: Any, has_old: bool, schema: dict[str, Any], path: str) -> list[FieldError]:
    return []
