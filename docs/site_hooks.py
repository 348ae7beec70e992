"""What is generated while the site is built: the command line's reference, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from mkdocs.structure.files import File, Files

from flodl_cli.builtins import BUILTINS, command
from flodl_cli.call import GLOBAL_OPTIONS

PAGE = "reference/cli.md"


def on_files(files: Files, config: Any) -> Files:
    """mkdocs calls it when it has found the pages."""
    files.append(File.generated(config, PAGE, content="\n".join(reference())))
    return files


def reference() -> Iterator[str]:
    """The page's lines."""
    yield from (
        "# Command line",
        "",
        "Generated from `fdl` itself. Tasks are what a project's `fdl.yml` adds: `fdl` lists them.",
        "",
    )
    yield from ("## Options of every call", "", "| option | |", "|---|---|")
    for flags, value, text in GLOBAL_OPTIONS:
        shown = ", ".join(f"`{flag}{' ' + value if value else ''}`" for flag in flags)
        yield f"| {shown} | {_cell(text)} |"
    yield ""
    for name in BUILTINS:
        yield from _command(command(name), f"fdl {name}", 2)


def _command(found: click.Command, path: str, depth: int) -> Iterator[str]:
    context = click.Context(found, info_name=path)
    yield from (
        f"{'#' * depth} {path}",
        "",
        _prose(found),
        "",
        f"    {path} {' '.join(found.collect_usage_pieces(context))}",
        "",
    )
    options = [p for p in found.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        yield from ("| option | |", "|---|---|")
        for option in options:
            shown, text = option.get_help_record(context) or ("", "")
            yield f"| `{shown}` | {_cell(text)} |"
        yield ""
    if isinstance(found, click.Group):
        for name, inner in found.commands.items():
            if not inner.hidden:
                yield from _command(inner, f"{path} {name}", depth + 1)


def _prose(found: click.Command) -> str:
    return " ".join((found.help or "").split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
