"""A text that configuration is read from, and places in it."""

import os
import stat
from pathlib import Path
from typing import NamedTuple

from flodl_cli.errors import CliError, Problem

__all__ = ["MAX_BYTES", "Place", "Source", "read_source"]

MAX_BYTES = 4 * 2**20  # a manifest is read by people; a bigger file is a data file by mistake


class Source(NamedTuple):
    """Where configuration comes from: a file, or a layer without one (an environment variable, --set, the defaults)."""

    label: str  # how origins name it: "fdl.ci.yml", "--set", "default"
    text: str = ""
    path: Path | None = None

    def place(self, line: int = 1, column: int = 1, width: int = 1) -> "Place":
        """A place in this source; lines and columns count from 1."""
        return Place(self, line, column, width)


class Place(NamedTuple):
    """A line and column of a source."""

    source: Source
    line: int
    column: int
    width: int = 1

    @property
    def text(self) -> str:
        """The origin in its short form: `fdl.yml:11`, or the layer's name."""
        return f"{self.source.label}:{self.line}" if self.source.path else self.source.label

    def shown(self) -> str:
        """`path:line:column`, the path relative to the current folder where that is shorter."""
        path = self.source.path
        if path is None:
            return self.source.label
        try:
            relative = os.path.relpath(path)
        except OSError:  # the current folder was removed
            relative = str(path)
        short = relative if len(relative) < len(str(path)) else str(path)
        return f"{short}:{self.line}:{self.column}"

    def excerpt(self) -> str:
        """The line, and carets under the place, each after a line break; empty when there is no such line."""
        if self.source.path is None:
            return ""
        lines = self.source.text.splitlines()
        if not 1 <= self.line <= len(lines):
            return ""
        line = lines[self.line - 1].replace("\t", " ")
        head = f"{self.line:>5} | "
        if len(line) > 160:
            return ""
        carets = "^" * max(1, min(self.width, len(line) - self.column + 1))
        return f"\n{head}{line}\n{'| ':>{len(head)}}{' ' * (self.column - 1)}{carets}"


def read_source(path: Path, label: str) -> Source:
    """The text of a manifest, or one clear error about what the file is instead."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise CliError(f"{path} is a folder; a manifest is a file")
        if not stat.S_ISREG(status.st_mode):
            raise CliError(f"{path} is not a regular file")
        if status.st_size > MAX_BYTES:
            raise CliError(f"{path} has {status.st_size / 2**20:.0f} MB; a manifest may have {MAX_BYTES // 2**20} MB")
        raw = path.read_bytes()
    except FileNotFoundError:
        raise CliError(f"{path} does not exist") from None
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from error
    return Source(label, decode(raw, path), path)


def decode(raw: bytes, path: Path) -> str:
    """UTF-8 with or without a byte order mark, with any line ends; anything else is named."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise CliError(f"{path} is UTF-16: save it as UTF-8")
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in raw:
        raise CliError(f"{path} is a binary file")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8")
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        place = Source(path.name, raw.decode("utf-8", "replace"), path).place(line, column)
        raise CliError(Problem(f"byte 0x{raw[error.start]:02x} is not UTF-8: save the file as UTF-8", place)) from None
    return text.replace("\r\n", "\n")
