"""The steps that are modules of ours around their parts: loops, gates, switches, maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from flodl.errors import FlowError
from flodl.graph.halting import AdaptiveLoop, LearnedHalt
from flodl.graph.loops import ConditionalLoop, Loop
from flodl.graph.maps import Map
from flodl.graph.parts import Function
from flodl.graph.routing import Gate, Switch

if TYPE_CHECKING:
    from flodl.graph.builder import Step

__all__ = ["make_composite"]

#: Says which of the step's named values each part takes, by the part's place in the composite; checks the parts.
Share = Callable[[dict[str, Any]], dict[str, tuple[str, ...]]]


def make_composite(step: Step, share: Share) -> nn.Module:
    """The module of a step. Raises `FlowError` for a step that is not said completely."""
    return {"loop_body": _loop, "gate": _gate, "switch": _switch, "map": _map}[step.kind](step, share)


def _loop(step: Step, share: Share) -> nn.Module:
    body, emits = step.parts[0], step.options["emits"]
    if "times" not in step.options:
        raise FlowError("how often? Add .for_n(n), .while_cond(condition, max) or .until_cond(condition, max)")
    times = step.options["times"]
    if not _is_count(times):
        raise FlowError(f"a loop runs at least once, not {times!r} times: give a whole number")
    if len(step.parts) == 1:
        share({"body": body})
        return Loop(_child(body), times, emits)
    condition, kind = step.parts[1], step.options["loop"]
    takes = share({"body": body, "condition": condition})
    if not isinstance(condition, LearnedHalt):
        parts = (_child(body), _child(condition))
        return ConditionalLoop(*parts, kind, times, step.options["per_sample"], takes, emits)
    if kind == "while":
        raise FlowError("LearnedHalt says when to stop: use until_cond")
    return AdaptiveLoop(_child(body), condition, times, takes, emits)


def _gate(step: Step, share: Share) -> nn.Module:
    router, *experts = step.parts
    takes = share({"router": router, **_numbered("experts", experts)})
    return Gate(_child(router), [_child(e) for e in experts], takes)


def _switch(step: Step, share: Share) -> nn.Module:
    selector, *branches = step.parts
    takes = share({"selector": selector, **_numbered("branches", branches)})
    return Switch(_child(selector), [_child(b) for b in branches], step.options["per_sample"], takes)


def _map(step: Step, share: Share) -> nn.Module:
    over, slices = step.options.get("over"), step.options.get("slices", 0)
    if over is None:
        raise FlowError("over what? Add .each(), .over(tag) or .slices(n)")
    if over == "slices" and not _is_count(slices):
        raise FlowError(f"a value has at least one slice, not {slices!r}: give a whole number")
    share({"body": step.parts[0]})
    return Map(_child(step.parts[0]), slices=slices, batched=step.options.get("batched", False))


def _child(part: Any) -> nn.Module:
    return part if isinstance(part, nn.Module) else Function(part)


def _is_count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 1


def _numbered(name: str, parts: Sequence[Any]) -> dict[str, Any]:
    if not parts:
        raise FlowError("there is nothing to choose from: give at least one part")
    return {f"{name}.{i}": part for i, part in enumerate(parts)}
