"""YAML 1.2 (core schema) to nodes, from libyaml's events: `1e-3` is a number, `no` is a string, places are kept."""

from __future__ import annotations

import re

from yaml import YAMLError
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from flodl_cli.config.node import Node
from flodl_cli.config.scalars import parse_scalar
from flodl_cli.config.source import Place, Source
from flodl_cli.errors import CliError, Problem, nearest

try:
    from yaml import CBaseLoader as Parser
except ImportError:  # PyYAML without libyaml gives the same events, slower
    from yaml import BaseLoader as Parser  # type: ignore[assignment]

__all__ = ["parse_yaml", "parse_yaml_value"]

MAX_VALUES = 200_000  # with aliases written out: an anchor bomb ends here, before it takes memory
MAX_DEPTH = 64

_MERGE_TAGS = ("append", "prepend", "replace")
_CORE = "tag:yaml.org,2002:"


def parse_yaml(source: Source) -> Node:
    """The manifest in `source` as a map; every problem is a CliError with its place."""
    root = _Composer(source).document()
    if root is None:
        return Node({}, source.place())
    if not root.is_map:
        raise CliError(Problem(f"a manifest is a map of keys, this is {_kind(root)}", root.place))
    return root


def parse_yaml_value(source: Source) -> Node:
    """One value of any kind: what `--set` and the environment give."""
    root = _Composer(source).document()
    return root if root is not None else Node(None, source.place())


def _kind(node: Node) -> str:
    return "a list" if isinstance(node.data, list) else f"'{node.data}'"


class _Composer:
    """Turns the events of one document into nodes."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.anchors: dict[str, Node | None] = {}  # None while the anchored value is still being read
        self.total = 0
        self.depth = 0
        try:
            self.parser = Parser(source.text)
        except YAMLError as error:
            raise self.syntax(error) from None

    def document(self) -> Node | None:
        self.take(StreamStartEvent)
        if isinstance(self.next(), StreamEndEvent):
            return None
        root = self.value()
        self.take(DocumentEndEvent)
        if isinstance(event := self.next(), DocumentStartEvent):
            raise CliError(Problem("a second document starts here: a manifest is one document", self.at(event)))
        return root

    def next(self) -> Event:
        try:
            event = self.parser.get_event()
        except YAMLError as error:
            raise self.syntax(error) from None
        assert event is not None
        return event

    def take(self, kind: type[Event]) -> None:
        event = self.next()
        assert isinstance(event, kind), event

    def at(self, event: Event) -> Place:
        mark, end = event.start_mark, event.end_mark
        assert mark is not None
        assert end is not None
        width = end.column - mark.column if end.line == mark.line else 1
        return self.source.place(mark.line + 1, mark.column + 1, max(1, width))

    def value(self, given: Event | None = None) -> Node:
        event = self.next() if given is None else given
        if isinstance(event, AliasEvent):
            return self.alias(event)
        anchor = getattr(event, "anchor", None)
        if anchor:
            self.anchors[anchor] = None
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CliError(Problem(f"more than {MAX_DEPTH} levels deep", self.at(event)))
        if isinstance(event, ScalarEvent):
            node = self.scalar(event)
        elif isinstance(event, SequenceStartEvent):
            node = self.sequence(event)
        else:
            assert isinstance(event, MappingStartEvent), event
            node = self.mapping(event)
        self.depth -= 1
        if anchor:
            self.anchors[anchor] = node
        return node

    def alias(self, event: AliasEvent) -> Node:
        place = self.at(event)
        assert event.anchor is not None
        if event.anchor not in self.anchors:
            raise CliError(
                Problem(f"no anchor '&{event.anchor}' before this.{nearest(event.anchor, self.anchors)}", place)
            )
        node = self.anchors[event.anchor]
        if node is None:
            raise CliError(Problem(f"'*{event.anchor}' is inside the value that it names", place))
        self.count(node.size, place)
        return node

    def count(self, values: int, place: Place) -> None:
        self.total += values
        if self.total > MAX_VALUES:
            raise CliError(Problem(f"more than {MAX_VALUES} values with its aliases written out: refused", place))

    def tag(self, event: Event, allowed: tuple[str, ...]) -> str:
        """The event's own tag, without its prefix; an unknown one is an error."""
        tag = getattr(event, "tag", None)
        if tag in (None, "!"):
            return ""
        name = str(tag).removeprefix(_CORE).removeprefix("!")
        if name not in allowed and name in _MERGE_TAGS:
            wanted = "replaces a map" if name == "replace" else "extends a list: write a list behind it"
            raise CliError(Problem(f"!{name} {wanted}", self.at(event)))
        if name not in allowed:
            names = [f"!{a}" if a in _MERGE_TAGS else f"!!{a}" for a in allowed]
            raise CliError(Problem(f"unknown tag '!{name}'.{nearest('!' + name, names)}", self.at(event)))
        return name

    def scalar(self, event: ScalarEvent) -> Node:
        place = self.at(event)
        self.count(1, place)
        tag = self.tag(event, ("str", "int", "float", "bool", "null"))
        quoted = event.style in ("'", '"', "|", ">") or tag == "str"
        if quoted and tag in ("", "str"):
            return Node(event.value, place, quoted=True)
        value = parse_scalar(event.value)
        if tag == "float" and type(value) is int:
            value = float(value)
        if tag and type(value).__name__ != {"null": "NoneType"}.get(tag, tag):
            raise CliError(Problem(f"'{event.value}' is not {tag}", place))
        return Node(value, place)

    def sequence(self, event: SequenceStartEvent) -> Node:
        place, tag = self.at(event), self.tag(event, ("append", "prepend", "replace", "seq"))
        self.count(1, place)
        items = []
        while not isinstance(inner := self.next(), SequenceEndEvent):
            items.append(self.value(inner))
        return Node(items, place, tag=tag.replace("seq", ""), size=1 + sum(i.size for i in items))

    def mapping(self, event: MappingStartEvent) -> Node:
        place, tag = self.at(event), self.tag(event, ("replace", "map"))
        self.count(1, place)
        own: dict[str, Node] = {}
        merged: list[Node] = []
        keys: dict[str, Place] = {}
        while not isinstance(inner := self.next(), MappingEndEvent):
            key, at = self.key(inner)
            if key in keys:
                raise CliError(Problem(f"'{key}' is here twice: first in line {keys[key].line}", at))
            keys[key] = at
            value = self.value()
            if key == "<<" and not getattr(inner, "style", None):
                merged += self.merge_sources(value)
            else:
                own[key] = value._replace(key=at)
        data: dict[str, Node] = {}
        for node in reversed(merged):  # the first of several wins
            data.update(node.data)  # type: ignore[arg-type]
        if merged:  # own keys win, and stand where they were written
            data = {k: v for k, v in data.items() if k not in own}
        data.update(own)
        return Node(data, place, tag=tag.replace("map", ""), size=1 + sum(v.size for v in data.values()))

    def key(self, event: Event) -> tuple[str, Place]:
        if isinstance(event, AliasEvent):
            node = self.alias(event)
            if isinstance(node.data, str):
                return node.data, self.at(event)
        elif isinstance(event, ScalarEvent):
            if event.anchor:
                self.anchors[event.anchor] = Node(event.value, self.at(event), quoted=True)
            self.tag(event, ("str",))
            return event.value, self.at(event)
        raise CliError(Problem("a key is a word, not a list or a map", self.at(event)))

    def merge_sources(self, value: Node) -> list[Node]:
        nodes = value.data if isinstance(value.data, list) else [value]
        for node in nodes:
            if not node.is_map:
                raise CliError(Problem("`<<` takes a map or a list of maps", node.place))
        return nodes

    def syntax(self, error: YAMLError) -> CliError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        message = getattr(error, "problem", None) or str(error)
        if mark is None:
            character = re.search(r"#x([0-9a-f]+)", str(error))
            what = f"character U+{int(character.group(1), 16):04X} is not allowed in YAML" if character else message
            return CliError(Problem(what, self.source.place(1, 1)))
        lines = self.source.text.splitlines() or [""]
        number, column = mark.line + 1, mark.column + 1
        if number > len(lines):  # the end of the file
            number, column = len(lines), len(lines[-1]) + 1
        place, line = self.source.place(number, column), lines[number - 1]
        if "\t" in line[: mark.column + 1]:
            place = self.source.place(number, line.index("\t") + 1)
            return CliError(Problem("a tab: YAML is indented with spaces", place))
        quote = ' (between { } a reference must be in quotes: "${name}")' if "${" in line else ""
        return CliError(Problem(f"not valid YAML: {message}{quote}", place))
