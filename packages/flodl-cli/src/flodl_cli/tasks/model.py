"""Manifests and their commands as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flodl_cli.config.node import Node
from flodl_cli.project import MANIFEST

__all__ = ["Command", "Manifest", "Step"]


@dataclass(frozen=True)
class Manifest:
    """The resolved fdl.yml of one folder."""

    folder: Path
    root: Path  # the project's folder; the same as `folder` for the first manifest
    node: Node
    words: tuple[str, ...] = ()  # the commands that led here: ("bench",)

    def text(self, *path: str) -> str:
        """The string at a path of keys; empty where there is none."""
        node = self.node.get(*path)
        return node.data if node is not None and isinstance(node.data, str) else ""

    def commands(self) -> dict[str, Command]:
        """The commands by name, in the manifest's order."""
        node = self.node.get("commands")
        return {name: _command(self, name, value) for name, value in (node.entries() if node else {}).items()}


@dataclass(frozen=True)
class Command:
    """One entry under `commands:`."""

    name: str
    kind: str  # run, path or preset
    node: Node
    folder: Path | None = None  # of a path command

    @property
    def description(self) -> str:
        node = self.node.get("description")
        return str(node.data) if node else ""


@dataclass(frozen=True)
class Step:
    """One process to start, with everything decided."""

    title: str  # the words that call it: "bench graph"
    argv: tuple[str, ...]
    cwd: Path
    env: dict[str, str]
    grace_s: float = 10.0


def _command(manifest: Manifest, name: str, node: Node) -> Command:
    if node.get("run"):
        return Command(name, "run", node)
    path = node.get("path")
    folder = manifest.folder / (str(path.data) if path else name)
    if path is not None:
        return Command(name, "path", node, folder)
    if not any(node.get(s) for s in ("training", "ddp", "output", "options")) and (folder / MANIFEST).exists():
        return Command(name, "path", node, folder)
    return Command(name, "preset", node)
