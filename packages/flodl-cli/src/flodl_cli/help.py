"""What `fdl`, `fdl COMMAND --help` and a folder's help print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flodl_cli.builtins import BUILTINS, ELSEWHERE
from flodl_cli.call import GLOBAL_OPTIONS
from flodl_cli.config.emit import block_text
from flodl_cli.config.layers import environments
from flodl_cli.tasks.model import Command, Manifest
from flodl_cli.terminal import Style, width

__all__ = ["command_help", "manifest_help", "table"]

_KINDS = (("run", "Tasks"), ("path", "Folders"), ("preset", "Presets"))


def table(rows: Iterable[tuple[str, str]], indent: int = 2) -> Iterator[str]:
    """Two columns, the second one wrapped to the terminal."""
    rows = list(rows)
    left = min(max((len(name) for name, _ in rows), default=0), 30)
    for name, text in rows:
        head = " " * indent + f"{name:<{left}}  "
        lines = list(_wrapped(text, max(20, width() - indent - left - 2)))
        if len(name) > left:
            yield (" " * indent + name).rstrip()
            head = " " * len(head[: indent + left + 2])
        yield (head + lines[0]).rstrip()
        for line in lines[1:]:
            yield " " * (indent + left + 2) + line


def _wrapped(text: str, columns: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > columns:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def manifest_help(manifest: Manifest | None, style: Style, *, builtins: bool) -> Iterator[str]:
    """The commands of a manifest, grouped."""
    title = manifest.title if manifest else "fdl"
    if manifest and (description := manifest.text("description")):
        yield description
        yield ""
    yield f"{style.bold('Usage:')} {title} {'[OPTIONS] COMMAND [ARGUMENTS]' if builtins else 'COMMAND'}"
    if manifest:
        commands = list(manifest.commands().values())
        for kind, heading in _KINDS:
            rows = [(c.name, _described(c) + (_hiding(c.name) if builtins else "")) for c in commands if c.kind == kind]
            if rows:
                yield from ("", style.bold(heading), *table(rows))
    if builtins:
        taken = set(manifest.commands()) if manifest else set()
        own = [(name, text) for name, (_, text) in BUILTINS.items() if name not in taken]
        yield from ("", style.bold("Built in"), *table(own))
        names = environments(manifest.root) if manifest else []
        if names:
            yield from ("", f"{style.bold('Environments:')} {', '.join(names)}")
        rows = [(", ".join(flags) + (f" {value}" if value else ""), text) for flags, value, text in GLOBAL_OPTIONS]
        yield from ("", style.bold("Options"), *table(rows))


def _described(command: Command) -> str:
    if command.problems:
        return f"({command.problems[0].message})"
    if command.description:
        return command.description
    if command.kind == "run":
        return " ".join(str(command.node.entries()["run"].data).split())
    return ""


def _hiding(name: str) -> str:
    """A project's command with the name of a built-in is told as such: one of the two cannot be reached as usual."""
    if name in ELSEWHERE:
        return " (cannot be called: fdl's own goes first)"
    return f" (hides fdl's own: fdl --built-in {name})" if name in BUILTINS else ""


def command_help(manifest: Manifest, command: Command, style: Style) -> Iterator[str]:
    """A run command: what it is and what it runs."""
    title = " ".join((*manifest.words, command.name))
    if command.description:
        yield from (command.description, "")
    yield f"{style.bold('Usage:')} fdl {title} [-- ARGUMENTS]"
    yield ""
    for key, node in command.node.entries().items():
        if key != "description":
            yield f"  {key}: {block_text(node.plain())}  {style.dim('# ' + node.place.text)}"
