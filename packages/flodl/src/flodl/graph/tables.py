"""Summaries as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from flodl.graph.explain import shape_of
from flodl.graph.parts import part_name
from flodl.graph.paths import plan_of
from flodl.graph.shapes import faked

__all__ = ["count", "param_summary", "summary", "table", "tree_summary"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows as aligned columns under a head; the columns with the numbers `right` are aligned to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *map(line, rows)])


def count(module: nn.Module, *, trained: bool = False) -> int:
    """Number of parameters, each tied one once; of the trained ones only, with `trained`."""
    return sum(p.numel() for p in module.parameters() if not is_lazy(p) and (p.requires_grad or not trained))


def param_summary(root: nn.Module) -> str:
    """One row for each child of the root that has parameters."""
    rows = []
    for name, child in root.named_children():
        parameters = list(child.parameters())
        if parameters:
            kinds = sorted({f"{str(p.dtype).removeprefix('torch.')} {p.device}" for p in parameters})
            rows.append(
                (name, part_name(child), f"{count(child):,}", f"{count(child, trained=True):,}", ", ".join(kinds))
            )
    rows.append(("total", "", f"{count(root):,}", f"{count(root, trained=True):,}", ""))
    return table(("part", "kind", "parameters", "trained", "on"), rows, right=(2, 3))


def tree_summary(root: nn.Module, depth: int) -> str:
    """The tree down to `depth` levels below the root."""
    lines = [_described(root)]

    def below(module: nn.Module, indent: str, level: int) -> None:
        children = list(module.named_children())
        if level == depth and children:
            lines.append(f"{indent}└─ ... {sum(1 for _ in module.modules()) - 1} parts")
            return
        for i, (name, child) in enumerate(children):
            last = i == len(children) - 1
            lines.append(f"{indent}{'└─' if last else '├─'} {name}: {_described(child)}")
            below(child, indent + ("   " if last else "│  "), level + 1)

    below(root, "", 0)
    return "\n".join(lines)


def _described(module: nn.Module) -> str:
    parts = [part_name(module)]
    plan = plan_of(module)
    if plan is not None and (tags := [t for t in plan.tags if t not in plan.internal]):
        parts.append(f"tags {', '.join(tags)}")
    n = count(module)
    if n:
        frozen = not any(p.requires_grad for p in module.parameters())
        parts.append(f"{n:,} parameters" + (", frozen" if frozen else ""))
    return " · ".join(parts)


def summary(root: nn.Module, example: tuple[Any, ...]) -> str:
    """One row for each module: where it stands, what it is, the shape of its output on fake copies of `example`."""
    shapes: dict[int, str] = {}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        shapes[id(module)] = shape_of(output)

    if example:
        handles = [m.register_forward_hook(note) for m in root.modules()]
        try:
            with faked(root, *example) as fake:
                root(*fake)
        finally:
            for handle in handles:
                handle.remove()
    rows = []
    for path, module in root.named_modules():
        own = sum(p.numel() for p in module.parameters(recurse=False) if not is_lazy(p))
        frozen = own and not any(p.requires_grad for p in module.parameters(recurse=False))
        depth = path.count(".") + 1 if path else 0
        name = "  " * depth + (path.rpartition(".")[2] or "(model)")
        row = [name, part_name(module), f"{own:,}" if own else "", "frozen" if frozen else ""]
        rows.append([*row[:2], shapes.get(id(module), ""), *row[2:]] if example else row)
    head = ["module", "kind", *(["output"] if example else []), "parameters", ""]
    total, trained = count(root), count(root, trained=True)
    held = sum(t.numel() * t.element_size() for t in {*root.parameters(), *root.buffers()} if not is_lazy(t))
    footer = f"{total:,} parameters, {trained:,} trained, {held / 2**20:.2f} MiB with buffers"
    return f"{table(head, rows, right=(3 if example else 2,))}\n{footer}"
