"""`${env:NAME}`, `${env:NAME:default}` and `${path.to.key}` in the strings of a merged manifest; `$${` is a plain `${`.

A default may hold references itself.

A value that is one reference keeps the type of what it refers to; a variable is read as YAML unless the reference is in
quotes. In the shell lines of commands a reference needs a dot or `env:`; any other `${NAME}` is the shell's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from flodl_cli.config.emit import scalar_text
from flodl_cli.config.node import Node
from flodl_cli.config.paths import dotted, split_dotted
from flodl_cli.config.scalars import parse_scalar
from flodl_cli.errors import CliError, Problem, nearest

__all__ = ["Located", "interpolate"]

Located = tuple[tuple[str, ...], Problem]  # a problem and the path of the setting that it is in

# References to references grow by doubling: what comes out is limited, not what goes in.
MAX_TEXT = 2**20  # characters of one value
MAX_TOTAL = 2**23  # characters of all of them
MAX_VALUES = 200_000  # that references to maps and lists add
MAX_DEPTH = 60

_SIGN = re.compile(r"\$\$\{|\$\{")
_BRACE = re.compile(r"[{}]")


def interpolate(root: Node, environ: Mapping[str, str]) -> tuple[Node, list[Located]]:
    """The tree with all references replaced, and what went wrong, each with its path."""
    resolver = _Resolver(root, environ)
    return resolver.tree(root, ()), resolver.problems


class _Resolver:
    def __init__(self, root: Node, environ: Mapping[str, str]) -> None:
        self.root, self.environ = root, environ
        self.problems: list[Located] = []
        self.done: dict[tuple[str, ...], Node] = {}
        self.open: list[tuple[str, ...]] = []
        self.characters = self.values = 0

    def tree(self, node: Node, path: tuple[str, ...]) -> Node:
        if node.deleted and not node.is_map:
            return node
        if isinstance(node.data, dict):
            data = {k: self.tree(v, (*path, k)) for k, v in node.data.items()}
            same = all(data[k] is v for k, v in node.data.items())
            return node if same else node._replace(data=data, size=1 + sum(v.size for v in data.values()))
        if isinstance(node.data, list):
            items = [self.tree(v, (*path, str(i))) for i, v in enumerate(node.data)]
            same = all(a is b for a, b in zip(items, node.data, strict=True))
            return node if same else node._replace(data=items, size=1 + sum(v.size for v in items))
        if not isinstance(node.data, str) or "${" not in node.data:
            return node
        if path not in self.done:
            self.done[path] = self.value(node, path)
        return self.done[path]

    def value(self, node: Node, path: tuple[str, ...]) -> Node:
        text = node.data
        assert isinstance(text, str)
        self.open.append(path)
        try:
            if len(self.open) > MAX_DEPTH:
                raise CliError(Problem(f"references more than {MAX_DEPTH} deep", node.place))
            pieces = list(self.pieces(text, node, path))
            if len(pieces) == 1 and pieces[0][1]:
                found = self.reference(pieces[0][0], node, typed=not node.quoted)
                self.count(found, node)
                return found._replace(place=node.place, key=node.key, chain=node.chain, tag="", deleted=False)
            return node.with_data(self.text(pieces, node))
        except CliError as error:
            self.problems += [(path, p) for p in error.problems]
            return node
        finally:
            self.open.pop()

    def count(self, found: Node, node: Node) -> None:
        self.values += found.size
        if self.values > MAX_VALUES:
            raise CliError(
                Problem(f"more than {MAX_VALUES} values with its references written out: refused", node.place)
            )

    def pieces(self, text: str, node: Node, path: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
        """The text in parts: plain ones, and the names of references (True)."""
        shell_line = len(path) == 3 and path[0] == "commands" and path[2] in ("run", "append")
        at = 0
        for sign in _SIGN.finditer(text):
            if sign.start() < at:  # inside a default
                continue
            if sign.group() == "$${":
                yield text[at : sign.start()] + "${", False
                at = sign.end()
                continue
            end = _closing(text, sign.end())
            name = text[sign.end() : end] if end is not None else text[sign.end() :]
            if shell_line and not name.startswith("env:") and ("." not in name or "{" in name or end is None):
                continue  # the shell's own
            if end is None:
                raise CliError(Problem("a `${` without its `}`; `$${` stands for a plain `${`", node.place))
            if "{" in name and not name.startswith("env:"):
                raise CliError(Problem(f"${{{name}}}: the name of a setting holds no other reference", node.place))
            if at < sign.start():
                yield text[at : sign.start()], False
            yield name, True
            at = end + 1
        if at < len(text):
            yield text[at:], False

    def text(self, pieces: list[tuple[str, bool]], node: Node) -> str:
        """The parts put together."""
        parts, size = [], 0
        for piece, is_name in pieces:
            part = self.as_text(piece, node) if is_name else piece
            parts.append(part)
            size += len(part)
            self.characters += len(part)
            if size > MAX_TEXT or self.characters > MAX_TOTAL:
                size_in_words = "1 MB" if size > MAX_TEXT else "8 MB in all"
                message = f"more than {size_in_words} with its references written out: refused"
                raise CliError(Problem(message, node.place))
        return "".join(parts)

    def as_text(self, name: str, node: Node) -> str:
        found = self.reference(name, node, typed=False)
        if isinstance(found.data, (dict, list)):
            kind = "a map" if found.is_map else "a list"
            raise CliError(
                Problem(f"${{{name}}} is {kind}: it can only be a whole value, not a part of a text", node.place)
            )
        return found.data if isinstance(found.data, str) else scalar_text(found.data)

    def reference(self, name: str, node: Node, *, typed: bool) -> Node:
        if name.startswith("env:"):
            variable, has_default, default = name[4:].partition(":")
            text = self.environ.get(variable)
            if text is None and has_default:
                # The path is that of no shell line: what stands in a default is fdl's.
                text = self.text(list(self.pieces(default, node, ())), node)
            if text is None:
                message = (
                    f"the environment variable {variable} is not set; ${{env:{variable}:default}} would give a default"
                )
                raise CliError(Problem(message, node.place))
            return Node(parse_scalar(text) if typed else text, node.place)
        try:
            target = split_dotted(name.strip())
        except CliError as error:
            raise CliError(*(Problem(f"${{{name}}}: {p.message}", node.place) for p in error.problems)) from None
        if target in self.open:
            cycle = [*self.open[self.open.index(target) :], target]
            raise CliError(Problem("a cycle: " + " -> ".join(dotted(p) for p in cycle), node.place))
        return self.tree(self.lookup(target, name, node), target)

    def lookup(self, path: tuple[str, ...], name: str, node: Node) -> Node:
        found = self.root
        for key in path:
            inner = found.entries()
            if key not in inner:
                raise CliError(Problem(f"${{{name}}}: there is no setting '{key}'.{nearest(key, inner)}", node.place))
            found = inner[key]
        return found


def _closing(text: str, start: int) -> int | None:
    """Where the brace is closed that was opened before `start`."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return brace.start()
    return None
