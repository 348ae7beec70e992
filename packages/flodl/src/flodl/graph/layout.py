"""Pictures as SVG without Graphviz: layers by networkx, which torch brings along, and ordered here for few crossings."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape

import networkx as nx  # type: ignore[import-untyped]

from flodl.graph.picture import Cluster, Node, Picture
from flodl.graph.style import CLUSTERS, EDGES, FONT, INK, LOOKS, TEXT, fill_of, lines_of

__all__ = ["to_svg"]

_LINE, _GAP, _RANK_GAP, _FRAME, _TITLE = 15.0, 26.0, 42.0, 9.0, 20.0
_SWEEPS = 24
Point = tuple[float, float]


@dataclass
class _Box:
    """A place in a layer: a node, or a bend of an edge that spans several layers (`node` is None)."""

    node: Node | None
    width: float
    height: float
    rank: int = 0
    x: float = 0.0  # the middle
    y: float = 0.0
    above: list[_Box] = field(default_factory=list)
    below: list[_Box] = field(default_factory=list)


def to_svg(picture: Picture) -> str:
    """The picture as an SVG document."""
    boxes = {n.id: _box(n) for n in picture.nodes}
    routes = _ranked(picture, boxes)
    layers: defaultdict[int, list[_Box]] = defaultdict(list)
    for box in [*boxes.values(), *(bend for route in routes.values() for bend in route[1:-1])]:
        layers[box.rank].append(box)
    _place([layers[rank] for rank in sorted(layers)], {c.id: c for c in picture.clusters})
    return _drawn(picture, boxes, routes)


def _box(node: Node) -> _Box:
    lines = lines_of(node)
    # Helvetica is on average a bit over half as wide as high.
    width = max(TEXT[kind][0] * 0.56 * len(text) for kind, text in lines) + 26
    return _Box(node, max(width, 48.0) + (16 if LOOKS[node.kind].shape == "hexagon" else 0), _LINE * len(lines) + 12)


def _ranked(picture: Picture, boxes: dict[str, _Box]) -> dict[int, list[_Box]]:
    """Give each box its layer; returns the boxes that each edge passes, by the edge's number."""
    graph = nx.DiGraph()
    graph.add_nodes_from(boxes)
    forward = [(i, e) for i, e in enumerate(picture.edges) if e.kind != "back"]
    graph.add_edges_from((e.source, e.target) for _, e in forward)
    for rank, generation in enumerate(nx.topological_generations(graph)):
        for name in generation:
            boxes[name].rank = rank
    # Inputs stand right above what first reads them.
    for name in boxes:
        if graph.in_degree(name) == 0 and graph.out_degree(name):
            boxes[name].rank = min(boxes[n].rank for n in graph.successors(name)) - 1
    routes = {}
    for number, edge in forward:
        source, target = boxes[edge.source], boxes[edge.target]
        route = [source]
        route += [_Box(None, 8.0, 0.0, rank) for rank in range(source.rank + 1, target.rank)]
        route.append(target)
        for upper, lower in itertools.pairwise(route):
            upper.below.append(lower)
            lower.above.append(upper)
        routes[number] = route
    return routes


def _place(layers: list[list[_Box]], clusters: dict[str, Cluster]) -> None:
    """Order each layer by the middle of its neighbours, then move the boxes under them as far as they fit."""

    def frames(box: _Box) -> tuple[str, ...]:
        found: tuple[str, ...] = ()
        name = box.node.cluster if box.node else ""
        while name:
            found, name = (name, *found), clusters[name].parent
        return found

    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        members: defaultdict[tuple[str, ...], list[_Box]] = defaultdict(list)
        for box in itertools.chain(*layers):
            members[frames(box)].append(box)
        for layer in layers if down else layers[::-1]:
            wish = {id(b): _middle(b.above if down else b.below, b.x) for b in layer}
            for box in layer:  # a frame inside another is kept narrow, so that nothing foreign comes to lie in it
                if len(frames(box)) > 1:
                    pull = 0.75 if sweep < _SWEEPS - 6 else 1.0
                    wish[id(box)] += pull * (_middle(members[frames(box)], box.x) - wish[id(box)])
            if sweep < _SWEEPS // 2:
                groups: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
                for box in layer:
                    for depth in range(1, len(frames(box)) + 1):
                        groups[frames(box)[:depth]].append(wish[id(box)])
                middle = {frame: sum(xs) / len(xs) for frame, xs in groups.items()}

                def order(
                    box: _Box, middle: dict[tuple[str, ...], float] = middle, wish: dict[int, float] = wish
                ) -> list[float]:
                    """What is framed together stays together, at every depth."""
                    return [*(middle[frames(box)[:d]] for d in range(1, len(frames(box)) + 1)), wish[id(box)]]

                layer.sort(key=order)
            _spread(layer, wish, frames)
    for cluster in clusters:
        _push_out(layers, [b for b in itertools.chain(*layers) if b.node and cluster in frames(b)])
    ranks: defaultdict[str, list[int]] = defaultdict(list)  # of what each frame holds
    for box in itertools.chain(*layers):
        for frame in frames(box):
            ranks[frame].append(box.rank)
    y, closing = 0.0, 0
    for layer in layers:
        opening = max(sum(min(ranks[f]) == b.rank for f in frames(b)) for b in layer)
        y += max(_RANK_GAP, 22 + _TITLE * opening + _FRAME * closing)
        closing = max(sum(max(ranks[f]) == b.rank for f in frames(b)) for b in layer)
        height = max(b.height for b in layer)
        for box in layer:
            box.y = y + height / 2
        y += height


def _middle(boxes: list[_Box], otherwise: float) -> float:
    return sum(b.x for b in boxes) / len(boxes) if boxes else otherwise


def _spread(layer: list[_Box], wish: dict[int, float], frames: Callable[[_Box], tuple[str, ...]]) -> None:
    """Put the boxes near their wishes, in order and without overlap: the mean of the placements from left and right."""

    def apart(a: _Box, b: _Box) -> float:
        # Two frames between them need room for their borders.
        return (a.width + b.width) / 2 + (
            _GAP if frames(a) == frames(b) or None in (a.node, b.node) else _GAP + 2 * _FRAME
        )

    left, right = [wish[id(b)] for b in layer], [wish[id(b)] for b in layer]
    for i in range(1, len(layer)):
        left[i] = max(left[i], left[i - 1] + apart(layer[i - 1], layer[i]))
    for i in range(len(layer) - 2, -1, -1):
        right[i] = min(right[i], right[i + 1] - apart(layer[i], layer[i + 1]))
    for box, a, b in zip(layer, left, right, strict=True):
        box.x = (a + b) / 2


def _push_out(layers: list[list[_Box]], inside: list[_Box]) -> None:
    """Move what stands between the sides of a frame but does not belong to it to the right of the frame."""
    if not inside:
        return
    members, ranks = {id(b) for b in inside}, {b.rank for b in inside}
    left, right = min(b.x - b.width / 2 for b in inside), max(b.x + b.width / 2 for b in inside)
    for layer in layers:
        edge = right + _GAP
        for box in layer if layer[0].rank in ranks else ():
            if id(box) not in members and box.node and box.x > left and box.x - box.width / 2 < edge:
                box.x = edge + box.width / 2
                edge = box.x + box.width / 2 + _GAP


def _drawn(picture: Picture, boxes: dict[str, _Box], routes: dict[int, list[_Box]]) -> str:
    hottest_ms = max((n.time_ms or 0.0 for n in picture.nodes), default=0.0)
    out: list[str] = []
    corners: list[Point] = []
    for cluster, (left, top, right, bottom) in _frames(picture, boxes):
        fill, border = CLUSTERS[cluster.kind]
        out.append(_rect((left, top), (right - left, bottom - top), fill, border, 8))
        out.append(_text((left + 8, top + 12), cluster.title, 10, border, "start", bold=True))
        corners += [(left, top), (right, bottom)]
    for number, edge in enumerate(picture.edges):
        source, target = boxes[edge.source], boxes[edge.target]
        colour, dashes = EDGES[edge.kind]
        if number in routes:
            points = [(b.x, b.y) for b in routes[number]]
            corners += points
            points[0], points[-1] = (
                (source.x, source.y + source.height / 2),
                (target.x, target.y - target.height / 2 - 2),
            )
            path = _curve(points)
            middle = points[len(points) // 2] if len(points) > 2 else _between(points[0], points[1])
        else:
            # back: out on the right, up beside what lies between, in on the right
            side = _GAP + max(b.x + b.width / 2 for b in boxes.values() if target.rank <= b.rank <= source.rank)
            start, end = (source.x + source.width / 2, source.y), (target.x + target.width / 2 + 2, target.y)
            if source is target:
                start, end = (start[0], start[1] + 7), (end[0], end[1] - 7)
            r = min(10.0, (start[1] - end[1]) / 2)
            path = (
                f"M{_at(start)} H{side - r:.1f} Q{_at((side, start[1]))} {_at((side, start[1] - r))} V{end[1] + r:.1f} "
                f"Q{_at((side, end[1]))} {_at((side - r, end[1]))} H{end[0]:.1f}"
            )
            middle = (side, (start[1] + end[1]) / 2)
            corners.append((side, start[1]))
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        out.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.2"{dashed} marker-end="url(#{edge.kind})"/>'
        )
        if edge.label:
            out.append(_text((middle[0] + 4, middle[1]), edge.label, 9, colour, "start"))
            corners.append((middle[0] + 8 * len(edge.label), middle[1]))
    for box in boxes.values():
        assert box.node is not None
        out += _node(box, box.node, fill_of(box.node, hottest_ms))
        corners += [(box.x - box.width / 2, box.y - box.height / 2), (box.x + box.width / 2, box.y + box.height / 2)]
    return _document(out, corners)


def _node(box: _Box, node: Node, fill: str) -> list[str]:
    look = LOOKS[node.kind]
    w, h = box.width, box.height
    if look.shape == "hexagon":
        xs = (-w / 2, -w / 2 + 12, w / 2 - 12, w / 2, w / 2 - 12, -w / 2 + 12)
        ys = (0, -h / 2, -h / 2, 0, h / 2, h / 2)
        points = " ".join(_at((box.x + x, box.y + y)) for x, y in zip(xs, ys, strict=True))
        shape = f'<polygon points="{points}" fill="{fill}" stroke="{look.border}" stroke-width="1.2"/>'
    else:
        shape = _rect((box.x - w / 2, box.y - h / 2), (w, h), fill, look.border, 6 if look.shape == "box" else h / 2)
    out = [shape]
    lines = lines_of(node)
    for i, (kind, text) in enumerate(lines):
        size, colour = TEXT[kind]
        out.append(
            _text((box.x, box.y + (i - (len(lines) - 1) / 2) * _LINE + size * 0.35), text, size, colour, "middle")
        )
    return out


def _frames(picture: Picture, boxes: dict[str, _Box]) -> list[tuple[Cluster, tuple[float, float, float, float]]]:
    """Left, top, right and bottom of each frame, outer ones first; a frame stands around its nodes and inner frames."""
    found: dict[str, tuple[float, float, float, float]] = {}
    for cluster in reversed(picture.clusters):  # inner ones come later in the list
        sides = [found[c.id] for c in picture.clusters if c.parent == cluster.id and c.id in found]
        for box in boxes.values():
            if box.node and box.node.cluster == cluster.id:
                w, h = box.width / 2, box.height / 2
                sides.append((box.x - w, box.y - h, box.x + w, box.y + h))
        if sides:
            left, top = min(s[0] for s in sides) - _FRAME, min(s[1] for s in sides) - _TITLE
            right, bottom = max(s[2] for s in sides) + _FRAME, max(s[3] for s in sides) + _FRAME
            found[cluster.id] = (left, top, max(right, left + 5.6 * len(cluster.title) + 20), bottom)
    return [(c, found[c.id]) for c in picture.clusters if c.id in found]


def _curve(points: list[Point]) -> str:
    """A smooth line through the points, upright at each."""
    path = f"M{_at(points[0])}"
    for (x1, y1), (x2, y2) in itertools.pairwise(points):
        bend = (y2 - y1) * 0.5
        path += f" C{_at((x1, y1 + bend))} {_at((x2, y2 - bend))} {_at((x2, y2))}"
    return path


def _between(a: Point, b: Point) -> Point:
    return (a[0] + b[0]) / 2, (a[1] + b[1]) / 2


def _at(point: Point) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _rect(corner: Point, size: Point, fill: str, border: str, radius: float) -> str:
    (x, y), (w, h) = corner, size
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{radius:.1f}" fill="{fill}" '
        f'stroke="{border}" stroke-width="1.2"/>'
    )


def _text(at: Point, text: str, size: int, colour: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    where = f'x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}"'
    return f'<text {where} font-size="{size}" fill="{colour}"{weight}>{escape(text)}</text>'


def _document(body: list[str], corners: list[Point]) -> str:
    left, top = min(x for x, _ in corners) - 16, min(y for _, y in corners) - 16
    width, height = max(x for x, _ in corners) + 16 - left, max(y for _, y in corners) + 16 - top
    arrows = "".join(
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0.5 L8,4 L0,7.5 z" fill="{colour}"/></marker>'
        for kind, (colour, _) in EDGES.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:.1f} {top:.1f} {width:.1f} {height:.1f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="{FONT}" color="{INK}">\n<defs>{arrows}</defs>\n'
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="white"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )
