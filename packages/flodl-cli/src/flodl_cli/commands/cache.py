"""`fdl cache show|clear`: what trainings have learnt about the fastest step on this machine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from flodl_cli.errors import CliError

__all__ = ["cache", "steps_folder"]

_VERSION = 1  # of the files' form, as trainings write it


def steps_folder() -> Path:
    """Where flodl keeps its choices: `FLODL_CACHE`, or `flodl` in the user's cache."""
    if given := os.environ.get("FLODL_CACHE"):
        return Path(given) / "steps"
    base = Path.home() / "Library" / "Caches" if sys.platform == "darwin" else Path.home() / ".cache"
    if sys.platform != "darwin" and (xdg := os.environ.get("XDG_CACHE_HOME", "").strip()):
        base = Path(xdg)
    return base / "flodl" / "steps"


def _choices() -> Iterator[tuple[Path, Any]]:
    """Each file with its content, as it is; None for one that is no JSON or cannot be read."""
    for path in sorted(steps_folder().glob("*.json")):
        if path.is_dir():  # none of ours
            continue
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            document = None
        yield path, document


def _row(path: Path, document: Any) -> tuple[str, ...]:
    """What is shown of a choice, which may be anything that is JSON."""
    try:
        if document["version"] != _VERSION:
            return (path.name, "", "", "of another version: ignored", "", "")
        key, recipe, milliseconds = document["key"], document["recipe"], document.get("step_ms")
        day = time.strftime("%Y-%m-%d", time.localtime(document.get("written", 0)))
        duration = "" if milliseconds is None else f"{milliseconds:.3g}"
        batch = key.get("batch", "").replace("torch.", "").replace("Size", "")
        row = (key["model"], key.get("optimizer", "").split(",")[0], batch[:50], recipe, duration, day)
        if all(isinstance(cell, str) and cell.isprintable() for cell in row):
            return row
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, OSError):
        pass
    return (path.name, "", "", "damaged: ignored", "", "")


@click.group()
def cache() -> None:
    """What trainings have learnt about the fastest step on this machine."""


@cache.command()
@click.option("--json", "as_json", is_flag=True, help="All that is kept.")
def show(as_json: bool) -> None:
    """Show which way of computing a step was chosen for which model."""
    found = list(_choices())
    if as_json:
        print(json.dumps({path.name: document for path, document in found}, indent=2))
        return
    if not found:
        print(f"nothing is kept in {steps_folder()}")
        return
    rows = [("model", "optimizer", "batch", "chosen", "ms a step", "when"), *(_row(*choice) for choice in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@cache.command()
def clear() -> None:
    """Forget all of it: the next training of each model tries anew."""
    removed, problems = 0, []
    folder = steps_folder()
    for path in [*(path for path, _ in _choices()), *folder.glob(".writing-*")]:  # of a training killed as it wrote
        try:
            path.unlink(missing_ok=True)
            removed += path.suffix == ".json"
        except OSError as error:
            problems.append(f"cannot remove {path}: {error.strerror}")
    print(f"{removed} forgotten")
    if problems:
        raise CliError(*problems)
