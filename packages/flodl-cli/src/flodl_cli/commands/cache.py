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

__all__ = ["cache", "steps_folder"]


def steps_folder() -> Path:
    """Where flodl keeps its choices: `FLODL_CACHE`, or `flodl` in the user's cache."""
    if given := os.environ.get("FLODL_CACHE"):
        return Path(given) / "steps"
    base = Path.home() / "Library" / "Caches" if sys.platform == "darwin" else Path.home() / ".cache"
    if sys.platform != "darwin" and (xdg := os.environ.get("XDG_CACHE_HOME", "").strip()):
        base = Path(xdg)
    return base / "flodl" / "steps"


def _choices() -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Each file with its content; None for one that is damaged."""
    for path in sorted(steps_folder().glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            document["recipe"], document["key"]["model"]
        except (OSError, ValueError, KeyError, TypeError):
            document = None
        yield path, document


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
    rows = [("model", "optimizer", "batch", "chosen", "ms a step", "when")]
    for path, document in found:
        if document is None:
            rows.append((path.name, "", "", "damaged: ignored", "", ""))
            continue
        key, milliseconds = document["key"], document.get("step_ms")
        day = time.strftime("%Y-%m-%d", time.localtime(document.get("written", 0)))
        duration = f"{milliseconds:.3g}" if isinstance(milliseconds, (int, float)) else ""
        batch = str(key.get("batch", "")).replace("torch.", "").replace("Size", "")
        optimizer = str(key.get("optimizer", "")).split(",")[0]
        rows.append((key["model"], optimizer, batch[:50], document["recipe"], duration, day))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@cache.command()
def clear() -> None:
    """Forget all of it: the next training of each model tries anew."""
    removed = 0
    for path, _ in _choices():
        path.unlink(missing_ok=True)
        removed += 1
    print(f"{removed} forgotten")
