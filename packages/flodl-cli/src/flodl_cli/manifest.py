"""Loading the manifest of a folder: layers, references, schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flodl_cli.config.layers import Resolved, Selection, resolve
from flodl_cli.config.validate import check_manifest
from flodl_cli.errors import CliError, Problem
from flodl_cli.project import MANIFEST
from flodl_cli.tasks.model import Command, Manifest

__all__ = ["Loader"]


class Loader:
    """Loads the manifests of one call, each once, all with the same layers on top."""

    def __init__(self, root: Path, selection: Selection, environ: Mapping[str, str]) -> None:
        self.root, self.selection, self.environ = root, selection, environ
        self._resolved: dict[Path, Resolved] = {}
        self._project: Manifest | None = None

    def load(self) -> Manifest:
        """The project's own manifest."""
        if self._project is None:
            self._project = self._manifest(self.root, (), ())
        return self._project

    def enter(self, manifest: Manifest, command: Command) -> Manifest:
        """The manifest of the folder that a path command leads to."""
        assert command.folder is not None
        node = command.node.get("path") or command.node
        if not (command.folder / MANIFEST).exists():
            message = f"command '{command.name}': there is no {MANIFEST} in {command.folder}"
            raise CliError(Problem(message, node.place))
        folder = command.folder.resolve()
        above = (*manifest.above, manifest.folder.resolve())
        if folder in above:
            cycle = " -> ".join(str(f) for f in (*above[above.index(folder) :], folder))
            raise CliError(Problem(f"path: a cycle of folders: {cycle}", node.place))
        return self._manifest(command.folder, (*manifest.words, command.name), above)

    def _manifest(self, folder: Path, words: tuple[str, ...], above: tuple[Path, ...]) -> Manifest:
        resolved = self.resolve(folder)
        located = [*resolved.problems, *check_manifest(resolved.node)]
        # What is wrong in one command is told when that command is used, and hides none of the others.
        if any(len(path) < 2 or path[0] != "commands" for path, _ in located):
            raise CliError(*(problem for _, problem in located))
        return Manifest(folder, self.root, resolved.node, words, tuple(located), above)

    def resolve(self, folder: Path) -> Resolved:
        """The layers of a folder, merged, not checked."""
        if folder not in self._resolved:
            self._resolved[folder] = resolve(folder, self.root, self.selection, self.environ)
        return self._resolved[folder]
