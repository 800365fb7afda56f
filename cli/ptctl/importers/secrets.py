"""Secrets in command lines: they become references to Kubernetes Secrets, and their values go nowhere.

A secret is known by its variable's or option's name (HF_TOKEN, wandb_api_key) or by the form of its value (hf_…).
"""

import re

_NAME = re.compile(r"(?i)(^|[_-])(token|secret|password|passwd|api[_-]?key|access[_-]?key|private[_-]?key)$")
_VALUE = re.compile(r"\b(hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|AIza[\w-]{20,})")
_LOGIN = re.compile(r"(wandb\s+login\s+(?:--relogin\s+)?)([0-9a-f]{16,})")
_OPTION = re.compile(r"(?P<name>[A-Za-z_][\w-]*)(?P<sign>=|\s+)(?P<quote>['\"]?)(?P<value>[^\s'\"$;&|]+)(?P=quote)")
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)\??\}?")
_OF_PREFIX = {"hf_": "HF_TOKEN", "gh": "GITHUB_TOKEN", "sk-": "API_KEY", "AIza": "GOOGLE_API_KEY"}
_HUB = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_ACCESS_TOKEN", "HUB_TOKEN")


def is_secret(name: str) -> bool:
    """Return True if a variable or option of this name holds a secret."""
    return bool(_NAME.search(name))


def variable_of(name: str) -> str:
    """Return the environment variable for a secret option: `hf_access_token` is HF_TOKEN."""
    upper = name.strip("-").replace("-", "_").replace(".", "_").upper()
    return "HF_TOKEN" if upper in _HUB else upper


def secret_name(variable: str) -> str:
    """Return the name of the Secret for a variable."""
    return "hf" if variable_of(variable) == "HF_TOKEN" else variable.lower().replace("_", "-").strip("-")


def without_secrets(text: str) -> tuple[str, list[str]]:
    """Return a command with `${NAME}` for every secret in it, and these variables' names."""
    names: list[str] = []

    def reference(variable: str) -> str:
        names.append(variable)
        return f"${{{variable}}}"

    def option(match: re.Match[str]) -> str:
        name, sign = match["name"], match["sign"]
        before = text[: match.start()]
        if not is_secret(name) or (sign != "=" and not before.endswith("-")) or match["value"].startswith("-"):
            return match[0]
        quote = '"' if match["quote"] else ""
        return f"{name}{sign}{quote}{reference(variable_of(name))}{quote}"

    def value(match: re.Match[str]) -> str:
        return reference(next(name for prefix, name in _OF_PREFIX.items() if match[0].startswith(prefix)))

    text = _OPTION.sub(option, text)
    text = _LOGIN.sub(lambda match: match[1] + reference("WANDB_API_KEY"), text)
    text = _VALUE.sub(value, text)
    names += [name for name in _REFERENCE.findall(text) if is_secret(name)]
    return text, list(dict.fromkeys(names))
