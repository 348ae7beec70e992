"""Pictures in the DOT language of Graphviz."""

from __future__ import annotations

import shutil
import subprocess
from html import escape

from flodl.graph.picture import Picture
from flodl.graph.style import CLUSTERS, EDGES, INK, LOOKS, TEXT, fill_of, lines_of

__all__ = ["to_dot", "with_graphviz"]


def to_dot(picture: Picture) -> str:
    """The picture as DOT text."""
    hottest_ms = max((n.time_ms or 0.0 for n in picture.nodes), default=0.0)
    out = [
        "digraph flow {",
        '  graph [rankdir=TB, fontname="Helvetica", fontsize=11, nodesep=0.3, ranksep=0.35, pad=0.2, bgcolor="white"];',
        f'  node [fontname="Helvetica", fontcolor="{INK}", penwidth=1.2, height=0.35, margin="0.14,0.06"];',
        '  edge [fontname="Helvetica", fontsize=9, arrowsize=0.7, penwidth=1.2];',
    ]

    def frame(parent: str, indent: str) -> None:
        for node in picture.nodes:
            if node.cluster == parent:
                look = LOOKS[node.kind]
                style = "filled,rounded" if look.shape == "box" else "filled"
                margin = ', margin="0,0.03"' if look.shape == "hexagon" else ""  # it is wide by itself
                text = "<br/>".join(
                    f'<font point-size="{TEXT[kind][0]}" color="{TEXT[kind][1]}">{escape(line)}</font>'
                    for kind, line in lines_of(node)
                )
                out.append(
                    f'{indent}{node.id} [label=<{text}>, shape={look.shape}, style="{style}", '
                    f'fillcolor="{fill_of(node, hottest_ms)}", color="{look.border}"{margin}];'
                )
        for cluster in picture.clusters:
            if cluster.parent == parent:
                fill, border = CLUSTERS[cluster.kind]
                out.append(f"{indent}subgraph cluster_{cluster.id} {{")
                out.append(
                    f'{indent}  label=<<font color="{border}"><b>{escape(cluster.title)}</b></font>>; labeljust=l; '
                    f'style="rounded,filled"; fillcolor="{fill}"; color="{border}"; margin=12;'
                )
                frame(cluster.id, indent + "  ")
                out.append(f"{indent}}}")

    frame("", "  ")
    for edge in picture.edges:
        colour, dashes = EDGES[edge.kind]
        more = ', style="dashed"' if dashes else ""
        more += ", constraint=false, tailport=e, headport=e" if edge.kind == "back" else ""
        more += f', label=<<font color="{colour}"> {escape(edge.label)} </font>>' if edge.label else ""
        out.append(f'  {edge.source} -> {edge.target} [color="{colour}"{more}];')
    return "\n".join([*out, "}"]) + "\n"


def with_graphviz(dot: str) -> str | None:
    """The SVG that Graphviz makes of DOT text; None where Graphviz is not installed."""
    program = shutil.which("dot")
    if program is None:
        return None
    return subprocess.run(
        [program, "-Tsvg"], input=dot, capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout
