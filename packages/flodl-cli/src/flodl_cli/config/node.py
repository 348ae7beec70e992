"""The tree that manifests are read into: plain values, each with its place and what it overrode."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, Union

from flodl_cli.config.source import Place

__all__ = ["Node", "Plain", "Scalar", "plain_node"]

Scalar: TypeAlias = str | int | float | bool | None
Plain: TypeAlias = Union[Scalar, list["Plain"], dict[str, "Plain"]]  # noqa: UP007 (it names itself)


class Node(NamedTuple):
    """A scalar, a list of nodes or a map of nodes."""

    data: "Scalar | list[Node] | dict[str, Node]"
    place: Place
    key: Place | None = None  # where the key is under which a map holds this value
    tag: str = ""  # append, prepend or replace: how a layer wants to be merged
    quoted: bool = False  # written in quotes: a string, whatever it looks like
    deleted: bool = False  # a `null` removed it; kept so that its history can be told
    chain: "tuple[Node, ...]" = ()  # what it overrode, oldest first
    size: int = 1  # how many values it holds when aliases are written out

    @property
    def is_map(self) -> bool:
        return isinstance(self.data, dict)

    def entries(self) -> "dict[str, Node]":
        """The entries of a map that are not deleted; empty for anything else."""
        if not isinstance(self.data, dict) or self.deleted:
            return {}
        return {k: v for k, v in self.data.items() if not v.deleted}

    def items(self) -> "list[Node]":
        """The items of a list; empty for anything else."""
        return self.data if isinstance(self.data, list) else []

    def get(self, *path: str) -> "Node | None":
        """The node at a path of keys, or None where there is none or it was deleted."""
        node: Node | None = self
        for key in path:
            node = node.entries().get(key) if node is not None else None
        return None if node is None or node.deleted else node

    def plain(self) -> Plain:
        """The value without places."""
        if isinstance(self.data, dict):
            return {k: v.plain() for k, v in self.entries().items()}
        if isinstance(self.data, list):
            return [v.plain() for v in self.data]
        return self.data

    def walk(self, path: tuple[str, ...] = ()) -> "Iterator[tuple[tuple[str, ...], Node]]":
        """Every node under this one with its path, deleted ones included."""
        yield path, self
        if isinstance(self.data, dict):
            for key, value in self.data.items():
                yield from value.walk((*path, key))

    def with_data(self, data: "Scalar | list[Node] | dict[str, Node]") -> "Node":
        """This node with other contents."""
        return self._replace(data=data)


def plain_node(value: Plain, place: Place) -> Node:
    """A node for a plain value, every part of it at the same place."""
    if isinstance(value, dict):
        return Node({k: plain_node(v, place) for k, v in value.items()}, place, key=place)
    if isinstance(value, list):
        return Node([plain_node(v, place) for v in value], place, key=place)
    return Node(value, place, key=place)
