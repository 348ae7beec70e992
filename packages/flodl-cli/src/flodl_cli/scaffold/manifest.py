"""Adding a command to the text of fdl.yml: every comment, blank line and habit of the file stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flodl_cli.errors import CliError
from flodl_cli.project import MANIFEST

__all__ = ["with_command"]


def with_command(text: str, name: str, fields: Mapping[str, str]) -> str:
    """The text of a manifest with one command more, behind the others. `fields` are plain strings.

    Raises CliError: `commands` is written in a way that cannot be extended line by line; says what to write instead.
    """
    import yaml

    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    key, commands = _commands(root)
    block = f"{name}:", *(f"  {k}: {v}" for k, v in fields.items())
    if key is None:
        added = ["", "commands:", *(f"  {line}" for line in block)]
        at = len(lines)
    elif _is_null(commands):
        added, at = [f"  {line}" for line in block], key.start_mark.line + 1
        if not re.fullmatch(r"commands\s*:\s*(#.*)?", lines[at - 1]):
            raise _by_hand(name, fields)
    elif isinstance(commands, yaml.MappingNode) and not commands.flow_style:
        first = commands.value[0][0].start_mark
        indent = " " * first.column
        if first.line == key.start_mark.line:
            raise _by_hand(name, fields)
        at = _end_of_block(lines, commands.value[-1][0].start_mark.line, first.column)
        added = [indent + line for line in block]
        if _spaced(lines, commands, first.line):
            added = ["", *added]
    else:
        raise _by_hand(name, fields)
    result = newline.join([*lines[:at], *added, *lines[at:]]) + newline
    if _plain(yaml.compose(result, Loader=yaml.SafeLoader)) != _expected(root, name, fields):
        raise _by_hand(name, fields)
    return ("\ufeff" if text.startswith("\ufeff") and not result.startswith("\ufeff") else "") + result


def _commands(root: Any) -> tuple[Any, Any]:
    for key, value in root.value if root is not None else ():
        if key.value == "commands":
            return key, value
    return None, None


def _is_null(node: Any) -> bool:
    return str(node.tag) == "tag:yaml.org,2002:null" and node.value == ""


def _end_of_block(lines: list[str], at: int, column: int) -> int:
    """The line behind the last command: behind what is indented deeper than its name, comments of it as well."""
    end = at + 1
    for number in range(at + 1, len(lines)):
        stripped = lines[number].strip()
        if not stripped:
            continue
        if len(lines[number]) - len(lines[number].lstrip()) <= column:
            break
        end = number + 1
    return end


def _spaced(lines: list[str], commands: Any, first: int) -> bool:
    """Whether blank lines stand between the commands."""
    starts = [key.start_mark.line for key, _ in commands.value]
    return len(starts) > 1 and any(not line.strip() for line in lines[first : starts[1]])


def _plain(node: Any) -> Any:
    """A tree for comparing: tags, keys and scalars."""
    if node is None:
        return None
    if isinstance(node.value, str):
        return node.tag, node.value
    if node.id == "mapping":
        return node.tag, {k.value: _plain(v) for k, v in node.value}
    return node.tag, [_plain(v) for v in node.value]


def _expected(root: Any, name: str, fields: Mapping[str, str]) -> Any:
    """What was there, and the new command."""
    text, mapping = "tag:yaml.org,2002:str", "tag:yaml.org,2002:map"
    tag, before = _plain(root) if root is not None else (mapping, {})
    commands = before.get("commands")
    command_tag, inner = commands if commands and isinstance(commands[1], dict) else (mapping, {})
    added = (mapping, {k: (text, v) for k, v in fields.items()})
    return tag, {**before, "commands": (command_tag, {**inner, name: added})}


def _by_hand(name: str, fields: Mapping[str, str]) -> CliError:
    written = ", ".join(f"{k}: {v}" for k, v in fields.items())
    return CliError(
        f"{MANIFEST}: `commands` is written in a way that is not extended by machine; add this to it: {name}: {{ {written} }}"
    )
