"""`fdl config show|explain|diff|validate|schema`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from flodl_cli.call import Call
from flodl_cli.config.emit import flow_text
from flodl_cli.config.layers import Resolved, Selection
from flodl_cli.config.node import Node
from flodl_cli.config.paths import dotted, split_dotted
from flodl_cli.config.report import differences, document, explanation, leaves, origin, with_defaults
from flodl_cli.config.show import listing
from flodl_cli.errors import CliError, nearest
from flodl_cli.manifest import Loader

__all__ = ["config"]


@click.group()
def config() -> None:
    """Show, explain, compare and check the configuration."""


def _resolved(call: Call, words: tuple[str, ...], loader: Loader | None = None) -> Resolved:
    """The checked layers of the manifest that the words of path commands lead to."""
    loader = loader or call.loader
    manifest = loader.load()
    for word in words:
        commands = {n: c for n, c in manifest.commands().items() if c.kind == "path"}
        if word not in commands:
            raise CliError(f"{manifest.title} has no folder '{word}'.{nearest(word, commands)}")
        manifest = loader.enter(manifest, commands[word])
    if manifest.problems:
        raise CliError(*(problem for _, problem in manifest.problems))
    return loader.resolve(manifest.folder)


@config.command()
@click.argument("folder", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Every value with file, line, column and all it overrode.")
@click.option("--defaults", is_flag=True, help="With the defaults of a run.")
@click.pass_obj
def show(call: Call, folder: tuple[str, ...], as_json: bool, defaults: bool) -> None:
    """Print the resolved manifest, each value with where it came from."""
    resolved = _resolved(call, folder)
    if as_json:
        _print_json(document(with_defaults(resolved.node), resolved.layers))
        return
    if defaults:
        resolved = resolved._replace(node=with_defaults(resolved.node))
    print("\n".join(listing(resolved)))


@config.command()
@click.argument("name")
@click.argument("folder", nargs=-1)
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def explain(call: Call, name: str, folder: tuple[str, ...], as_json: bool) -> None:
    """Print every layer that set NAME (such as ddp.backend)."""
    root = with_defaults(_resolved(call, folder).node)
    path = split_dotted(name)
    found = {p: n for p, n in leaves(root) if p[: len(path)] == path and not (n.deleted and not n.chain)}
    if not found:
        raise CliError(f"nothing sets {name}.{nearest(name, [dotted(p) for p, _ in leaves(root)])}")
    if as_json:
        origins = document(root, ())["origins"]
        _print_json({dotted(p): origins[dotted(p)] for p in found})
        return
    for p, node in found.items():
        print("\n".join(explanation(p, node)))


@config.command()
@click.argument("one")
@click.argument("other", required=False)
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def diff(call: Call, one: str, other: str | None, as_json: bool) -> None:
    """Compare two environments, or the base with one."""
    names = (one, other) if other else ("", one)
    trees = []
    for name in names:
        selection = Selection(tuple(n for n in name.split(",") if n), call.options.settings)
        trees.append(_resolved(call, (), Loader(call.loader.root, selection, call.loader.environ)).node)
    rows = list(differences(*trees))
    if as_json:
        _print_json({dotted(p): {"left": _side(a), "right": _side(b)} for p, a, b in rows})
        return
    for path, a, b in rows:
        for sign, node in (("-", a), ("+", b)):
            if node is not None:
                print(f"{sign} {dotted(path)}: {flow_text(node.plain())}  # {node.place.text}")


def _side(node: Node | None) -> dict[str, Any] | None:
    return None if node is None else {"value": node.plain(), **origin(node.place)}


@config.command()
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def validate(call: Call, as_json: bool) -> int:
    """Check the manifest, every overlay of it, and all folders below."""
    from flodl_cli.config.check import check_project

    checked, problems, warnings = check_project(call.loader)
    if as_json:
        told = {"problems": problems, "warnings": warnings}
        data = {kind: [{"message": p.message, **_place(p.place)} for p in found] for kind, found in told.items()}
        _print_json({"files": checked, **data})
        return 2 if problems else 0
    for warning in warnings:
        print(f"fdl: {warning._replace(message='warning: ' + warning.message).render()}", file=sys.stderr)
    if problems:
        raise CliError(*problems)
    print(f"valid: {', '.join(checked)}")
    return 0


def _place(place: Any) -> dict[str, Any]:
    return {"file": None, "line": None, "column": None, "text": ""} if place is None else origin(place)


@config.command()
def schema() -> None:
    """Print the JSON schema of fdl.yml, for editors."""
    from flodl_cli.schema import SCHEMA_FILE

    print(Path(SCHEMA_FILE).read_text(encoding="utf-8"), end="")


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))
