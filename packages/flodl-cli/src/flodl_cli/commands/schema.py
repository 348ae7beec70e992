"""`fdl schema list|refresh|clear`: what is known of the arguments of entries."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import click

from flodl_cli.arguments.ask import Entry, Known, ask, cached
from flodl_cli.arguments.model import Schema
from flodl_cli.call import Call
from flodl_cli.help import table
from flodl_cli.project import child_environment
from flodl_cli.tasks.entry import entry_of
from flodl_cli.tasks.model import Manifest

__all__ = ["schema"]


@click.group()
def schema() -> None:
    """What is known of the arguments of entries."""


def _entries(call: Call, manifest: Manifest) -> Iterator[tuple[str, Entry]]:
    """The programs that manifests start, by how they are called."""
    env = child_environment(manifest.root, os.environ)
    entry = entry_of(manifest, None, env)
    if entry is not None:
        yield manifest.title, entry
    for command in manifest.commands().values():
        if command.problems:
            continue
        if command.kind == "path":
            yield from _entries(call, call.loader.enter(manifest, command))
        elif command.node.get("entry") and (own := entry_of(manifest, command, env)):
            yield f"{manifest.title} {command.name}", own


def _told(known: Known) -> str:
    if known.schema is None:
        return f"not known: {known.reason}"
    count = len(known.schema.options)
    return f"{count} option{'s' if count != 1 else ''}" + (" (asked now)" if known.fresh else "")


def _print(call: Call, *, refresh: bool) -> None:
    rows = [(title, _told(ask(entry, refresh=refresh))) for title, entry in _entries(call, call.loader.load())]
    print("\n".join(table(rows)) if rows else "no command here has an entry")


@schema.command("list")
@click.option("--json", "as_json", is_flag=True, help="All that is known.")
@click.pass_obj
def list_(call: Call, as_json: bool) -> None:
    """List the entries and how many options are known of each."""
    if not as_json:
        _print(call, refresh=False)
        return
    known = {title: ask(entry) for title, entry in _entries(call, call.loader.load())}
    print(json.dumps({t: {"schema": _data(k.schema), "reason": k.reason} for t, k in known.items()}, indent=2))


def _data(schema: Schema | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    return {
        **schema._asdict(),
        "options": [o._asdict() for o in schema.options],
        "positionals": [p._asdict() for p in schema.positionals],
        "commands": {name: _data(inner) for name, inner in schema.commands.items()},
    }


@schema.command()
@click.pass_obj
def refresh(call: Call) -> None:
    """Ask all entries anew."""
    _print(call, refresh=True)


@schema.command()
@click.pass_obj
def clear(call: Call) -> None:
    """Forget what is known of the entries of this project."""
    places = [cached(entry) for _, entry in _entries(call, call.loader.load())]
    paths = [place.path for place in places if place is not None and place.path.exists()]
    for path in paths:
        path.unlink()
    print(f"{len(paths)} forgotten")
