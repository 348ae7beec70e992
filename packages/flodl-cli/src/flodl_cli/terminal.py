"""What the terminal can show, and what it is asked."""

from __future__ import annotations

import os
import sys
from typing import TextIO

__all__ = ["Style", "confirm", "width"]


def width() -> int:
    """The columns of the terminal; 80 where there is none."""
    named = os.environ.get("COLUMNS", "")
    measured = os.get_terminal_size(1).columns if os.isatty(1) else 80
    columns = int(named) if named.isdigit() and int(named) > 0 else measured
    return max(40, min(columns, 120))


class Style:
    """Bold and dim text where it is shown as such, plain text elsewhere."""

    def __init__(self, stream: TextIO = sys.stdout, ansi: bool | None = None) -> None:
        automatic = stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self.on = automatic if ansi is None else ansi

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.on else text

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.on else text


def confirm(question: str, yes: bool) -> None:
    """Nothing is written without an answer: where nobody can give one, the flag is named."""
    from flodl_cli.errors import CliError

    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError(f"{question} No terminal to ask on: --yes does it without asking.")
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        raise CliError("no answer: --yes does it without asking.") from None
    if answer.strip().lower() not in ("y", "yes"):
        raise CliError("nothing was changed")
