"""What a new project is called: its folder, its title, and the plain name that tools want."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

from flodl_cli.errors import CliError

__all__ = ["Name", "parse_name"]

_SPELLED = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "æ": "ae", "ø": "oe", "å": "aa", "ł": "l"})


class Name(NamedTuple):
    """`title` as it was typed, `slug` of small letters, digits and hyphens (for docker compose)."""

    folder: Path
    title: str
    slug: str


def parse_name(text: str) -> Name:
    """Any name that a folder can have; where it has a path, the folder above must exist. `.` is the current folder.

    Raises CliError: no name, or one that could not be typed or shown safely.
    """
    folder = Path.cwd() if text in (".", "./") else Path(text)
    title = folder.name
    if not title or title == "..":
        raise CliError(f"'{text}' is no name for a project")
    if text.startswith("-") or title.startswith("-"):
        raise CliError(f"'{text}': a name that starts with - would be taken for an option")
    if title != title.strip():
        raise CliError(f"'{title}': a name must not begin or end with a space")
    if any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for c in title):
        raise CliError(f"{title!r}: a name must not hold characters that cannot be shown")
    if not folder.absolute().parent.is_dir():
        raise CliError(f"there is no folder {folder.parent}: make it first")
    return Name(folder, title, _slug(title))


def _slug(title: str) -> str:
    spelled = unicodedata.normalize("NFC", title).lower().translate(_SPELLED)
    parts = re.split(r"[\W_]+", spelled)
    plain = (unicodedata.normalize("NFKD", part).encode("ascii", "ignore").decode() for part in parts)
    return "-".join(filter(None, plain)) or "project"
