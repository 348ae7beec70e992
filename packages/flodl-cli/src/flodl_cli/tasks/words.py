"""Lines of a manifest as words."""

from __future__ import annotations

import shlex

from flodl_cli.config.node import Node
from flodl_cli.errors import CliError, Problem

__all__ = ["split_words", "texts"]


def split_words(node: Node, key: str) -> list[str]:
    """A line of the manifest as words, by the rules of the shell, without a shell."""
    try:
        return shlex.split(str(node.data))
    except ValueError as error:
        raise CliError(Problem(f"{key}: {str(error).lower()}", node.place)) from None


def texts(node: Node | None) -> list[Node]:
    """A text or a list of texts as nodes."""
    if node is None:
        return []
    return node.items() or ([node] if isinstance(node.data, str) else [])
