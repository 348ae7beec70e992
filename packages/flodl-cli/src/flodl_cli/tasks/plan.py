"""From the words of a call to the processes it starts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from flodl_cli.errors import CliError, Problem, nearest
from flodl_cli.project import MANIFEST
from flodl_cli.tasks.model import Command, Manifest, Step

__all__ = ["plan"]

Load = Callable[[Path, Path, tuple[str, ...]], Manifest]


def plan(manifest: Manifest, words: Sequence[str], load: Load, env: dict[str, str]) -> list[Step]:
    """The steps of a call such as ["bench", "graph", "--rounds", "3"]."""
    commands = manifest.commands()
    if words and words[0] in commands:
        command = commands[words[0]]
        if command.kind == "run":
            return [run_step(manifest, command, words[1:], env)]
        if command.kind == "path":
            assert command.folder is not None
            if not (command.folder / MANIFEST).exists():
                raise CliError(
                    Problem(f"'{command.name}': there is no {command.folder / MANIFEST}", command.node.place)
                )
            inner = load(command.folder, manifest.root, (*manifest.words, command.name))
            return plan(inner, words[1:], load, {**env, **variables(command.node.get("env"))})
    if manifest.words and manifest.text("entry"):
        return [entry_step(manifest, words, env)]
    if words:
        where = "fdl " + " ".join(manifest.words) if manifest.words else "fdl"
        raise CliError(f"{where} has no command '{words[0]}'.{nearest(words[0], commands)}")
    raise CliError(f"fdl {' '.join(manifest.words)} needs a command.{nearest('', commands)}")


def run_step(manifest: Manifest, command: Command, words: Sequence[str], env: dict[str, str]) -> Step:
    """A shell line; what stands after `--` is handed to it as words, never as text."""
    title = " ".join((*manifest.words, command.name))
    if words and words[0] != "--":
        raise CliError(f"'{words[0]}': {command.name} takes arguments after `--`: fdl {title} -- {shlex.join(words)}")
    node = command.node.get("run")
    assert node is not None
    line = str(node.data).rstrip()
    argv = ("sh", "-c", f'{line} "$@"', "sh", *words[1:]) if words[1:] else ("sh", "-c", line)
    return Step(
        title,
        argv,
        manifest.folder,
        {**env, **variables(manifest.node.get("env")), **variables(command.node.get("env"))},
    )


def entry_step(manifest: Manifest, words: Sequence[str], env: dict[str, str]) -> Step:
    """The entry of a manifest: a program and its first arguments; what was typed follows."""
    node = manifest.node.get("entry")
    assert node is not None
    try:
        argv = shlex.split(str(node.data))
    except ValueError as error:
        raise CliError(Problem(f"entry: {error}", node.place)) from None
    return Step(
        " ".join(manifest.words), (*argv, *words), manifest.folder, {**env, **variables(manifest.node.get("env"))}
    )


def variables(node: object) -> dict[str, str]:
    """`env:` as strings."""
    from flodl_cli.config.node import Node

    if not isinstance(node, Node):
        return {}
    return {k: shown(v.data) for k, v in node.entries().items()}


def shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
