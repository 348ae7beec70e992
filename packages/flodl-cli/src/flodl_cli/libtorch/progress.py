"""How far a download or an unpacking is, on stderr: a bar on a terminal, a line at every tenth elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Progress", "progress", "size_text"]


class Progress(Protocol):
    """Told by a download or an unpacking what it does, and how many bytes it has done."""

    def start(self, what: str, done: int, total: int | None) -> None: ...

    def advance(self, count: int) -> None: ...

    def say(self, line: str) -> None: ...


def size_text(count: int) -> str:
    """1000 -> `1.0 kB`, in decimal units."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Shows the progress with one file."""
    if quiet:
        yield _Lines(title, silent=True)
    elif sys.stderr.isatty():
        with _bar(title) as shown:
            yield shown
    else:
        yield _Lines(title)


class _Lines:
    def __init__(self, title: str, *, silent: bool = False) -> None:
        self.title, self.silent = title, silent
        self.done, self.total, self.told = 0, 0, 0

    def start(self, what: str, done: int, total: int | None) -> None:
        self.done = done
        self.total = total if total and what == "downloading" else 0  # unpacking takes seconds: no tenths of it
        self.told = 10 * done // self.total if self.total else 0
        size = f", {size_text(total)}" if total else ""
        self.say(f"{what} {self.title}{size}" + (f", from {size_text(done)} on" if done else ""))

    def advance(self, count: int) -> None:
        self.done += count
        tenths = 10 * self.done // self.total if self.total else 0
        if self.told < tenths < 10 and self.total > 10_000_000:
            self.say(f"  {10 * tenths} %")
        self.told = tenths

    def say(self, line: str) -> None:
        if not self.silent:
            print(f"fdl: {line}", file=sys.stderr, flush=True)


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)

        class Shown:
            def start(self, what: str, done: int, total: int | None) -> None:
                bar.update(task, description=f"{what} {title}", completed=done, total=total)

            def advance(self, count: int) -> None:
                bar.advance(task, count)

            def say(self, line: str) -> None:
                bar.console.print(f"fdl: {line}", markup=False, highlight=False)

        yield Shown()
