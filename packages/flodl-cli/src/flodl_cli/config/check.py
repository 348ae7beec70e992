"""`fdl config validate`: all files of a project, each overlay on its own, all problems at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flodl_cli.config.layers import Selection, environments
from flodl_cli.config.merge import settle
from flodl_cli.config.source import read_source
from flodl_cli.config.validate import check_values
from flodl_cli.config.yaml import parse_yaml
from flodl_cli.errors import CliError, Problem
from flodl_cli.manifest import Loader
from flodl_cli.project import MANIFEST, child_environment
from flodl_cli.tasks.audit import audit, hidden_builtins
from flodl_cli.tasks.model import Manifest

__all__ = ["check_project"]


def check_project(loader: Loader) -> tuple[list[str], list[Problem], list[Problem]]:
    """The files that were checked, what is wrong with them, and what may not be meant."""
    check = _Check(loader.root)
    check.files_of(loader.root)
    for name in ("", *environments(loader.root)):
        selection = Selection((name,) if name else (), loader.selection.settings)
        inner = Loader(loader.root, selection, loader.environ)
        with check.collecting():
            check.manifest(inner.load(), inner.enter)
    return list(check.files), list(check.problems.values()), list(check.warnings.values())


class _Check:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, Path] = {}
        self.problems: dict[str, Problem] = {}  # by their text: overlays repeat what is wrong below them
        self.warnings: dict[str, Problem] = {}
        self.env = child_environment(root, os.environ)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Goes on after an error, and remembers it."""
        try:
            yield
        except CliError as error:
            self.add(*error.problems)

    def add(self, *problems: Problem) -> None:
        self.problems.update({p.render(): p for p in problems})

    def files_of(self, folder: Path) -> None:
        """Each file by itself: what another layer would cover is found, too."""
        for name in (MANIFEST, *(f"fdl.{e}.yml" for e in environments(folder)), "fdl.local.yml"):
            path = folder / name
            label = os.path.relpath(path, self.root)
            if label in self.files or not path.exists():
                continue
            self.files[label] = path
            with self.collecting():
                self.add(*(p for _, p in check_values(settle(parse_yaml(read_source(path, label))))))

    def manifest(self, manifest: Manifest, enter: Callable[..., Manifest]) -> None:
        """A manifest with its layers merged, and those of the folders below."""
        self.files_of(manifest.folder)
        self.add(*(p for _, p in manifest.problems))
        self.add(*audit(manifest, enter, self.env))
        self.warnings.update({p.render(): p for p in hidden_builtins(manifest)})
        for command in manifest.commands().values():
            if command.kind == "path":
                with self.collecting():
                    self.manifest(enter(manifest, command), enter)
