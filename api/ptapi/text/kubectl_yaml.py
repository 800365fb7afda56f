"""YAML as kubectl parses it, without its traps.

PyYAML and kubectl disagree: `1e-6` is text to one and a number to the other, `1:30` and dates the other way round, and
duplicate keys silently overwrite each other. Here a file means what kubectl makes of it; duplicate keys are refused,
and so are unquoted `on`, `off`, `yes`, `no`, `y`, `n`, which YAML 1.1 turns into booleans, and `010`, which is 8 to it.
"""

import re
from typing import Any

import yaml

from ptapi.errors import Finding, SpecError
from ptapi.text.messages import shown

_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|nan)", re.I
)
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o[0-7_]+|0|[1-9][0-9_]*)")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_TRAP = re.compile(r"on|off|yes|no|y|n", re.I)
_TRAP_TAG = "tag:posttrain.dev,2026:trap"
_OCTAL = re.compile(r"[-+]?0_*[0-9][0-9_]*")
_OCTAL_TAG = "tag:posttrain.dev,2026:octal"
_MODES = ("mode", "defaultMode")
"""Fields of volumes whose numbers everybody writes in octal: 0644."""
_MOST_VALUES = 100_000
"""Values of a document with its aliases expanded; a job that the API server stores has fewer."""
_MOST_LEVELS = 100
_MOST_DIGITS = 100
_NUMBER = f"a number of at most {_MOST_DIGITS} digits"
_INT_TAG, _FLOAT_TAG, _BOOL_TAG = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool"))
_REPLACED = {_INT_TAG, _FLOAT_TAG, _BOOL_TAG, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"}


class _Loader(yaml.SafeLoader):
    """SafeLoader with kubectl's scalars, and with limits: nesting, and aliases of aliases, which double each time."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._level = 0
        self._values: dict[yaml.Node, int] = {}  # of the nodes that are complete, aliases expanded

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        self._level += 1
        if self._level > _MOST_LEVELS:
            raise _refusal(event, f"is nested deeper than {_MOST_LEVELS} levels")
        if (tag := getattr(event, "tag", None)) is not None:
            raise _refusal(event, "is a tag, which a job must not have", tag.replace("tag:yaml.org,2002:", "!!"))
        node = super().compose_node(parent, index)
        self._level -= 1
        if node is not None and not isinstance(event, yaml.AliasEvent):
            self._values[node] = self._count(node)
        elif node not in self._values:
            raise _refusal(event, "is an alias of what contains it")
        if node is not None and self._values[node] > _MOST_VALUES:
            raise _refusal(event, f"has more than {_MOST_VALUES:,} values, counting each use of an alias")
        return node

    def _count(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.MappingNode):
            return 1 + sum(self._values[key] + self._values[value] for key, value in node.value)
        return 1 + (sum(map(self._values.__getitem__, node.value)) if isinstance(node, yaml.SequenceNode) else 0)


def _refusal(event: yaml.Event, accepted: str, value: str = "") -> SpecError:
    assert event.start_mark is not None  # the parser gives every event one
    return SpecError([Finding(f"line {event.start_mark.line + 1}", value and shown(value), accepted)])


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes whatever a YAML reader could take for something other than text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _resolvers(base: dict[str, list[tuple[str, Any]]]) -> dict[str, list[tuple[str, Any]]]:
    kept = {first: [pair for pair in pairs if pair[0] not in _REPLACED] for first, pairs in base.items()}
    return {first: pairs for first, pairs in kept.items() if pairs}


_Loader.yaml_implicit_resolvers = _resolvers(yaml.SafeLoader.yaml_implicit_resolvers)
for _tag, _pattern, _first in (
    (_BOOL_TAG, _BOOL, "tTfF"),
    (_TRAP_TAG, _TRAP, "oOyYnN"),
    (_OCTAL_TAG, _OCTAL, "-+0"),
    (_INT_TAG, _INT, "-+0123456789"),
    (_FLOAT_TAG, _FLOAT, "-+.0123456789"),
):
    _full = re.compile(f"^(?:{_pattern.pattern})$", _pattern.flags)
    _Loader.add_implicit_resolver(_tag, _full, list(_first))
    # The dumper keeps PyYAML's own resolvers, so that text which PyYAML would misread is quoted too.
    _Dumper.add_implicit_resolver(_tag, _full, list(_first))


def _refuse_trap(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    truth = node.value.lower() in ("on", "yes", "y")
    raise SpecError(
        [
            Finding(
                f"line {node.start_mark.line + 1}",
                node.value,
                f"means {str(truth).lower()} to some YAML readers and text to others",
                f'write {str(truth).lower()} for the boolean, "{node.value}" for the text',
            )
        ]
    )


def _refuse_octal(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    digits = node.value.replace("_", "").lstrip("-+0") or "0"
    octal = "" if set(digits) & {"8", "9"} else f", 0o{digits} for the octal one"
    raise SpecError(
        [
            Finding(
                f"line {node.start_mark.line + 1}",
                node.value,
                "is an octal number to some YAML readers and a decimal one to others",
                f'write {digits} for the decimal number{octal}, "{node.value}" for the text',
            )
        ]
    )


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > _MOST_DIGITS:
        raise SpecError([Finding(f"line {node.start_mark.line + 1}", shown(node.value), _NUMBER)])
    return loader.construct_yaml_int(node)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    key_lines: dict[str, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in key_lines:
            raise SpecError(
                [Finding(f"line {line}", key, f"is written twice; accepted: once (also in line {key_lines[key]})")]
            )
        key_lines[key] = line
    loader.flatten_mapping(node)
    for key, value in node.value:
        if key.value in _MODES and value.tag == _OCTAL_TAG:
            value.tag = _INT_TAG
    # JSON has only text keys: `1: x` has the key "1", as in kubectl.
    return {_key(loader, key): loader.construct_object(value, deep=True) for key, value in node.value}


def _key(loader: _Loader, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        hint = 'fill in the template first, or quote text that begins with a brace: "{…}"'
        raise SpecError(
            [Finding(f"line {node.start_mark.line + 1}", "", "a key must be text, not a list or a map", hint)]
        )
    if node.tag in (_TRAP_TAG, _OCTAL_TAG):
        loader.construct_object(node)
    return str(node.value)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Represent text of several lines as a readable block (a ConfigMap's file)."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
_Loader.add_constructor(_TRAP_TAG, _refuse_trap)
_Loader.add_constructor(_OCTAL_TAG, _refuse_octal)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor(_INT_TAG, _whole_number)


def read(text: str) -> Any:
    """Parse the one document in `text`. Raises SpecError with the line."""
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        raise SpecError([_syntax(text, error)]) from None
    except yaml.YAMLError as error:
        raise SpecError([Finding("file", "", f"is not YAML text: {' '.join(str(error).split())}")]) from None
    if len(documents) != 1:
        count = "no document" if not documents else f"{len(documents)} documents"
        raise SpecError([Finding("file", count, "one YAML document with one job")])
    return documents[0]


def write(document: Any) -> str:
    """Return the document as YAML, keys in the given order; every YAML reader parses it back unchanged."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _syntax(text: str, error: yaml.MarkedYAMLError) -> Finding:
    # A key without its colon is noticed where the text no longer fits: the mistake is where the key stands.
    is_key = error.context == "while scanning a simple key"
    mark = error.context_mark if is_key else error.problem_mark or error.context_mark
    if mark is None:
        return Finding("file", "", f"is not YAML: {error.problem}")
    lines = text.splitlines()
    line = lines[mark.line].strip() if mark.line < len(lines) else "(end of file)"
    hint = "indent with spaces, not tabs" if "\\t" in (error.problem or "") else ""
    hint = 'a key is followed by a colon and a space: "key: value"' if is_key else hint
    return Finding(
        f"line {mark.line + 1}, column {mark.column + 1}", shown(line), f"is not YAML: {error.problem}", hint
    )
