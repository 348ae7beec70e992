"""`fdl api-ref`: the public names of the flodl that the project's Python has."""

from __future__ import annotations

import json
import os
from binascii import crc32
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from flodl_cli.cache import slot
from flodl_cli.call import Call
from flodl_cli.errors import CliError
from flodl_cli.machine.asking import ask_python
from flodl_cli.machine.python_torch import TIMEOUT_S, module_folder, project_python
from flodl_cli.terminal import Style

__all__ = ["api_ref"]


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Names, kinds, signatures and whole docstrings.")
@click.pass_obj
def api_ref(call: Call, name: str | None, as_json: bool) -> None:
    """List the public names of flodl with their signatures; with NAME (such as Trainer.step), explain one."""
    found = _reference(call)
    names = found["names"]
    if name is not None:
        wanted = name.removeprefix("flodl.").removeprefix("fl.")
        names = [n for n in names if n["name"] == wanted or n["name"].startswith(wanted + ".")]
        if not names:
            raise CliError(f"flodl has no '{name}'.{_near(wanted, [n['name'] for n in found['names']])}")
    if as_json:
        print(json.dumps({**found, "names": names}, ensure_ascii=False, indent=2))
        return
    style = Style(ansi=call.options.ansi)
    if name is not None:
        print("\n".join(_explained(names, style)))
        return
    print(f"flodl {found['version']}: import flodl as fl")
    print("\n".join(_listed(names, style)))


def _reference(call: Call) -> dict[str, Any]:
    """Asked once for each state of flodl's files: the answer takes an import of torch."""
    python, env = project_python(call.root or Path.cwd(), os.environ)
    folder = module_folder(python, env, "flodl")
    if folder is None:
        raise CliError(f"{python} has no flodl: install it there, or activate an environment that has it")
    files = sorted(folder.rglob("*.py"))
    key = [python, str(folder), *((str(f), f.stat().st_mtime_ns, f.stat().st_size) for f in files)]
    kept = slot(os.environ, "api", python, crc32(json.dumps(key).encode()))
    if kept is not None and isinstance(known := kept.load(), dict):
        return known
    found = ask_python(python, Path(__file__).parents[1] / "machine" / "api_report.py", env, TIMEOUT_S)
    if isinstance(found, str):
        raise CliError(f"flodl of {python} cannot be imported: {found}")
    if kept is not None:
        kept.store(found)
    return found


def _near(wanted: str, names: list[str]) -> str:
    """Near by the last part, too: `setpu` is near `Trainer.setup`."""
    import difflib

    last = wanted.rpartition(".")[2].lower()
    parts = {n.rpartition(".")[2].lower() for n in names}
    close = difflib.get_close_matches(last, parts, n=3, cutoff=0.7)
    near = sorted(
        (n for n in names if n.rpartition(".")[2].lower() in close), key=lambda n: not n.startswith(wanted[:3])
    )
    return " Did you mean " + " or ".join(f"'{n}'" for n in near[:3]) + "?" if near else " `fdl api-ref` lists all."


def _listed(names: list[dict[str, Any]], style: Style) -> Iterator[str]:
    for entry in names:
        depth = entry["kind"] in ("method", "property")
        if not depth:
            yield ""
        shown = f".{entry['name'].rpartition('.')[2]}" if depth else f"fl.{entry['name']}"
        yield f"{'    ' * depth}{style.bold(shown)}{entry['signature']}"
        if entry["doc"]:
            yield f"{'    ' * depth}    {style.dim(entry['doc'])}"


def _explained(names: list[dict[str, Any]], style: Style) -> Iterator[str]:
    first, *members = names
    yield f"{style.bold('fl.' + first['name'])}{first['signature']}"
    if first.get("text"):
        yield ""
        yield from (f"    {line}".rstrip() for line in first["text"].splitlines())
    yield from _listed(members, style)
