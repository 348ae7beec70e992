"""Colours and shapes of pictures: one place for both layouts."""

from __future__ import annotations

from typing import NamedTuple

from flodl.graph.picture import Node

__all__ = ["CLUSTERS", "EDGES", "FONT", "INK", "LOOKS", "TEXT", "Look", "fill_of", "lines_of"]

FONT = "Helvetica, Arial, sans-serif"
INK = "#1f2933"


class Look(NamedTuple):
    """How a kind of node is drawn; `shape` is a name of Graphviz."""

    shape: str
    fill: str
    border: str


LOOKS = {
    "input": Look("oval", "#e3e8ee", "#7b8794"),
    "output": Look("oval", "#e3e8ee", "#7b8794"),
    "layer": Look("box", "#d6e8fb", "#3b82c4"),
    "activation": Look("box", "#fdf0c9", "#d9a520"),
    "function": Look("box", "#f4ecfb", "#9b6fc9"),
    "join": Look("oval", "#d9f2e3", "#38a169"),
    "route": Look("hexagon", "#fde2d8", "#dd6b47"),
    "state": Look("cylinder", "#e0e0fa", "#6366c9"),
}
#: Size and colour of a line of text, by its kind.
TEXT = {"title": (12, INK), "detail": (10, "#52606d"), "tag": (10, "#7c3aed"), "time": (10, "#9b1c1c")}
#: Background and border of the frames.
CLUSTERS = {
    "flow": ("#f7f9fb", "#b8c4d0"),
    "loop": ("#f1faf8", "#5fb3a1"),
    "gate": ("#fef6f2", "#e0957c"),
    "switch": ("#fef6f2", "#e0957c"),
    "map": ("#fbf8ff", "#b79ad9"),
}
#: Colour and dashes (as SVG writes them; empty for a solid line).
EDGES = {"flow": ("#52606d", ""), "using": ("#9b6fc9", "5,3"), "back": ("#38a169", "5,3")}


def lines_of(node: Node) -> list[tuple[str, str]]:
    """The lines of text in a node, each with its kind: title, detail, tag or time."""
    lines = [("title", node.title)]
    if node.detail:
        lines.append(("detail", node.detail))
    if node.tags:
        lines.append(("tag", " ".join(f"#{t}" for t in node.tags)))
    if node.time_ms is not None:
        lines.append(("time", f"{node.time_ms:.3g} ms"))
    return lines


def fill_of(node: Node, hottest_ms: float) -> str:
    """The fill of a node: its kind's, or its heat where times were measured (white to red, by the square root)."""
    if node.time_ms is None or hottest_ms <= 0:
        return LOOKS[node.kind].fill if hottest_ms <= 0 else "#f5f5f5"
    heat = (node.time_ms / hottest_ms) ** 0.5
    cold, hot = (255, 250, 235), (250, 128, 100)
    return "#" + "".join(f"{round(c + (h - c) * heat):02x}" for c, h in zip(cold, hot, strict=True))
