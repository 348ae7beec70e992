"""`fdl COMMAND --help`, wherever in the folders the command is: options, choices, defaults and where they are set, presets."""

from __future__ import annotations

import os
from collections.abc import Iterator

from flodl_cli.arguments.ask import Entry, Known, ask
from flodl_cli.arguments.model import Argument, Schema
from flodl_cli.builtins import BUILTINS
from flodl_cli.call import Call
from flodl_cli.config.emit import flow_text
from flodl_cli.config.node import Node
from flodl_cli.errors import CliError, nearest
from flodl_cli.help import command_help, manifest_help, table
from flodl_cli.tasks.entry import entry_of, preset_settings
from flodl_cli.tasks.model import Command, Manifest
from flodl_cli.terminal import Style

__all__ = ["print_help"]


def print_help(call: Call, manifest: Manifest, env: dict[str, str]) -> int:
    """Walks the words to the command that they name and prints its help."""
    style = Style(ansi=call.options.ansi)
    command: Command | None = None
    for word in call.words:
        if word.startswith("-"):
            break
        command = manifest.commands().get(word)
        if command is None:
            if not manifest.text("entry") or not manifest.words:
                names = list(manifest.commands()) + ([] if manifest.words else list(BUILTINS))
                raise CliError(f"{manifest.title} has no command '{word}'.{nearest(word, names)}")
            break
        if command.kind != "path":
            break
        manifest, command = call.loader.enter(manifest, command), None
    problems = command.problems if command else tuple(p for _, p in manifest.problems)
    print("\n".join(_lines(manifest, command, env, style)), flush=True)
    if problems:
        raise CliError(*problems)
    return 0


def _lines(manifest: Manifest, command: Command | None, env: dict[str, str], style: Style) -> Iterator[str]:
    if command is not None and command.kind == "run":
        yield from command_help(manifest, command, style)
        return
    entry = entry_of(manifest, command, env)
    if entry is None:
        yield from manifest_help(manifest, style, builtins=False)
        return
    yield from _entry_lines(manifest, command, entry, ask(entry), style)


def _entry_lines(
    manifest: Manifest, command: Command | None, entry: Entry, known: Known, style: Style
) -> Iterator[str]:
    schema = known.schema or Schema()
    title = f"{manifest.title} {command.name}" if command else manifest.title
    description = command.description if command else manifest.text("description") or schema.description
    if description:
        yield from (description, "")
    positionals = "".join(f" {a.name.upper()}" for a in schema.positionals) + (" COMMAND" if schema.commands else "")
    presets = "" if command or not manifest.commands() else " [COMMAND]"
    yield f"{style.bold('Usage:')} {title}{presets} [OPTIONS]{positionals}"
    if command is None and manifest.commands():
        yield from ("", style.bold("Commands"))
        yield from table((c.name, _preset_text(c)) for c in manifest.commands().values())
    if known.schema is None:
        yield from ("", f"The options of `{' '.join(entry.words)}` are not known: {known.reason}.")
        return
    set_here = _set_values(preset_settings(manifest, command))
    script = os.path.basename(entry.words[known.own_words - 1])
    rows = [_row(o, set_here, script) for o in schema.options if not o.hidden]
    if schema.positionals:
        yield from ("", style.bold("Arguments"), *table(_row(a, {}, script) for a in schema.positionals))
    if schema.commands:
        yield from (
            "",
            style.bold("Commands of the entry"),
            *table((n, s.description) for n, s in schema.commands.items()),
        )
    if rows:
        yield from ("", style.bold("Options"), *table(rows))


def _preset_text(command: Command) -> str:
    if command.problems:
        return f"({command.problems[0].message})"
    if command.description or command.kind != "preset":
        return command.description
    settings = {k: n.plain() for k, n in command.node.entries().items() if n.is_map}
    return flow_text(settings) if settings else ""


def _set_values(settings: Node) -> dict[str, Node]:
    """What the manifest and the preset set, by the name of the option."""
    found: dict[str, Node] = {}
    for section in ("training", "ddp", "output", "options"):
        node = settings.get(section)
        found.update({name.replace("-", "_"): value for name, value in (node.entries() if node else {}).items()})
    return found


def _row(argument: Argument, set_here: dict[str, Node], script: str) -> tuple[str, str]:
    value = "" if not argument.takes_value else f" {argument.kind.upper()}"
    left = (", ".join(argument.flags) + value) if argument.flags else argument.name.upper()
    parts = [argument.help]
    if argument.choices is not None:
        parts.append("one of: " + ", ".join(str(c) for c in argument.choices))
    node = set_here.get(argument.name)
    if node is not None:
        parts.append(f"[{flow_text(node.plain())}, {node.place.text}]")
    elif argument.required:
        parts.append("[required]")
    elif argument.default is not None and argument.default != []:
        parts.append(f"[{flow_text(argument.default)}, {script}]")
    return left, " ".join(p for p in parts if p)
