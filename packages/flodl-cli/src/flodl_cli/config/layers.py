"""The layers of a manifest, lowest first: fdl.yml, overlays, fdl.local.yml, FDL_SET_... variables, --set."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from flodl_cli.config.interpolate import Located, interpolate
from flodl_cli.config.merge import merge, settle
from flodl_cli.config.node import Node
from flodl_cli.config.parsed import parsed_manifest
from flodl_cli.config.paths import split_dotted
from flodl_cli.config.source import Source, read_source
from flodl_cli.errors import CliError, Problem, nearest
from flodl_cli.project import MANIFEST

__all__ = ["RUN_SECTIONS", "Resolved", "Selection", "environments", "of_the_call", "resolve"]

RUN_SECTIONS = ("training", "ddp", "output", "options")  # what a preset may change
LOCAL = "local"
_PREFIX, _SET = "FDL_SET_", "--set"


class Selection(NamedTuple):
    """What a call asks for on top of fdl.yml."""

    overlays: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()  # of --set, "ddp.policy=async"


class Resolved(NamedTuple):
    """A manifest with all its layers merged and its references replaced."""

    node: Node
    layers: tuple[Node, ...]  # as they were read, lowest first
    parts: tuple[str, ...]  # "base", "overlay", "local", "environment", "--set"
    problems: tuple[Located, ...]  # references that lead nowhere, by the path of the setting


def environments(folder: Path) -> list[str]:
    """The names of the overlays that a folder has."""
    try:
        names = sorted(p.name for p in folder.glob("fdl.*.yml"))
    except OSError as error:
        raise CliError(f"cannot list {folder}: {error.strerror}") from error
    return [n.removeprefix("fdl.").removesuffix(".yml") for n in names if n != f"fdl.{LOCAL}.yml"]


def resolve(folder: Path, root: Path, selection: Selection, environ: Mapping[str, str]) -> Resolved:
    """The manifest of `folder`, in the project `root`, with the layers that were asked for.

    An overlay must exist in the project's folder; a folder below has it or has not. There, too, `--set` and the
    environment change only the sections of a run: everything else that they name is the project's.
    """
    inner = folder != root
    layers, parts = [_base(_read(folder / MANIFEST, root, environ))], ["base"]
    for name in selection.overlays:
        path = folder / f"fdl.{name}.yml"
        if name == LOCAL or (inner and not path.exists()):
            continue
        if not path.exists():
            raise CliError(
                f"there is no environment '{name}': no {path.name} in {folder}.{nearest(name, environments(folder))}"
            )
        layers.append(_read(path, root, environ))
        parts.append("overlay" if "overlay" not in parts else "")
    local = folder / f"fdl.{LOCAL}.yml"
    if local.exists():
        layers.append(_read(local, root, environ))
        parts.append("local")
    from_environment = [_setting(_dotted_name(k), v, k) for k, v in sorted(environ.items()) if k.startswith(_PREFIX)]
    from_call = [_setting(*_assignment(text), _SET) for text in selection.settings]
    for part, nodes in (("environment", from_environment), ("--set", from_call)):
        wanted = [n for n in nodes if not inner or next(iter(n.entries())) in RUN_SECTIONS]
        layers += wanted
        parts += [part] if wanted else []
    node = layers[0]
    for layer in layers[1:]:
        node = merge(node, layer)
    node, problems = interpolate(node, environ)
    return Resolved(node, tuple(layers), tuple(p for p in parts if p), tuple(problems))


def of_the_call(node: Node) -> Node | None:
    """What `--set` and FDL_SET_ variables set in a merged tree, as a layer of its own; None where they set nothing."""
    label = node.place.source.label
    if node.place.source.path is None and (label == _SET or label.startswith(_PREFIX)):
        if node.deleted:
            return Node(None, node.place, node.key)
        if not isinstance(node.data, dict):
            return node
    if not isinstance(node.data, dict):
        return None
    data = {key: inner for key, value in node.data.items() if (inner := of_the_call(value)) is not None}
    return node._replace(data=data, deleted=False, chain=()) if data else None


def _read(path: Path, root: Path, environ: Mapping[str, str]) -> Node:
    return parsed_manifest(read_source(path, os.path.relpath(path, root)), environ)


def _base(node: Node) -> Node:
    """The lowest layer: a command without any contents (`letters:`) is one, for there is nothing it could delete."""
    commands = node.get("commands")
    if commands is not None and commands.is_map and isinstance(node.data, dict):
        filled = {k: v._replace(data={}) if v.data is None else v for k, v in commands.entries().items()}
        node = node.with_data({**node.data, "commands": commands.with_data(filled)})
    return settle(node)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise CliError(f"--set {text}: write NAME=VALUE, for example --set training.epochs=3")
    return name.strip(), value


def _dotted_name(variable: str) -> str:
    """FDL_SET_TRAINING__BATCH_SIZE is training.batch_size."""
    return variable.removeprefix(_PREFIX).lower().replace("__", ".")


def _setting(name: str, text: str, label: str) -> Node:
    """One setting as a layer of its own."""
    from flodl_cli.config.yaml import parse_yaml_value

    try:
        path = split_dotted(name)
    except CliError as error:
        given = f"{label} {name}={text}" if label == _SET else f"{label}={text}"
        raise CliError(*(f"{given}: {p.message}" for p in error.problems)) from None
    source = Source(label, text)
    try:
        node = parse_yaml_value(source)
    except CliError as error:
        problems = [Problem(f"{name}={text}: {p.message}") for p in error.problems]
        raise CliError(*(Problem(f"{label}: {p.message}") for p in problems)) from None
    node = node._replace(key=source.place())
    for key in reversed(path):
        node = Node({key: node}, source.place(), key=source.place())
    return node
