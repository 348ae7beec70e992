"""Dotted names of settings: `ddp.policy`, `commands."a.b".run`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flodl_cli.errors import CliError

__all__ = ["dotted", "split_dotted"]

_PART = re.compile(r'"((?:[^"\\]|\\.)*)"|([^."]+)')


def dotted(path: Sequence[str]) -> str:
    """The name of a path of keys; a key that a dot would tear apart is quoted."""
    return ".".join(_quoted(key) for key in path)


def _quoted(key: str) -> str:
    if re.fullmatch(r'[^."\\=\s]+', key):
        return key
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def split_dotted(name: str) -> tuple[str, ...]:
    """The path of keys that `dotted` wrote."""
    keys, at = [], 0
    while True:
        part = _PART.match(name, at)
        if part is None:
            raise CliError(f"'{name}' is not the name of a setting: write for example training.epochs")
        keys.append(part.group(2) or re.sub(r"\\(.)", r"\1", part.group(1) or ""))
        at = part.end()
        if at == len(name):
            return tuple(keys)
        if name[at] != ".":
            raise CliError(f"'{name}' is not the name of a setting: write for example training.epochs")
        at += 1
