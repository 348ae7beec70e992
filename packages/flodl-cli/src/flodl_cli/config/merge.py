"""One layer over another: maps merge at any depth, everything else replaces, `null` deletes, tags say otherwise.

What a layer overrides or deletes stays in the tree as history (`Node.chain`, `Node.deleted`), so that it can be told.
"""

from __future__ import annotations

from flodl_cli.config.node import Node
from flodl_cli.errors import CliError, Problem

__all__ = ["merge", "settle"]


def merge(base: Node, over: Node, name: str = "") -> Node:
    """`base` with the layer `over` on top. `name` is the path of keys, for messages."""
    if over.data is None:
        return delete(base, over)
    if over.tag in ("append", "prepend"):
        return _extended(base, over, name)
    if over.tag == "replace":
        return merge(delete(base, over), over._replace(tag=""), name)
    if isinstance(base.data, dict) and isinstance(over.data, dict):
        data = dict(base.data)
        for key, value in over.data.items():
            inner = f"{name}.{key}" if name else key
            data[key] = merge(data[key], value, inner) if key in data else settle(value)
        heading = over if base.deleted else base
        return heading._replace(data=data, deleted=False, chain=base.chain, tag="")
    return settle(over)._replace(chain=_history(base))


def settle(node: Node) -> Node:
    """A value with nothing below it: its nulls have nothing to delete, its tags nothing to extend."""
    if node.data is None:
        return Node(None, node.place, node.key, deleted=True)
    if isinstance(node.data, dict):
        return node._replace(data={k: settle(v) for k, v in node.data.items()}, tag="")
    return node._replace(tag="") if node.tag else node


def delete(base: Node, by: Node) -> Node:
    """`base` and all under it marked as deleted by the `null` (or `!replace`) at `by`."""
    if isinstance(base.data, dict):
        return base._replace(data={k: delete(v, by) for k, v in base.data.items()}, deleted=True, place=by.place)
    if base.deleted:
        return base
    return Node(None, by.place, by.key, deleted=True, chain=_history(base))


def _history(node: Node) -> tuple[Node, ...]:
    if node.deleted and not node.chain and node.data is None:
        return ()  # a null that deleted nothing
    return (*node.chain, node._replace(chain=()))


def _extended(base: Node, over: Node, name: str) -> Node:
    if base.deleted:
        return settle(over)._replace(chain=_history(base))
    if not isinstance(base.data, list):
        what = "a map" if base.is_map else f"'{base.data}'"
        raise CliError(Problem(f"!{over.tag} extends a list, and {name} is {what} ({base.place.text})", over.place))
    first, second = (base, over) if over.tag == "append" else (over, base)
    items = [*first.items(), *second.items()]
    return Node(items, over.place, over.key, chain=_history(base))
