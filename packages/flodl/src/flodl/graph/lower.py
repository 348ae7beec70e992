"""Checks recorded steps and lowers them to a plan and its modules."""

from __future__ import annotations

import inspect
import keyword
import operator
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from flodl.errors import FlowError, nearest
from flodl.graph.builder import FlowBuilder, Step, part_name
from flodl.graph.model import Graph
from flodl.graph.plan import Call, Line, Plan, Ref
from flodl.graph.state import StateCell

__all__ = ["lower"]

STREAM = "x"  # the variable of the value that flows, and the name of the first input
_MERGES = ("add", "mean", "cat")


def lower(steps: Sequence[Step], inputs: tuple[str, ...], label: str) -> Graph:
    """The module that these steps describe. Raises `FlowError` with the step's number and name."""
    lowering = _Lowering(list(steps), inputs, label)
    lowering.run()
    plan = Plan(
        inputs=(STREAM, *inputs),
        lines=tuple(lowering.lines),
        output=lowering.stream,
        steps=tuple(str(s) for s in steps),
        tags=lowering.tag_paths,
        label=label,
    )
    return Graph._of_plan(plan, lowering.modules)


class _Lowering:
    """One pass over the steps; what it has made so far is in its attributes."""

    def __init__(self, steps: list[Step], inputs: tuple[str, ...], label: str) -> None:
        self.steps = steps
        self.label = label
        self.number = 1
        self.lines: list[Line] = []
        self.modules: dict[str, nn.Module] = {}
        self.tag_paths: dict[str, str] = {}
        self.stream = STREAM
        self._split: tuple[int, list[str]] | None = None  # the open split: its step and its branches' variables
        self._paths: dict[int, str] = {}  # id of a module -> attribute name: a module in two steps is one, tied
        self._check_names(inputs, label)
        self._made_at = self._tags(inputs)  # name -> the step that makes it (0 for an input)
        self._variables = {name: name for name in inputs}  # names that can be read here and now
        self._wanted = {name for step in steps for name in step.using.values()}
        self._state: set[str] = set()  # names read before the step that makes them

    @property
    def step(self) -> Step:
        return self.steps[self.number - 1]

    def run(self) -> None:
        for number, step in enumerate(self.steps, start=1):
            self.number = number
            if self._split and step.kind != "merge":
                raise self._error(f"the split of step {self._split[0]} is not merged yet")
            if step.group and step.kind != "split":
                raise self._error("tag_group names the branches of a split; use tag here")
            if step.tags and step.kind == "split":
                raise self._error("a split has several values; name them with tag_group")
            extra = self._references(step)
            getattr(self, f"_lower_{step.kind}", self._lower_unknown)(step, extra)
        if self._split:
            self.number = self._split[0]
            raise self._error("this split is never merged")

    # -- one method per kind of step; `extra` holds the named values that the step reads, by keyword

    def _lower_flow(self, step: Step, extra: dict[str, Ref]) -> None:
        self._assign(self._call(step.parts[0], extra))

    _lower_through = _lower_flow

    def _lower_also(self, step: Step, extra: dict[str, Ref]) -> None:
        self._assign(Call(operator.add, (Ref(self.stream), self._call(step.parts[0], extra))))

    def _lower_also_with(self, step: Step, extra: dict[str, Ref]) -> None:
        self._assign(Call(operator.add, tuple(self._calls(step, extra, ("skip", "main")))))

    def _lower_fork(self, step: Step, extra: dict[str, Ref]) -> None:
        self._assign(self._call(step.parts[0], extra), goes_on=False)

    def _lower_split(self, step: Step, extra: dict[str, Ref]) -> None:
        if not step.parts:
            raise self._error("a split needs at least one branch")
        names = [f"{step.group or 'branch'}_{i}" for i in range(len(step.parts))]
        calls = self._calls(step, extra, names if step.group else [""] * len(names))
        for name, call in zip(names, calls, strict=True):
            self.lines.append(Line(self.number, name, call, (name,) if step.group else ()))
            if step.group:
                self._variables[name] = name
                self.tag_paths[name] = call.target if isinstance(call.target, str) else ""
                self._write_state(name, name)
        self._split = (self.number, names)

    def _lower_merge(self, step: Step, extra: dict[str, Ref]) -> None:
        if not self._split:
            raise self._error("there is no split to merge")
        branches = tuple(Ref(name) for name in self._split[1])
        self._split = None
        how = step.options["how"]
        value: Any
        if how in ("add", "mean"):
            value = branches[0]
            for branch in branches[1:]:
                value = Call(operator.add, (value, branch))
            if how == "mean":
                value = Call(operator.truediv, (value, len(branches)))
        elif how == "cat":
            value = Call(torch.cat, (branches,), (("dim", step.options["dim"]),))
        elif isinstance(how, str):
            raise self._error(f"unknown merge {how!r}.{nearest(how, _MERGES)}")
        else:
            value = self._call(how, extra, args=branches)
        self._assign(value)

    def _lower_unknown(self, step: Step, extra: dict[str, Ref]) -> None:
        raise self._error(f"unknown kind of step {step.kind!r}")

    # -- building blocks

    def _assign(self, value: Any, *, goes_on: bool = True) -> None:
        """Emit `variable = value` for the current step, under its tag where somebody reads the tag."""
        step = self.step
        wanted = [t for t in step.tags if t in self._wanted]
        name = self._variable(wanted[0]) if wanted else (STREAM if goes_on else "")
        self.lines.append(Line(self.number, name, value, step.tags))
        if goes_on:
            self.stream = name
        path = next((c.target for c in _calls_in(value) if isinstance(c.target, str)), "")
        for tag in step.tags:
            self._variables[tag] = name
            self.tag_paths[tag] = path
            self._write_state(tag, name)

    def _write_state(self, tag: str, variable: str) -> None:
        if tag in self._state:
            self.lines.append(Line(self.number, "", Call(_cell(tag), (Ref(variable),), method="write")))

    def _variable(self, tag: str) -> str:
        return f"{tag}_" if tag in (STREAM, "self", "torch") else tag

    def _references(self, step: Step) -> dict[str, Ref]:
        """The values that the step reads by name; a name that is made later is read from its state cell."""
        extra = {}
        for keyword_name, name in step.using.items():
            if name not in self._made_at:
                raise self._error(f"unknown tag {name!r}.{nearest(name, self._made_at)}")
            if name not in self._variables and name not in self._state:
                self._state.add(name)
                self.modules[_cell(name)] = StateCell(name)
                previous = f"{name}_previous"
                self.lines.append(Line(self.number, previous, Call(_cell(name), (Ref(self.stream),), method="read")))
            extra[keyword_name] = Ref(self._variables.get(name, f"{name}_previous"))
        return extra

    def _calls(self, step: Step, extra: dict[str, Ref], roles: Sequence[str]) -> list[Call]:
        """Calls of several parts on the stream; a named value goes to each part that takes it, and one must."""
        for name in extra:
            if not any(_takes(part, name) for part in step.parts):
                raise self._error(f"none of its parts takes the keyword argument {name!r}")
        return [
            self._call(part, {n: r for n, r in extra.items() if _takes(part, n)}, role=role)
            for part, role in zip(step.parts, roles, strict=True)
        ]

    def _call(self, part: Any, extra: dict[str, Ref], *, args: tuple[Ref, ...] = (), role: str = "") -> Call:
        args = args or (Ref(self.stream),)
        if isinstance(part, FlowBuilder):
            part = part.build()
        self._check_part(part, len(args), extra)
        target = self._register(part, role) if isinstance(part, nn.Module) else part
        return Call(target, args, tuple(extra.items()))

    def _register(self, module: nn.Module, role: str) -> str:
        """The attribute name of a child: its label, else the step's tag (with its role), else its class in snake case."""
        if id(module) in self._paths:
            return self._paths[id(module)]
        label = module.label if isinstance(module, Graph) else ""
        tag = self.step.tags[0] if self.step.tags else ""
        chosen = label or (f"{tag}_{role}" if tag and role else tag or (role if self.step.group else ""))
        if chosen:
            if chosen in self.modules:
                raise self._error(f"two different parts are named {chosen!r}: give one another label or tag")
            if hasattr(Graph, chosen) or chosen == "training":
                raise self._error(f"{chosen!r} is an attribute of every model: choose another name")
        else:
            chosen = self._automatic_name(module)
        self.modules[chosen] = module
        self._paths[id(module)] = chosen
        return chosen

    def _automatic_name(self, module: nn.Module) -> str:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(module).__name__)
        base = words.lower().strip("_") or "module"
        if hasattr(Graph, base) or keyword.iskeyword(base):
            base += "_"
        name, count = base, 1
        while name in self.modules or name in self._made_at:
            count += 1
            name = f"{base}_{count}"
        return name

    # -- checks

    def _check_names(self, inputs: tuple[str, ...], label: str) -> None:
        if label and ("." in label or not label.isidentifier()):
            raise FlowError(
                f"label {label!r}: dots separate the levels of a path and a label is one level; {_identifier(label)}"
            )
        for name in inputs:
            if not name.isidentifier() or keyword.iskeyword(name) or name in (STREAM, "self", "torch"):
                raise FlowError(f"input {name!r} cannot be the name of an argument; {_identifier(name)}")
            if inputs.count(name) > 1:
                raise FlowError(f"input {name!r} is named twice")

    def _tags(self, inputs: tuple[str, ...]) -> dict[str, int]:
        made = dict.fromkeys(inputs, 0)
        for number, step in enumerate(self.steps, start=1):
            self.number = number
            group = [f"{step.group}_{i}" for i in range(len(step.parts))] if step.group else []
            for name in (*step.tags, *group):
                if not name.isidentifier() or keyword.iskeyword(name):
                    raise self._error(f"tag {name!r} cannot be passed as a keyword argument; {_identifier(name)}")
                if name in made:
                    where = f"step {made[name]}" if made[name] else "an input"
                    raise self._error(f"the name {name!r} is taken by {where}")
                made[name] = number
        self.number = 1
        return made

    def _check_part(self, part: Any, positional: int, extra: dict[str, Ref]) -> None:
        if isinstance(part, type):
            raise self._error(f"{part.__name__} is a class: write {part.__name__}(...)")
        if not callable(part):
            raise self._error(f"{part!r} is not callable on tensors")
        if isinstance(part, nn.Module):
            for name, parameter in part.named_parameters():
                if not isinstance(parameter, UninitializedParameter) and parameter.numel() == 0:
                    raise self._error(
                        f"parameter {name!r} has shape {tuple(parameter.shape)}: a layer without weights learns nothing"
                    )
        signature = _signature(part)
        if signature is None:
            return
        try:
            signature.bind(*range(positional), **dict.fromkeys(extra))
        except TypeError as error:
            takes = ", ".join(signature.parameters)
            hint = "" if extra else "; name further values with .using(...)"
            raise self._error(f"{part_name(part)} takes ({takes}): {error}{hint}") from None

    def _error(self, message: str) -> FlowError:
        where = f" of flow '{self.label}'" if self.label else ""
        return FlowError(f"step {self.number}{where}, {self.step}: {message}")


def _calls_in(value: Any) -> list[Call]:
    """The calls of an expression, outermost first."""
    if not isinstance(value, Call):
        return []
    return [value, *(c for part in value.args for c in _calls_in(part))]


def _cell(tag: str) -> str:
    return f"{tag}_state"


def _identifier(name: str) -> str:
    """A suggestion for a name that is not usable."""
    made = re.sub(r"\W", "_", name).strip("_") or "name"
    made = (
        f"_{made}" if made[0].isdigit() else f"{made}_" if keyword.iskeyword(made) or made in ("self", STREAM) else made
    )
    return f"use {made!r}"


def _signature(part: Any) -> inspect.Signature | None:
    """How the part is called; None where Python cannot tell (some built-in functions)."""
    if isinstance(part, FlowBuilder):
        part = part.build()
    try:
        return inspect.signature(part.forward if isinstance(part, nn.Module) else part)
    except (TypeError, ValueError):
        return None


def _takes(part: Any, name: str) -> bool:
    signature = _signature(part)
    if signature is None:
        return True
    kinds = inspect.Parameter
    found = signature.parameters.get(name)
    if found is not None and found.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
        return True
    return any(p.kind is kinds.VAR_KEYWORD for p in signature.parameters.values())
