"""Small JSON files in the user's cache. A cache that cannot be read or written costs time, never a call."""

from __future__ import annotations

import json
import os
from binascii import crc32
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Slot", "cache_folder", "slot"]


class Slot:
    """A place for one value. It is given back only for the very key that it was stored under."""

    def __init__(self, path: Path, key: Any) -> None:
        self.path, self.key = path, json.loads(json.dumps(key))

    def load(self) -> Any:
        """What was stored, or None: nothing there, for another key, not readable, or damaged."""
        try:
            with open(self.path, encoding="utf-8") as file:
                document = json.load(file)
            return document["value"] if document["key"] == self.key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store(self, value: Any) -> bool:
        """Stores it atomically; False where that is not possible (a read-only folder, a full disk)."""
        temporary = f"{self.path}.{os.getpid()}"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"key": self.key, "value": value}, file, ensure_ascii=False)
            os.replace(temporary, self.path)
            return True
        except OSError:
            if os.path.exists(temporary):
                os.unlink(temporary)
            return False


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """`$XDG_CACHE_HOME/flodl`, else `~/.cache/flodl`; None where there is no home either."""
    base = environ.get("XDG_CACHE_HOME")
    if base and os.path.isabs(base):
        return Path(base) / "flodl"
    home = environ.get("HOME")
    return Path(home) / ".cache" / "flodl" if home and os.path.isabs(home) else None


def slot(environ: Mapping[str, str], kind: str, name: object, key: Any) -> Slot | None:
    """The slot of a kind for a name (any JSON); None where there is no cache folder."""
    folder = cache_folder(environ)
    if folder is None:
        return None
    return Slot(folder / kind / f"{crc32(json.dumps(name).encode()):08x}.json", key)
