"""Files of NAME=VALUE lines."""

from __future__ import annotations

import re
from pathlib import Path

from flodl_cli.config.source import Place, read_source
from flodl_cli.errors import CliError, Problem

__all__ = ["read_dotenv"]

# Single quotes: as it stands, over several lines. Double quotes: with escapes. None: up to a comment, trimmed.
_LINE = re.compile(
    r"""[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*
        (?: '([^']*)' | "((?:[^"\\]|\\.)*)" | ([^\n]*?) )
        [ \t]*(?:(?<=[ \t'"])\#[^\n]*)?(?:\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_SKIPPED = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def read_dotenv(path: Path, named_at: Place) -> dict[str, str]:
    """The variables of a dotenv file; a file that is missing or wrong is an error with its place."""
    if not path.exists():
        raise CliError(Problem(f"there is no dotenv file {path}", named_at))
    source = read_source(path, path.name)
    values: dict[str, str] = {}
    at = 0
    while at < len(source.text):
        if skipped := _SKIPPED.match(source.text, at):
            at = skipped.end()
            continue
        line = _LINE.match(source.text, at)
        if line is None:
            number = source.text.count("\n", 0, at) + 1
            raise CliError(Problem("not a NAME=VALUE line", source.place(number, 1)))
        name, single, double, bare = line.groups()
        if double is not None:
            double = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(1)), double, flags=re.DOTALL)
        values[name] = next(v for v in (single, double, bare) if v is not None)
        at = line.end()
    return values
