"""A model as a picture: nodes, edges and clusters, before any layout."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from flodl.graph.halting import AdaptiveLoop
from flodl.graph.loops import ConditionalLoop, Loop
from flodl.graph.maps import Map
from flodl.graph.parts import Function, part_name
from flodl.graph.paths import plan_of
from flodl.graph.plan import Call, Line, Plan, Ref, add
from flodl.graph.routing import Gate, Switch
from flodl.graph.state import StateCell

__all__ = ["Cluster", "Edge", "Node", "Picture", "describe", "kind_of", "picture_of_flow"]


@dataclass
class Node:
    """`kind` decides shape and colour; `key` finds its measured time."""

    id: str
    title: str
    kind: str
    detail: str = ""
    tags: tuple[str, ...] = ()
    cluster: str = ""
    key: str = ""
    time_ms: float | None = None


@dataclass
class Edge:
    """`kind`: `flow` of values, `using` for named values and choices, `back` for what a later round or call gets."""

    source: str
    target: str
    kind: str = "flow"
    label: str = ""


@dataclass
class Cluster:
    """A frame around nodes; `parent` is the frame around it, or empty."""

    id: str
    title: str
    kind: str
    parent: str = ""


@dataclass
class Picture:
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)

    def add(self, title: str, kind: str, cluster: str = "", **more: Any) -> Node:
        """A new node with an id of its own."""
        node = Node(f"n{len(self.nodes)}", title, kind, cluster=cluster, **more)
        self.nodes.append(node)
        return node

    def frame(self, title: str, kind: str, parent: str) -> str:
        """A new cluster; returns its id."""
        self.clusters.append(Cluster(f"c{len(self.clusters)}", title, kind, parent))
        return self.clusters[-1].id

    def link(self, source: Node, target: Node, kind: str = "flow", label: str = "") -> None:
        """An edge, once for each pair and kind."""
        edge = Edge(source.id, target.id, kind, label)
        if edge not in self.edges:
            self.edges.append(edge)


def picture_of_flow(flow: nn.Module) -> Picture:
    """The picture of a built flow: its steps, with the flows and composites among them opened up."""
    plan = plan_of(flow)
    assert plan is not None
    picture = Picture()
    inputs = {name: picture.add(name, "input") for name in plan.inputs}
    last = _Drawer(picture, flow, plan, "", "").draw(inputs)
    picture.link(last, picture.add("output", "output"))
    return picture


class _Drawer:
    """Draws one flow into a picture, inside `cluster`; `path` is where the flow stands in the tree."""

    def __init__(self, picture: Picture, flow: nn.Module, plan: Plan, path: str, cluster: str) -> None:
        self.picture, self.flow, self.plan, self.path, self.cluster = picture, flow, plan, path, cluster
        self._made: dict[str, Node] = {}
        self._calls = 0

    def draw(self, inputs: dict[str, Node]) -> Node:
        """Draw all lines; returns the node of the output."""
        self._made = dict(inputs)
        cells: dict[str, Node] = {}
        for number, line in enumerate(self.plan.lines):
            call = line.value
            if isinstance(call, Call) and call.target == "":
                continue
            if isinstance(call, Call) and call.method in ("read", "write"):
                assert isinstance(call.target, str)
                cell = cells.get(call.target)
                if cell is None:
                    cell = cells[call.target] = self.picture.add(_tag_of(self.flow, call.target), "state", self.cluster)
                if call.method == "read":
                    self._made[line.out] = cell
                else:
                    self.picture.link(self._value(call.args[0], number), cell, "back")
                continue
            node = self._line(line, number)
            if line.out:
                self._made[line.out] = node
        return self._made[self.plan.output]

    def _line(self, line: Line, number: int) -> Node:
        self._calls = 0
        before = len(self.picture.nodes)
        node = self._value(line.value, number)
        if line.tags and len(self.picture.nodes) > before:
            shown = [t for t in line.tags if not node.title.startswith(f"{t}: ")]
            node.tags = (*node.tags, *shown)
        return node

    def _value(self, value: Any, number: int) -> Node:
        if isinstance(value, Ref):
            return self._made[value.name]
        assert isinstance(value, Call)
        key = f"{self.path}/{number}.{self._calls}"
        self._calls += 1
        sources = [self._value(a, number) for a in self._operands(value)]
        named = [(name, self._value(v, number)) for name, v in value.kwargs if isinstance(v, (Ref, Call))]
        if isinstance(value.target, str):
            module = self.flow.get_submodule(value.target)
            path = f"{self.path}.{value.target}" if self.path else value.target
            return draw_module(self.picture, module, path, self.cluster, sources, named, key, value.target)
        title, kind = _function(value.target)
        node = self.picture.add(title, kind, self.cluster, key=key)
        for source in sources:
            self.picture.link(source, node)
        for name, source in named:
            self.picture.link(source, node, "using", name)
        return node

    def _operands(self, call: Call) -> list[Ref | Call]:
        """What a call is applied to; `a + b + c` is one sum, `(a + b) / 2` one mean."""
        operands: list[Ref | Call] = []
        for arg in call.args:
            if isinstance(arg, Call) and call.target in (add, operator.truediv) and arg.target is add:
                self._calls += 1
                operands += self._operands(arg)
            elif isinstance(arg, (Ref, Call)):
                operands.append(arg)
            elif isinstance(arg, tuple):
                operands += [a for a in arg if isinstance(a, (Ref, Call))]
        return operands


def draw_module(
    picture: Picture,
    module: nn.Module,
    path: str,
    cluster: str,
    sources: list[Node],
    named: list[tuple[str, Node]],
    key: str,
    name: str,
) -> Node:
    """Draw the call of one module; returns the node that has the result."""

    def part(child: nn.Module, where: str, inside: str, takes: tuple[str, ...] | None = None) -> Node:
        given = [(n, node) for n, node in named if takes is None or n in takes]
        return draw_module(picture, child, f"{path}.{where}", inside, sources, given, f"{path}.{where}", where)

    plan = plan_of(module)
    if plan is not None:
        role, _, number = name.partition(".")
        # A body is framed by its loop or map; an expert or a branch is one of several.
        shown = plan.label or {"experts": f"expert {number}", "branches": f"branch {number}", "body": ""}.get(
            role, name
        )
        inside = picture.frame(shown, "flow", cluster) if shown else cluster
        inputs = dict(zip(plan.inputs, sources, strict=False)) | dict(named)
        return _Drawer(picture, module, plan, path, inside).draw(inputs)
    if isinstance(module, Gate):
        inside = picture.frame(f"{name}: weighted experts", "gate", cluster)
        router = part(module.router, "router", inside, module._takes["router"])
        router.kind = "route"
        mix = picture.add("Σ w·expert", "join", inside)
        picture.link(router, mix, "using", "weights")
        for i, expert in enumerate(module.experts):
            picture.link(part(expert, f"experts.{i}", inside, module._takes[f"experts.{i}"]), mix)
        return mix
    if isinstance(module, Switch):
        each = "each sample has its own" if module.per_sample else "one runs"
        inside = picture.frame(f"{name}: {each}", "switch", cluster)
        selector = part(module.selector, "selector", inside, module._takes["selector"])
        selector.kind = "route"
        chosen = picture.add("chosen", "join", inside)
        picture.link(selector, chosen, "using", "choice")
        for i, branch in enumerate(module.branches):
            picture.link(part(branch, f"branches.{i}", inside, module._takes[f"branches.{i}"]), chosen)
        return chosen
    if isinstance(module, Map):
        what = f"{module.slices} slices" if module.slices else "each row"
        inside = picture.frame(f"{name}: {what}" + (", batched" if module.batched else ""), "map", cluster)
        return part(module.body, "body", inside)
    if isinstance(module, (Loop, ConditionalLoop, AdaptiveLoop)):
        return _draw_loop(picture, module, path, name, cluster, part)
    if isinstance(module, StateCell):
        return picture.add(module.tag, "state", cluster)
    node = picture.add(_title(module, name), kind_of(module), cluster, detail=describe(module), key=key)
    for source in sources:
        picture.link(source, node)
    for keyword, source in named:
        picture.link(source, node, "using", keyword)
    return node


def _draw_loop(
    picture: Picture,
    loop: Loop | ConditionalLoop | AdaptiveLoop,
    path: str,
    name: str,
    cluster: str,
    part: Callable[..., Node],
) -> Node:
    times = f"{loop.n} times" if isinstance(loop, Loop) else f"at most {loop.max} times"
    each = ", each sample by itself" if not isinstance(loop, Loop) and getattr(loop, "per_sample", True) else ""
    inside = picture.frame(f"{name}: {times}{each}", "loop", cluster)
    first = len(picture.nodes)
    body = (
        part(loop.body, "body", inside)
        if isinstance(loop, Loop)
        else part(loop.body, "body", inside, loop._takes["body"])
    )
    entry = picture.nodes[first] if len(picture.nodes) > first else body
    if isinstance(loop, Loop):
        picture.link(body, entry, "back", f"×{loop.n}")
        return body
    title = f"{getattr(loop, 'kind', 'until')} {part_name(loop.condition)}"
    condition = picture.add(title, "route", inside, detail=describe(loop.condition), key=f"{path}.condition")
    picture.link(body, condition)
    picture.link(condition, entry, "back", "again")
    return condition


def kind_of(module: nn.Module) -> str:
    """`layer` for what has weights, `function` for a function, `activation` for the rest."""
    if isinstance(module, Function):
        return "function"
    return "layer" if next(module.parameters(), None) is not None else "activation"


def describe(module: nn.Module) -> str:
    """The sizes of a layer, short."""
    for i, o in (
        ("in_features", "out_features"),
        ("in_channels", "out_channels"),
        ("input_size", "hidden_size"),
        ("num_embeddings", "embedding_dim"),
    ):
        if hasattr(module, i) and hasattr(module, o):
            kernel = getattr(module, "kernel_size", ())
            size = ", " + "×".join(map(str, kernel)) if isinstance(kernel, tuple) and kernel else ""
            return f"{getattr(module, i)} → {getattr(module, o)}{size}"
    for size in ("num_features", "num_channels", "normalized_shape"):
        if hasattr(module, size):
            return str(getattr(module, size)).strip("(,)")
    if isinstance(module, nn.Sequential):
        return " · ".join(part_name(child) for child in module)
    if isinstance(module, Function) or list(module.children()):
        return ""
    text = module.extra_repr()
    if not any(c.isdigit() for c in text):
        return ""
    return text if len(text) <= 24 else f"{text[:23]}…"


def _title(module: nn.Module, name: str) -> str:
    kind = "λ" if part_name(module) == "lambda" else part_name(module)
    last = name.rpartition(".")[2]
    plain = last.replace("_", "").rstrip("0123456789").lower()
    automatic = (
        plain == kind.lower().rstrip("0123456789")
        or last.isdigit()
        or last in ("body", "router", "selector", "condition")
    )
    return kind if automatic else f"{last}: {kind}"


def _function(target: Callable[..., Any]) -> tuple[str, str]:
    if target is add:
        return "+", "join"
    if target is operator.truediv:
        return "mean", "join"
    if target is torch.cat:
        return "cat", "join"
    name = part_name(target)
    return ("λ" if name == "lambda" else name), "function"


def _tag_of(flow: nn.Module, target: str) -> str:
    cell = flow.get_submodule(target)
    assert isinstance(cell, StateCell)
    return cell.tag
