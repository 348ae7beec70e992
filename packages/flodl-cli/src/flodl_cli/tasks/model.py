"""Manifests and their commands as data."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from flodl_cli.config.layers import RUN_SECTIONS
from flodl_cli.config.node import Node
from flodl_cli.errors import Problem
from flodl_cli.project import MANIFEST

__all__ = ["GRACE_S", "Command", "Manifest", "Step"]

GRACE_S = 10.0  # between a signal and the end of who does not listen


class Manifest(NamedTuple):
    """The resolved fdl.yml of one folder."""

    folder: Path
    root: Path  # the project's folder; the same as `folder` for the first manifest
    node: Node
    words: tuple[str, ...] = ()  # the commands that led here: ("bench",)
    problems: tuple[tuple[tuple[str, ...], Problem], ...] = ()  # of single commands
    above: tuple[Path, ...] = ()  # the folders of the manifests that led here

    @property
    def title(self) -> str:
        """How it is called: `fdl bench`."""
        return " ".join(("fdl", *self.words))

    def text(self, *path: str) -> str:
        """The string at a path of keys; empty where there is none."""
        node = self.node.get(*path)
        return node.data if node is not None and isinstance(node.data, str) else ""

    def commands(self) -> "dict[str, Command]":
        """The commands by name, in the manifest's order."""
        node = self.node.get("commands")
        return {name: self._command(name, value) for name, value in (node.entries() if node else {}).items()}

    def _command(self, name: str, node: Node) -> "Command":
        problems = tuple(p for path, p in self.problems if path[:2] == ("commands", name))
        path = node.get("path")
        folder = self.folder / (str(path.data) if path else name)
        if node.get("run"):
            return Command(name, "run", node, problems=problems)
        preset = any(node.get(s) for s in (*RUN_SECTIONS, "entry"))
        if path is not None or (not preset and (folder / MANIFEST).exists()):
            return Command(name, "path", node, folder, problems)
        return Command(name, "preset", node, problems=problems)


class Command(NamedTuple):
    """One entry under `commands:`."""

    name: str
    kind: str  # run, path or preset
    node: Node
    folder: Path | None = None  # of a path command
    problems: tuple[Problem, ...] = ()

    @property
    def description(self) -> str:
        node = self.node.get("description")
        return str(node.data) if node else ""


class Step(NamedTuple):
    """One process to start, with everything decided."""

    title: str  # the words that call it: "bench graph"
    argv: tuple[str, ...]
    cwd: Path
    env: dict[str, str]  # the whole environment
    added: tuple[str, ...] = ()  # the names in it that the manifest sets
    config: Mapping[str, Any] = MappingProxyType({})  # the run configuration, for the file FDL_CONFIG
    docker: str = ""  # the compose service that it runs in
    grace_s: float = GRACE_S
