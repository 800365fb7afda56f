"""JSON merge patch (RFC 7386), JSON patch (RFC 6902) and strategic merge patch, as pure functions.

The strategic one uses the merge keys in the built-in kinds' schemas; like a real server, this one refuses it for custom
resources. Left out of it: $retainKeys, which is accepted and dropped.
"""

import copy
from typing import Any

from ptlocal.apiserver.errors import StatusError, bad_request

Schema = dict[str, Any]


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Apply a JSON patch. Raises a 4xx StatusError."""
    if not isinstance(operations, list):
        raise bad_request("json patch must be a list of operations")
    result = copy.deepcopy(target)
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise bad_request(f"json patch: each operation needs op and path, got {operation!r}")
        try:
            result = _operate(result, operation)
        except (LookupError, ValueError, TypeError) as error:
            raise _rejected(operation, error) from None
    return result


def _rejected(operation: dict[str, Any], error: Exception) -> StatusError:
    what = f"{operation.get('op')} operation does not apply: doc is missing path: {operation['path']}: {error}"
    if operation.get("op") == "test":
        what = f"testing value {operation['path']} failed"
    return StatusError(422, "Invalid", f"the server rejected our request due to an error in our request: {what}")


def _operate(doc: Any, operation: dict[str, Any]) -> Any:
    op, path = operation.get("op"), _pointer(operation["path"])
    if op in ("move", "copy"):
        source = _pointer(operation["from"])
        value = copy.deepcopy(_at(doc, source))
        return _add(_remove(doc, source) if op == "move" else doc, path, value)
    if op == "remove":
        return _remove(doc, path)
    if op not in ("add", "replace", "test"):
        raise bad_request(f"json patch: unknown operation {op!r}; accepted: add, remove, replace, move, copy, test")
    if "value" not in operation and op != "test":
        raise bad_request(f"json patch: operation {op} needs a value")
    value = operation.get("value")
    if op == "test":
        current = _at(doc, path, missing=None)
        if current != value or isinstance(current, bool) != isinstance(value, bool):
            raise ValueError("test failed")
        return doc
    if op == "replace":
        _at(doc, path)
        return _add(_remove(doc, path), path, value) if path else copy.deepcopy(value)
    return _add(doc, path, value)


_RAISE = object()


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    if not text.startswith("/"):
        raise ValueError(f"a path starts with '/': {text!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _at(doc: Any, path: list[str], missing: Any = _RAISE) -> Any:
    for step in path:
        try:
            doc = doc[_index(doc, step)]
        except (LookupError, TypeError):
            if missing is _RAISE:
                raise
            return missing
    return doc


def _index(container: Any, step: str, adding: bool = False) -> Any:
    if not isinstance(container, list):
        return step
    if step == "-" and adding:
        return len(container)
    number = int(step)
    if not 0 <= number < len(container) + adding:
        raise IndexError(f"index {number} is out of range")
    return number


def _add(doc: Any, path: list[str], value: Any) -> Any:
    if not path:
        return copy.deepcopy(value)
    parent = _at(doc, path[:-1])
    if isinstance(parent, list):
        parent.insert(_index(parent, path[-1], adding=True), copy.deepcopy(value))
    elif isinstance(parent, dict):
        parent[path[-1]] = copy.deepcopy(value)
    else:
        raise TypeError("the parent is neither an object nor a list")
    return doc


def _remove(doc: Any, path: list[str]) -> Any:
    if not path:
        raise ValueError("cannot remove the whole document")
    parent = _at(doc, path[:-1])
    del parent[_index(parent, path[-1])]
    return doc


def strategic(target: Any, patch: Any, schema: Schema) -> Any:
    """Apply a strategic merge patch: lists with a merge key are merged by it, `$patch` directives are followed."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    base = {} if directive == "replace" or not isinstance(target, dict) else dict(target)
    properties: dict[str, Schema] = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            base[name] = [item for item in base.get(name) or [] if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            base.pop(key, None)
        else:
            child = properties.get(key) or (additional if isinstance(additional, dict) else {})
            base[key] = _strategic_value(base.get(key), value, child, patch.get(f"$setElementOrder/{key}"))
    return base


def _strategic_value(target: Any, patch: Any, schema: Schema, order: Any) -> Any:
    if isinstance(patch, dict):
        return strategic(target, patch, schema)
    if not isinstance(patch, list) or schema.get("x-kubernetes-patch-strategy") != "merge":
        return copy.deepcopy(patch)
    key = schema.get("x-kubernetes-patch-merge-key")
    live = list(target) if isinstance(target, list) else []
    if key is None:
        return live + [item for item in patch if item not in live]
    return _merge_list(live, patch, key, schema.get("items") or {}, order)


def _merge_list(live: list[Any], patch: list[Any], key: str, schema: Schema, order: Any) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if not (isinstance(item, dict) and "$patch" in item)]
    items = {_key_of(item, key): item for item in live}
    before = list(items)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        if item.get("$patch") == "delete":
            items.pop(item[key], None)
        else:
            items[item[key]] = strategic(items.get(item[key]), item, schema)
    named = order if isinstance(order, list) else patch
    return [items[name] for name in _ordered([_key_of(item, key) for item in named], before) if name in items]


def _key_of(item: Any, key: str) -> Any:
    return item.get(key) if isinstance(item, dict) else None


def _ordered(named: list[Any], live: list[Any]) -> list[Any]:
    """Order a merged list: items of the patch in its order, other live items relative to those as before."""
    left, right = list(dict.fromkeys(named)), [name for name in live if name not in named]
    result = []
    while left and right:
        comes_later = left[0] in live and live.index(left[0]) > live.index(right[0])
        result.append((right if comes_later else left).pop(0))
    return result + left + right
