"""Settings with their history, for `config show --json`, `explain` and `diff`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flodl_cli.config.emit import flow_text
from flodl_cli.config.node import Node, Plain, plain_node
from flodl_cli.config.paths import dotted
from flodl_cli.config.source import Place, Source
from flodl_cli.schema import section_fields

__all__ = ["differences", "document", "explanation", "leaves", "origin", "with_defaults"]

_DEFAULT = Source("default")


def with_defaults(root: Node) -> Node:
    """The tree over the defaults of a run, the lowest layer: what is not set, or was deleted, has its default."""
    if not isinstance(root.data, dict):
        return root
    data = dict(root.data)
    for section in ("training", "ddp", "output"):
        fields = {k: f["default"] for k, f in section_fields(section).items() if f.get("default") is not None}
        if not fields:
            continue
        base = plain_node(fields, _DEFAULT.place())
        data[section] = _over_defaults(data.get(section), base)
    return root.with_data(data)


def _over_defaults(section: Node | None, base: Node) -> Node:
    if section is None or not isinstance(section.data, dict) or not isinstance(base.data, dict):
        return base if section is None or section.deleted else section
    data = dict(section.data)
    for key, default in base.data.items():
        own = data.get(key)
        if own is None:
            data[key] = default
        elif own.deleted:
            data[key] = default._replace(chain=(default, *own.chain, own._replace(chain=())))
        else:
            data[key] = own._replace(chain=(default, *own.chain))
    return section._replace(data=data, deleted=False)


def leaves(root: Node) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Every scalar, list and empty map, deleted ones included."""
    for path, node in root.walk():
        if path and (not node.is_map or (not node.data and not node.deleted)):
            yield path, node


def origin(place: Place) -> dict[str, Any]:
    """A place as data; file, line and column only where there is a file."""
    if place.source.path is None:
        return {"file": None, "line": None, "column": None, "text": place.text}
    return {"file": str(place.source.path), "line": place.line, "column": place.column, "text": place.text}


def document(root: Node, layers: tuple[Node, ...]) -> dict[str, Any]:
    """`config show --json`: the values, and for each its place and everything that it overrode."""
    return {
        "layers": [layer.place.source.label for layer in layers],
        "values": root.plain(),
        "origins": {dotted(path): _entry(node) for path, node in leaves(root) if not _void(node)},
    }


def _void(node: Node) -> bool:
    return node.deleted and not node.chain


def _entry(node: Node) -> dict[str, Any]:
    return {**_state(node), "chain": [_state(n) for n in node.chain]}


def _state(node: Node) -> dict[str, Any]:
    return {"value": node.plain(), **origin(node.place), **({"deleted": True} if node.deleted else {})}


def explanation(path: tuple[str, ...], node: Node) -> list[str]:
    """`config explain`: one setting, every layer that set it, the last one in effect."""
    effect = f"{dotted(path)} is deleted" if node.deleted else f"{dotted(path)} = {flow_text(node.plain())}"
    states = [*node.chain, node]
    width = max(len(n.place.text) for n in states)
    lines = [effect]
    for state in states:
        value = "deleted" if state.deleted else flow_text(state.plain())
        mark = "   <- in effect" if state is node and len(states) > 1 else ""
        lines.append(f"  {state.place.text:<{width}}  {value}{mark}")
    return lines


def differences(left: Node, right: Node) -> Iterator[tuple[tuple[str, ...], Node | None, Node | None]]:
    """The settings that two resolved manifests do not share, in the order of the first."""
    one, two = ({p: n for p, n in leaves(side) if not n.deleted} for side in (left, right))
    for path in dict.fromkeys([*one, *two]):
        a, b = one.get(path), two.get(path)
        if _comparable(a) != _comparable(b):
            yield path, a, b


def _comparable(node: Node | None) -> tuple[str, Plain]:
    if node is None:
        return "", None
    value = node.plain()
    return type(value).__name__, flow_text(value)  # 1 and true are not the same, .nan is itself
