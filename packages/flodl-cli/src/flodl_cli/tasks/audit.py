"""What would go wrong in the commands of a manifest, found without running them: needs, entries, the options of presets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from flodl_cli.arguments.ask import ask
from flodl_cli.builtins import BUILTINS, ELSEWHERE
from flodl_cli.errors import CliError, Problem, nearest
from flodl_cli.tasks.entry import entry_of, no_entry, preset_settings, setting_problems
from flodl_cli.tasks.model import Command, Manifest
from flodl_cli.tasks.words import split_words, texts

__all__ = ["audit", "hidden_builtins"]

Enter = Callable[[Manifest, Command], Manifest]


def audit(manifest: Manifest, enter: Enter, env: Mapping[str, str]) -> Iterator[Problem]:
    """The problems of a manifest's commands; those of the folders below are their own."""
    followed: set[tuple[str, ...]] = set()  # each call once: a cycle is told once, and many paths are no many walks
    if manifest.words and manifest.text("entry"):
        yield from _of_entry(manifest, None, env)
    for command in manifest.commands().values():
        if command.problems:
            continue
        yield from _needs(manifest, [command.name], enter, (), followed)
        if command.kind == "preset":
            yield from _of_entry(manifest, command, env)


def hidden_builtins(manifest: Manifest) -> Iterator[Problem]:
    """Commands of the project that have the name of one of fdl's own."""
    for command in manifest.commands().values() if not manifest.words else ():
        if command.name in ELSEWHERE:
            message = f"command '{command.name}' cannot be called: fdl's own of that name always goes first"
            yield Problem(message, command.node.key)
        elif command.name in BUILTINS:
            message = f"command '{command.name}' hides fdl's own, which is now `fdl --built-in {command.name}`"
            yield Problem(message, command.node.key)


def _of_entry(manifest: Manifest, command: Command | None, env: Mapping[str, str]) -> Iterator[Problem]:
    try:
        entry = entry_of(manifest, command, env)
        if entry is None:
            assert command is not None
            yield no_entry(command)
            return
        schema = ask(entry).schema
    except CliError as error:
        yield from error.problems
        return
    if schema is not None:
        yield from setting_problems(schema, preset_settings(manifest, command))


def _needs(
    manifest: Manifest, words: Sequence[str], enter: Enter, above: tuple[str, ...], followed: set[tuple[str, ...]]
) -> Iterator[Problem]:
    """Follows a call to all that it needs."""
    key = (*manifest.words, "/", *words)
    if key in followed:
        return
    command = manifest.commands().get(words[0]) if words else None
    if command is None or command.problems:
        return
    title = " ".join((*manifest.words, command.name))
    for node in texts(command.node.get("needs")):
        try:
            needed = split_words(node, "needs")
        except CliError as error:
            yield from error.problems
            continue
        if needed and needed[0] not in manifest.commands():
            near = nearest(needed[0], manifest.commands())
            yield Problem(f"needs: no command '{needed[0]}'.{near}", node.place)
            continue
        around = (*above, title)
        target = " ".join((*manifest.words, *needed[:1]))
        if target in around:
            cycle = " -> ".join((*around[around.index(target) :], target))
            yield Problem(f"needs: a cycle: {cycle}", node.place)
            continue
        yield from _needs(manifest, needed, enter, around, followed)
    if command.kind == "path" and words[1:]:
        try:
            inner = enter(manifest, command)
        except CliError as error:
            yield from error.problems
            return
        yield from _needs(inner, words[1:], enter, above, followed)
    followed.add(key)
