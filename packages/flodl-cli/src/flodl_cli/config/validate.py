"""A manifest against its schema: every problem, each at its place, with the nearest valid name.

The schema is plain JSON schema; this reads the few keywords that fdl.schema.json uses, on nodes that know their places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flodl_cli.config.interpolate import Located
from flodl_cli.config.layers import RUN_SECTIONS
from flodl_cli.config.node import Node
from flodl_cli.config.paths import dotted
from flodl_cli.config.source import Place
from flodl_cli.errors import Problem, nearest
from flodl_cli.schema import manifest_schema

__all__ = ["check_manifest", "check_values"]

_PYTHON = {"string": str, "boolean": bool, "object": dict, "array": list}
_NAMES = {
    "string": "a text",
    "boolean": "true or false",
    "object": "a map",
    "array": "a list",
    "integer": "a whole number",
    "number": "a number",
}

_NO_EFFECT = {
    "run": (*RUN_SECTIONS, "entry", "schema"),
    "path": (*RUN_SECTIONS, "entry", "schema", "append", "cwd", "docker", "dotenv", "grace"),
    "preset": ("append", "cwd"),
}


def check_manifest(root: Node) -> list[Located]:
    """What is wrong with a merged manifest."""
    return [*check_values(root), *_check_commands(root)]


def check_values(root: Node) -> list[Located]:
    """What is wrong with the values of one layer, whatever the others say."""
    return list(_check(root, manifest_schema(), ()))


def _check(node: Node, schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[Located]:
    if "$ref" in schema:
        schema = manifest_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    if node.deleted or (isinstance(node.data, str) and "${" in node.data and not node.quoted):
        return  # what a reference leads to is checked once it is resolved; why it could not be is a problem of its own
    if "enum" in schema and node.data not in schema["enum"]:
        yield path, Problem(f"{dotted(path)} is {_shown(node)}.{nearest(str(node.data), schema['enum'])}", node.place)
        return
    if "type" in schema and not _fits(node, schema["type"]):
        yield path, Problem(_type_message(node, schema, path), node.place)
        return
    if isinstance(node.data, dict):
        yield from _check_map(node, schema, path)
    elif isinstance(node.data, list):
        for i, item in enumerate(node.data):
            yield from _check(item, schema.get("items", {}), (*path, str(i)))
    elif isinstance(node.data, (int, float)) and not isinstance(node.data, bool):
        yield from _check_bounds(node, schema, path)


def _check_map(node: Node, schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[Located]:
    known, other = schema.get("properties", {}), schema.get("additionalProperties", {})
    for key, value in node.entries().items():
        if key in known:
            yield from _check(value, known[key], (*path, key))
        elif "patternProperties" in schema and key.startswith("x-"):
            continue
        elif other is False:
            where = f" in {_where(path)}" if path else ""
            yield (*path, key), Problem(f"unknown key '{key}'{where}.{nearest(key, known)}", value.key or value.place)
        else:
            yield from _check(value, other, (*path, key))


def _check_bounds(node: Node, schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[Located]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and not node.data >= low:
        yield path, Problem(f"{dotted(path)} is {_shown(node)}; it must be at least {low}", node.place)
    if high is not None and not node.data <= high:
        yield path, Problem(f"{dotted(path)} is {_shown(node)}; it must be at most {high}", node.place)


def _fits(node: Node, wanted: str | list[str]) -> bool:
    kinds = [wanted] if isinstance(wanted, str) else wanted
    value = node.data
    if isinstance(value, bool) or value is None:
        return isinstance(value, bool) and "boolean" in kinds
    if isinstance(value, int):
        return "integer" in kinds or "number" in kinds
    if isinstance(value, float):
        return "number" in kinds
    return any(isinstance(value, _PYTHON[k]) for k in kinds if k in _PYTHON)


def _type_message(node: Node, schema: dict[str, Any], path: tuple[str, ...]) -> str:
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    wanted = " or ".join(_NAMES[k] for k in kinds)
    if schema.get("x-version") and isinstance(node.data, (int, float)):
        raw = _as_written(node.place) or str(node.data)
        return f'{dotted(path)}: put the version in quotes, "{raw}": without them YAML reads the number {node.data}'
    return f"{dotted(path)} is {_shown(node)}; it must be {wanted}"


def _as_written(place: Place) -> str:
    lines = place.source.text.splitlines()
    if not 1 <= place.line <= len(lines):
        return ""
    return lines[place.line - 1][place.column - 1 : place.column - 1 + place.width]


def _shown(node: Node) -> str:
    if isinstance(node.data, dict):
        return "a map"
    if isinstance(node.data, list):
        return "a list"
    if node.data is None:
        return "null"
    return f"'{node.data}'" if isinstance(node.data, str) else str(node.data).lower()


def _where(path: tuple[str, ...]) -> str:
    return f"command '{path[1]}'" if len(path) == 2 and path[0] == "commands" else dotted(path)


def _check_commands(root: Node) -> Iterator[Located]:
    """Each command is of exactly one kind."""
    commands = root.get("commands")
    for name, node in (commands.entries() if commands else {}).items():
        keys = node.entries()
        at = node.key or node.place
        path = ("commands", name)
        if not name or name.startswith("-") or any(c.isspace() for c in name):
            yield path, Problem(f"'{name}' cannot be typed as a command: no spaces, no leading dash", at)
        if "run" in keys and "path" in keys:
            yield path, Problem(f"command '{name}' has run and path; it must be one of them", keys["path"].key or at)
        if "run" in keys and isinstance(keys["run"].data, str) and not keys["run"].data.strip():
            yield (*path, "run"), Problem(f"command '{name}': run is empty", keys["run"].place)
        kind = next((k for k in ("run", "path") if k in keys), "preset")
        for key in _NO_EFFECT[kind]:
            if key in keys:
                yield (
                    (*path, key),
                    Problem(f"'{key}' has no effect in a {kind} command ('{name}')", keys[key].key or at),
                )
