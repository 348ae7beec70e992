"""Paths in a tree of modules: attribute names joined by dots, where the last part may be a tag of a flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from flodl.errors import FlowError, nearest
from flodl.graph.plan import Plan

__all__ = ["Place", "check_path", "find_module", "find_value", "flows"]


class Place(NamedTuple):
    """Where a value is made: a tag of a flow, a name that a loop's body emits, or the output of any module.

    `owner` is the flow, the loop or the module; `name` the tag, the emitted name, or empty; `loops` are the loops around,
    outermost first, each with the path of the value as seen from there.
    """

    kind: str
    owner: nn.Module
    name: str
    path: str
    loops: tuple[tuple[nn.Module, str], ...] = ()


def plan_of(module: nn.Module) -> Plan | None:
    """The plan of a flow; None for other modules."""
    plan = module.__dict__.get("_plan")
    return plan if isinstance(plan, Plan) else None


def flows(root: nn.Module) -> Iterator[tuple[str, nn.Module, Plan]]:
    """Every flow in the tree with its path, the root first."""
    for path, module in root.named_modules():
        plan = plan_of(module)
        if plan is not None:
            yield path, module, plan


def check_path(path: object) -> None:
    """Raises `FlowError` for a path that is no text: nothing must not stand for the whole model by accident."""
    if not isinstance(path, str):
        raise FlowError(f"a path is text such as 'encoder.scan', not {path!r}; the empty text is the whole model")


def find_module(root: nn.Module, path: str) -> nn.Module:
    """The module at `path`; for a tag, the module that makes the value. Raises `FlowError` with the nearest valid names."""
    module = root
    check_path(path)
    for depth, part in enumerate(path.split(".") if path else []):
        found = None if depth and _is_internal(module, part) else module._modules.get(part)
        if found is None:
            made_by = _tags(module, inside=depth == 0).get(part)
            if not made_by:
                raise _unknown(
                    path, part, module, depth, "is made by a function, not by a module" if made_by == "" else ""
                )
            found = module.get_submodule(made_by)
        module = found
    return module


def find_value(root: nn.Module, path: str) -> Place:
    """Where the value named `path` is made.

    A bare name that the root does not have may be a tag or an emitted name anywhere below, if only one part has it.
    Raises `FlowError` with the nearest valid names.
    """
    check_path(path)
    parts = path.split(".")
    module, loops = root, list[tuple[nn.Module, str]]()
    for depth, part in enumerate(parts):
        if "_trace" in module.__dict__:
            loops.append((module, ".".join(parts[depth:])))
        if depth == len(parts) - 1:
            if part in _tags(module, inside=depth == 0):
                return Place("tag", module, part, path, tuple(loops))
            if part in getattr(module, "emits", ()):
                return Place("emitted", module, part, path, tuple(loops))
        found = None if depth and _is_internal(module, part) else module._modules.get(part)
        if found is None:
            below = [p for p in _value_paths(root) if p.endswith(f".{path}")] if depth == 0 else []
            if len(below) == 1:
                return find_value(root, below[0])
            if below:
                raise FlowError(f"'{path}' is ambiguous: write one of {', '.join(map(repr, below))}")
            raise _unknown(path, part, module, depth)
        module = found
    return Place("module", module, "", path, tuple(loops))


def _value_paths(root: nn.Module) -> Iterator[str]:
    """The paths of all tags that can be addressed from the root, and of all names that loops emit."""
    for path, module in root.named_modules():
        prefix = f"{path}." if path else ""
        for name in (*_tags(module, inside=not path), *getattr(module, "emits", ())):
            yield prefix + name


def _tags(module: nn.Module, *, inside: bool) -> dict[str, str]:
    """The tags of a flow that can be addressed: from inside all of them, else not the internal ones."""
    plan = plan_of(module)
    if plan is None:
        return {}
    return {t: p for t, p in plan.tags.items() if inside or t not in plan.internal}


def _is_internal(module: nn.Module, name: str) -> bool:
    plan = plan_of(module)
    return plan is not None and name in plan.internal


def _unknown(path: str, part: str, module: nn.Module, depth: int, reason: str = "") -> FlowError:
    where = f" in '{'.'.join(path.split('.')[:depth])}'" if depth else ""
    if _is_internal(module, part):
        reason = "is internal to its flow"
    names = [n for n, m in module._modules.items() if m is not None and not (depth and _is_internal(module, n))]
    names += [*_tags(module, inside=depth == 0), *getattr(module, "emits", ())]
    return FlowError(
        f"path '{path}': {part!r}{where} {reason or f'does not exist.{nearest(part, dict.fromkeys(names))}'}"
    )
