"""Manifests as they were parsed the last time: a start that finds them so loads no YAML reader.

The cache holds the file's whole text and is taken only for the same text, so it can never be out of date.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flodl_cli import __version__
from flodl_cli.cache import slot
from flodl_cli.config.node import Node
from flodl_cli.config.source import Place, Source

__all__ = ["parsed_manifest"]

_MOST_VALUES = 20_000


def parsed_manifest(source: Source, environ: Mapping[str, str]) -> Node:
    """The manifest in `source`."""
    place = slot(environ, "manifests", str(source.path), [__version__, source.text])
    kept = place.load() if place else None
    if kept is not None:
        return _node(kept, source)
    from flodl_cli.config.yaml import parse_yaml

    node = parse_yaml(source)
    if place and node.size <= _MOST_VALUES:
        place.store(_data(node))
    return node


def _data(node: Node) -> list[Any]:
    data: Any = node.data
    if isinstance(data, dict):
        data = {k: _data(v) for k, v in data.items()}
    elif isinstance(data, list):
        data = [_data(v) for v in data]
    at, key = node.place, node.key
    own = [at.line, at.column, at.width]
    return [data, own, [key.line, key.column, key.width] if key else None, node.tag, node.quoted, node.size]


def _node(kept: list[Any], source: Source) -> Node:
    data, at, key, tag, quoted, size = kept
    if isinstance(data, dict):
        data = {k: _node(v, source) for k, v in data.items()}
    elif isinstance(data, list):
        data = [_node(v, source) for v in data]
    place = Place(source, *at)
    return Node(data, place, Place(source, *key) if key else None, tag, quoted, size=size)
