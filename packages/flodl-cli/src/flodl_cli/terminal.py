"""What the terminal can show."""

from __future__ import annotations

import os
import sys
from typing import TextIO

__all__ = ["Style", "width"]


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
