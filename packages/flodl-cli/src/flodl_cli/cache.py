"""Small JSON files in the user's cache. A cache that cannot be read or written costs time, never a call."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["cache_folder", "load", "name_of", "store"]


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """`$XDG_CACHE_HOME/flodl`, else `~/.cache/flodl`; None where there is no home either."""
    base = environ.get("XDG_CACHE_HOME")
    if base and os.path.isabs(base):
        return Path(base) / "flodl"
    home = environ.get("HOME")
    return Path(home) / ".cache" / "flodl" if home and os.path.isabs(home) else None


def name_of(*parts: object) -> str:
    """A file name for what the parts identify."""
    return hashlib.sha256(json.dumps([str(p) for p in parts]).encode()).hexdigest()[:20] + ".json"


def load(path: Path) -> Any:
    """What was stored, or None: nothing there, or not readable, or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def store(path: Path, value: Any) -> bool:
    """Stores it atomically; False where that is not possible (a read-only folder, a full disk)."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False)
        os.replace(temporary, path)
        return True
    except OSError:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        return False
