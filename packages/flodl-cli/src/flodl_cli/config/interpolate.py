"""`${env:NAME}`, `${env:NAME:default}` and `${path.to.key}` in the strings of a merged manifest; `$${` is a plain `${`.

A value that is one reference keeps the type of what it refers to; a variable is read as YAML unless the reference is in
quotes. In the shell lines of commands a reference needs a dot or `env:`; any other `${NAME}` is the shell's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flodl_cli.config.emit import scalar_text
from flodl_cli.config.node import Node
from flodl_cli.config.paths import dotted, split_dotted
from flodl_cli.config.scalars import parse_scalar
from flodl_cli.errors import CliError, Problem, nearest

__all__ = ["Located", "interpolate"]

Located = tuple[tuple[str, ...], Problem]  # a problem and the path of the setting that it is in

_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}")


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

    def tree(self, node: Node, path: tuple[str, ...]) -> Node:
        if node.deleted and not node.is_map:
            return node
        if isinstance(node.data, dict):
            data = {k: self.tree(v, (*path, k)) for k, v in node.data.items()}
            same = all(data[k] is v for k, v in node.data.items())
            return node if same else node.with_data(data)
        if isinstance(node.data, list):
            items = [self.tree(v, (*path, str(i))) for i, v in enumerate(node.data)]
            same = all(a is b for a, b in zip(items, node.data, strict=True))
            return node if same else node.with_data(items)
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
            whole = _REFERENCE.fullmatch(text)
            if whole and whole.group(1) is not None and self.is_ours(whole.group(1), path):
                found = self.reference(whole.group(1), node, typed=not node.quoted)
                return found._replace(place=node.place, key=node.key, chain=node.chain, tag="", deleted=False)
            return node.with_data(_REFERENCE.sub(lambda m: self.text(m, node, path), text))
        except CliError as error:
            self.problems += [(path, p) for p in error.problems]
            return node
        finally:
            self.open.pop()

    def is_ours(self, name: str, path: tuple[str, ...]) -> bool:
        shell_line = len(path) == 3 and path[0] == "commands" and path[2] in ("run", "append")
        return not shell_line or "." in name or name.startswith("env:")

    def text(self, match: re.Match[str], node: Node, path: tuple[str, ...]) -> str:
        name = match.group(1)
        if name is None:
            return "${"
        if not self.is_ours(name, path):
            return match.group(0)
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
            text = self.environ.get(variable, default if has_default else None)
            if text is None:
                message = (
                    f"the environment variable {variable} is not set; ${{env:{variable}:default}} would give a default"
                )
                raise CliError(Problem(message, node.place))
            return Node(parse_scalar(text) if typed else text, node.place)
        path = split_dotted(name.strip())
        if path in self.open:
            cycle = [*self.open[self.open.index(path) :], path]
            raise CliError(Problem("a cycle: " + " -> ".join(dotted(p) for p in cycle), node.place))
        return self.tree(self.lookup(path, name, node), path)

    def lookup(self, path: tuple[str, ...], name: str, node: Node) -> Node:
        found = self.root
        for key in path:
            inner = found.entries()
            if key not in inner:
                raise CliError(Problem(f"${{{name}}}: there is no setting '{key}'.{nearest(key, inner)}", node.place))
            found = inner[key]
        return found
