"""The words an entry is started with: its own, those of the manifest and the preset, and what was typed."""

from __future__ import annotations

from collections.abc import Sequence

from flodl_cli.config.layers import RUN_SECTIONS
from flodl_cli.config.merge import merge
from flodl_cli.config.node import Node
from flodl_cli.tasks.model import Command, Manifest

__all__ = ["entry_words", "preset_settings"]


def preset_settings(manifest: Manifest, command: Command | None) -> Node:
    """The run sections of a manifest with those of a preset on top."""
    data = {name: node for name in RUN_SECTIONS if (node := manifest.node.get(name))}
    settings = Node(data, manifest.node.place)
    if command is None:
        return settings
    preset = {name: node for name in RUN_SECTIONS if (node := command.node.get(name))}
    return merge(settings, Node(preset, command.node.place))


def entry_words(
    manifest: Manifest, command: Command | None, entry: Sequence[str], words: Sequence[str], env: dict[str, str]
) -> tuple[tuple[str, ...], Node]:
    """The argument vector of an entry, and the settings that its run configuration is made of."""
    settings = preset_settings(manifest, command)
    options = settings.get("options")
    given: list[str] = []
    for name, node in (options.entries() if options else {}).items():
        given += option_words(name, node)
    return (*entry, *given, *words), settings


def option_words(name: str, node: Node) -> list[str]:
    """An option of the manifest as words, when nothing is known of the entry: `--batch-size 3`, `--flag`."""
    flag = "--" + name.replace("_", "-")
    if isinstance(node.data, bool):
        return [flag] if node.data else []
    if isinstance(node.data, list):
        return [flag, *(str(item.data) for item in node.data)]
    return [flag, str(node.data)]
