"""From the words of a call to the processes it starts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from flodl_cli.builtins import BUILTINS
from flodl_cli.config.node import Node
from flodl_cli.errors import CliError, Problem, nearest
from flodl_cli.manifest import Loader
from flodl_cli.tasks.dotenv import read_dotenv
from flodl_cli.tasks.entry import entry_call, entry_of, no_entry
from flodl_cli.tasks.model import GRACE_S, Command, Manifest, Step
from flodl_cli.tasks.shell import shell_words
from flodl_cli.tasks.words import split_words, texts

__all__ = ["Planner"]


class Planner:
    """Collects the steps of a call: what it needs first, each once."""

    def __init__(self, loader: Loader, env: dict[str, str]) -> None:
        self.loader = loader
        self.env = env  # that tasks start from
        self.steps: list[Step] = []
        self.done: set[tuple[str, ...]] = set()
        self.open: list[str] = []  # the needs that are being planned, for cycles

    def plan(self, manifest: Manifest, words: Sequence[str], scope: tuple[Node, ...] = ()) -> list[Step]:
        """Adds the steps of a call such as ["bench", "graph", "--rounds", "3"] and returns all of them.

        `scope` are the commands and manifests around, whose `env` holds here, too.
        """
        commands = manifest.commands()
        command = commands.get(words[0]) if words else None
        around = (*scope, manifest.node)
        if command is None:
            self._without_command(manifest, words, commands, around)
            return self.steps
        if command.problems:
            raise CliError(*command.problems)
        self._needs(manifest, command, scope)
        if command.kind == "run":
            self.steps.append(self._run_step(manifest, command, words[1:], around))
        elif command.kind == "path":
            self.plan(self.loader.enter(manifest, command), words[1:], (*around, command.node))
        else:
            self.steps.append(self._entry_step(manifest, command, words[1:], around))
        return self.steps

    def _without_command(
        self, manifest: Manifest, words: Sequence[str], commands: dict[str, Command], around: tuple[Node, ...]
    ) -> None:
        if manifest.words and manifest.text("entry"):
            self.steps.append(self._entry_step(manifest, None, words, around))
            return
        offered = f" {manifest.title} --help lists them." if commands else ""
        if words:
            names = commands if manifest.words else [*commands, *BUILTINS]
            raise CliError(f"{manifest.title} has no command '{words[0]}'.{nearest(words[0], names)}{offered}")
        raise CliError(f"{manifest.title} needs a command.{nearest('', commands)}{offered}")

    def _needs(self, manifest: Manifest, command: Command, scope: tuple[Node, ...]) -> None:
        title = " ".join((*manifest.words, command.name))
        for node in texts(command.node.get("needs")):
            if title in self.open:
                cycle = [*self.open[self.open.index(title) :], title]
                raise CliError(Problem("needs: a cycle: " + " -> ".join(cycle), node.place))
            words = split_words(node, "needs")
            if words and words[0] not in manifest.commands():
                raise CliError(
                    Problem(f"needs: no command '{words[0]}'.{nearest(words[0], manifest.commands())}", node.place)
                )
            key = (str(manifest.folder), *words)
            if key in self.done:
                continue
            self.open.append(title)
            self.plan(manifest, words, scope)
            self.open.pop()
            self.done.add(key)

    def _run_step(self, manifest: Manifest, command: Command, words: Sequence[str], around: tuple[Node, ...]) -> Step:
        title = " ".join((*manifest.words, command.name))
        if words and words[0] != "--":
            cut = words.index("--") if "--" in words else len(words)
            right = shlex.join((*words[:cut], *words[cut + 1 :]))
            raise CliError(f"{title} takes arguments after `--`: fdl {title} -- {right}")
        append = manifest.text("commands", command.name, "append").strip()
        argv = shell_words(command.node.entries()["run"], list(words[1:]), append)
        return self._step(manifest, command, title, argv, around, manifest.node)

    def _entry_step(
        self, manifest: Manifest, command: Command | None, words: Sequence[str], around: tuple[Node, ...]
    ) -> Step:
        title = " ".join((*manifest.words, command.name) if command else manifest.words) or "entry"
        env, _ = self._environment(manifest, (*around, command.node) if command else around)
        entry = entry_of(manifest, command, env)
        if entry is None:
            assert command is not None
            raise CliError(no_entry(command))
        call = entry_call(manifest, command, entry, words)
        return self._step(manifest, command, title, call.argv, around, call.settings)

    def _step(
        self,
        manifest: Manifest,
        command: Command | None,
        title: str,
        argv: tuple[str, ...],
        around: tuple[Node, ...],
        settings: Node,
    ) -> Step:
        nodes = (*around, command.node) if command else around
        env, added = self._environment(manifest, nodes)
        cwd = manifest.folder
        if command and (node := command.node.get("cwd")):
            cwd = manifest.folder / str(node.data)
            if not cwd.is_dir():
                raise CliError(Problem(f"cwd: there is no folder {cwd}", node.place))
        docker, grace = _last(nodes, "docker"), _last(nodes, "grace")
        return Step(
            title,
            argv,
            cwd,
            env,
            added,
            run_configuration(settings),
            docker.data if docker and isinstance(docker.data, str) else "",
            float(str(grace.data)) if grace else GRACE_S,
        )

    def _environment(self, manifest: Manifest, nodes: Sequence[Node]) -> tuple[dict[str, str], tuple[str, ...]]:
        """dotenv files below the real environment, `env:` above it; the inner manifest wins."""
        from_files: dict[str, str] = {}
        own: dict[str, str] = {}
        for node in nodes:
            for name in texts(node.get("dotenv")):
                folder = Path(name.place.source.path).parent if name.place.source.path else manifest.folder
                from_files.update(read_dotenv(folder / str(name.data), name.place))
            variables = node.get("env")
            own.update({k: _variable(v) for k, v in (variables.entries() if variables else {}).items()})
        added = tuple(dict.fromkeys([*(n for n in from_files if n not in self.env), *own]))
        return {**from_files, **self.env, **own}, added


def run_configuration(settings: Node) -> dict[str, object]:
    """What `FDL_CONFIG` holds: the sections of a run and where each setting came from."""
    from flodl_cli.config.paths import dotted
    from flodl_cli.config.report import leaves, origin

    sections = {name: node for name in ("training", "ddp", "output") if (node := settings.get(name)) and node.entries()}
    if not sections:
        return {}
    origins = {
        dotted((name, *path)): origin(leaf.place)
        for name, node in sections.items()
        for path, leaf in leaves(node)
        if not leaf.deleted
    }
    return {"values": {name: node.plain() for name, node in sections.items()}, "origins": origins}


def _last(nodes: Sequence[Node], key: str) -> Node | None:
    return next((found for node in reversed(nodes) if (found := node.get(key)) is not None), None)


def _variable(node: Node) -> str:
    return str(node.data).lower() if isinstance(node.data, bool) else str(node.data)
