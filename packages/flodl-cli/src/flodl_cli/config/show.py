"""The resolved manifest as YAML in which each value says where it came from."""

from __future__ import annotations

from collections.abc import Iterator

from flodl_cli.config.emit import block_lines, block_text, flow_text, key_text
from flodl_cli.config.layers import Resolved
from flodl_cli.config.node import Node

__all__ = ["listing"]

_COLUMN = 32  # where origins stand, unless the text before is longer


def listing(resolved: Resolved) -> Iterator[str]:
    """The lines of `fdl config show`."""
    yield "# resolved manifest, " + " + ".join(resolved.parts)
    if not resolved.node.entries():
        yield "{}"
    yield from _map_lines(resolved.node, 0, ())


def _map_lines(node: Node, indent: int, path: tuple[str, ...]) -> Iterator[str]:
    assert isinstance(node.data, dict)
    for key, value in node.data.items():
        yield from _lines(key, value, indent, path)


def _lines(key: str, node: Node, indent: int, path: tuple[str, ...]) -> Iterator[str]:
    head = " " * indent + key_text(key) + ":"
    if node.deleted:
        yield from _gone_lines(head, node)
    elif node.entries():
        if path == ("commands",):
            yield from _command_lines(head, node, indent)
        else:
            yield head
            yield from _map_lines(node, indent + 2, (*path, key))
    elif node.items() and not _one_layer(node):
        yield head
        for item in node.items():
            yield _with_origin(" " * indent + "  - " + flow_text(item.plain()), item)
    else:
        yield from _value_lines(head, node, indent)


def _value_lines(head: str, node: Node, indent: int) -> Iterator[str]:
    block = block_lines(node.data) if isinstance(node.data, str) else None
    if block is None:
        yield _with_origin(f"{head} {block_text(node.plain())}", node)
        return
    header, lines = block
    yield _with_origin(f"{head} {header}", node)
    for line in lines:
        yield " " * (indent + 2) + line if line else ""


def _command_lines(head: str, node: Node, indent: int) -> Iterator[str]:
    """A command that one file holds is short: its origin once, its parts on a line each."""
    entries = node.entries()
    kind = next((k for k in ("run", "path") if k in entries), "preset")
    if not _one_layer(node) or any(v.deleted for v in node.data.values()):  # type: ignore[union-attr]
        yield head
        yield from _map_lines(node, indent + 2, ("commands", ""))
        return
    at = node.key or node.place
    yield f"{head:<{_COLUMN - 2}}  # {at.text} ({kind})"
    for key, value in entries.items():
        inner = " " * (indent + 2) + key_text(key) + ":"
        block = block_lines(value.data) if isinstance(value.data, str) else None
        if block is None:
            yield f"{inner} {block_text(value.plain())}"
            continue
        yield f"{inner} {block[0]}"
        for line in block[1]:
            yield " " * (indent + 4) + line if line else ""


def _gone_lines(head: str, node: Node) -> Iterator[str]:
    """A deleted setting stays visible, as a comment."""
    if node.chain:
        was = node.chain[-1]
        name = f"{head[: len(head) - len(head.lstrip())]}# {head.strip()[:-1]} deleted"
        yield f"{name:<{_COLUMN - 2}}  # {node.place.text} (was {flow_text(was.plain())}, {was.place.text})"
    elif isinstance(node.data, dict):
        for key, value in node.data.items():
            yield from _gone_lines(f"{head[:-1]}.{key_text(key)}:", value)


def _one_layer(node: Node) -> bool:
    """True when everything below came from one source and overrode nothing."""
    return all(n.place.source is node.place.source and not n.chain for n in _all(node))


def _all(node: Node) -> Iterator[Node]:
    yield node
    for inner in (*node.entries().values(), *node.items()):
        yield from _all(inner)


def _with_origin(text: str, node: Node) -> str:
    override = " (override)" if any(not n.deleted for n in node.chain) else ""
    return f"{text:<{_COLUMN - 2}}  # {node.place.text}{override}"
