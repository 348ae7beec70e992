"""Checks recorded steps and lowers them to a plan and its modules."""

from __future__ import annotations

import keyword
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flodl.errors import FlowError, nearest
from flodl.graph.builder import FlowBuilder, Step
from flodl.graph.composites import make_composite
from flodl.graph.model import Graph
from flodl.graph.names import STREAM, check_names, snake_case, suggestion, usable
from flodl.graph.parts import REMEDY, misfit, takers
from flodl.graph.plan import Call, Line, Plan, Ref, add
from flodl.graph.state import StateCell

__all__ = ["lower"]

_MERGES = ("add", "mean", "cat")


def lower(builder: FlowBuilder, *, save_state: bool = False, around: tuple[FlowBuilder, ...] = ()) -> Graph:
    """The module that these steps describe, inside the flows `around`. Raises `FlowError` with the step's number and name."""
    lowering = _Lowering(builder, save_state, around)
    lowering.run()
    plan = Plan(
        inputs=(STREAM, *builder._inputs),
        lines=tuple(lowering.lines),
        output=lowering.stream,
        steps=tuple(str(s) for s in builder._steps),
        tags=lowering.tag_paths,
        label=builder._label,
        groups={s.group: tuple(f"{s.group}_{i}" for i in range(len(s.parts))) for s in builder._steps if s.group},
        internal=frozenset(t for s in builder._steps for t in s.internal),
    )
    return Graph._of_plan(plan, lowering.modules)


class _Lowering:
    """One pass over the steps; what it has made so far is in its attributes."""

    def __init__(self, builder: FlowBuilder, save_state: bool, around: tuple[FlowBuilder, ...]) -> None:
        self.around = (*around, builder)
        self.steps = builder._steps
        self.inputs = tuple(builder._inputs)
        self.label = builder._label
        self.save_state = save_state
        self.number = 1
        self.lines: list[Line] = []
        self.modules: dict[str, nn.Module] = {}
        self.tag_paths: dict[str, str] = {}
        self.stream = STREAM
        self._split: tuple[int, list[str]] | None = None  # the open split: its step and its branches' variables
        self._paths: dict[int, str] = {}  # id of a module -> attribute name: a module in two steps is one, tied
        self._built: dict[int, Graph] = {}  # id of a builder among the parts -> what it was built to
        self._counts: dict[str, int] = {}  # automatic names given so far, by their beginning
        check_names(self.label, self.inputs)
        self._made_at = self._tags()  # name -> the step that makes it (0 for an input)
        self._chosen = {*self._made_at, *(_label(part) for step in self.steps for part in _parts(step))}
        self._variables = {name: name for name in self.inputs}  # names that can be read here and now
        self._wanted = {name for step in self.steps for name in _reads(step)}
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
            if (step.tags or step.internal) and step.kind == "split":
                raise self._error("a split has several values; name them with tag_group")
            step = self._with_built_parts(step)
            extra = {keyword_name: self._read(name) for keyword_name, name in step.using.items()}
            getattr(self, f"_lower_{step.kind}")(step, extra)
        if self._split:
            self.number = self._split[0]
            raise self._error("this split is never merged")
        if self._state:
            self.lines.insert(0, Line(1, "", Call("", tuple(map(Ref, (STREAM, *self.inputs))), method="_start_state")))

    # -- one method per kind of step; `extra` holds the named values that the step reads, by keyword

    def _lower_flow(self, step: Step, extra: dict[str, Ref]) -> None:
        self._assign(self._call(step.parts[0], extra))

    _lower_through = _lower_flow

    def _lower_also(self, step: Step, extra: dict[str, Ref]) -> None:
        self._assign(Call(add, (Ref(self.stream), self._call(step.parts[0], extra))))

    def _lower_also_with(self, step: Step, extra: dict[str, Ref]) -> None:
        self._assign(Call(add, tuple(self._calls(step, extra, ("skip", "main")))))

    def _lower_fork(self, step: Step, extra: dict[str, Ref]) -> None:
        self._assign(self._call(step.parts[0], extra), goes_on=False)

    def _lower_split(self, step: Step, extra: dict[str, Ref]) -> None:
        if not step.parts:
            raise self._error("a split needs at least one branch")
        prefix = step.group or self._unlike_tags("branch", *(f"_{i}" for i in range(len(step.parts))))
        names = [f"{prefix}_{i}" for i in range(len(step.parts))]
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
        how, dim = step.options["how"], step.options["dim"]
        if isinstance(how, str) and extra:
            raise self._error(
                "this merge takes no named values: merge with a callable that does, or use them in a later step"
            )
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise self._error(f"dim={dim!r} is no dimension: give an integer")
        value: Any
        if how in ("add", "mean"):
            value = Call(add, branches) if len(branches) > 1 else branches[0]
            if how == "mean":
                value = Call(operator.truediv, (value, len(branches)))
        elif how == "cat":
            value = Call(torch.cat, (branches,), (("dim", dim),))
        elif isinstance(how, str):
            raise self._error(f"unknown merge {how!r}.{nearest(how, _MERGES)}")
        else:
            value = self._call(how, extra, args=branches)
        self._assign(value)

    def _lower_composite(self, step: Step, extra: dict[str, Ref]) -> None:
        try:
            module = make_composite(step, lambda parts: self._shares(parts, extra))
        except FlowError as error:
            raise self._error(str(error)) from None
        value = self._read(step.options["tag"]) if "tag" in step.options else Ref(self.stream)
        self._assign(Call(self._register(module, ""), (value,), tuple(extra.items())))

    _lower_loop_body = _lower_gate = _lower_switch = _lower_map = _lower_composite

    # -- building blocks

    def _shares(self, parts: dict[str, Any], extra: dict[str, Ref]) -> dict[str, tuple[str, ...]]:
        """Which named values each part gets, by its role: those that it takes; one part must take each."""
        taken = {name: takers(parts, name) for name in extra}
        for name, roles in taken.items():
            if not roles and len(parts) > 1:
                raise FlowError(f"none of its parts takes the keyword argument {name!r}; {REMEDY}")
        if len(parts) == 1:  # whether it takes the names is said by the check below
            taken = {name: [*parts] for name in extra}
        shares = {role: tuple(n for n in extra if role in taken[n]) for role in parts}
        for role, part in parts.items():
            if message := misfit(part, 1, shares[role]):
                raise FlowError(message)
        return shares

    def _with_built_parts(self, step: Step) -> Step:
        """The step with builders among its parts built where they stand (once, if one stands in two steps)."""
        if not any(isinstance(part, FlowBuilder) for part in step.parts):
            return step
        parts = []
        for part in step.parts:
            if isinstance(part, FlowBuilder):
                if any(part is flow for flow in self.around):
                    raise self._error("a flow cannot contain itself; copy() gives a flow of the steps so far")
                if id(part) not in self._built:
                    self._built[id(part)] = lower(part, save_state=self.save_state, around=self.around)
                part = self._built[id(part)]
            parts.append(part)
        return step.with_parts(tuple(parts))

    def _assign(self, value: Any, *, goes_on: bool = True) -> None:
        """Emit `variable = value` for the current step, under its tag where somebody reads the tag."""
        step = self.step
        tags = (*step.tags, *step.internal)
        wanted = [t for t in tags if t in self._wanted]
        name = self._variable(wanted[0]) if wanted else (STREAM if goes_on else "")
        self.lines.append(Line(self.number, name, value, tags))
        if goes_on:
            self.stream = name
        path = next((c.target for c in _calls_in(value) if isinstance(c.target, str)), "")
        for tag in tags:
            self._variables[tag] = name
            self.tag_paths[tag] = path
            self._write_state(tag, name)

    def _write_state(self, tag: str, variable: str) -> None:
        if tag in self._state:
            self.lines.append(Line(self.number, "", Call(self._cell(tag), (Ref(variable),), method="write")))

    def _variable(self, tag: str) -> str:
        return tag if usable(tag) else self._unlike_tags(f"{tag}_")

    def _cell(self, tag: str) -> str:
        return self._unlike_tags(tag, "_state")

    def _unlike_tags(self, name: str, *endings: str) -> str:
        """`name` with the endings (with one: including it), varied until none of them is a name that the user chose."""
        endings = endings or ("",)
        while any(name + ending in self._chosen for ending in endings):
            name += "_"
        return name + endings[0] if len(endings) == 1 else name

    def _read(self, name: str) -> Ref:
        """The variable of a named value; a name that is made later is read from its state cell."""
        if name not in self._made_at:
            raise self._error(f"unknown tag {name!r}.{nearest(name, self._made_at)}")
        if name not in self._variables and name not in self._state:
            self._state.add(name)
            self.modules[self._cell(name)] = StateCell(name, saved=self.save_state)
            read = Call(self._cell(name), (Ref(self.stream),), method="read")
            self.lines.append(Line(self.number, self._unlike_tags(name, "_previous"), read))
        return Ref(self._variables.get(name) or self._unlike_tags(name, "_previous"))

    def _calls(self, step: Step, extra: dict[str, Ref], roles: Sequence[str]) -> list[Call]:
        """Calls of several parts on the stream; a named value goes to each part that takes it, and one must."""
        try:
            shares = self._shares({str(i): part for i, part in enumerate(step.parts)}, extra)
        except FlowError as error:
            raise self._error(str(error)) from None
        return [
            self._call(part, {n: extra[n] for n in share}, role=role)
            for part, share, role in zip(step.parts, shares.values(), roles, strict=True)
        ]

    def _call(self, part: Any, extra: dict[str, Ref], *, args: tuple[Ref, ...] = (), role: str = "") -> Call:
        args = args or (Ref(self.stream),)
        if message := misfit(part, len(args), tuple(extra)):
            raise self._error(message)
        target = self._register(part, role) if isinstance(part, nn.Module) else part
        return Call(target, args, tuple(extra.items()))

    def _register(self, module: nn.Module, role: str) -> str:
        """The attribute name of a child: its label, else the step's tag (with its role), else its class in snake case."""
        if id(module) in self._paths:
            return self._paths[id(module)]
        label = _label(module)
        tag = next(iter((*self.step.tags, *self.step.internal)), "")
        chosen = label or (f"{tag}_{role}" if tag and role else tag or (role if self.step.group else ""))
        if chosen:
            if chosen in self.modules:
                raise self._error(f"two different parts are named {chosen!r}: give one another label or tag")
            if hasattr(Graph, chosen) or chosen == "training" or chosen.startswith("_"):
                raise self._error(f"{chosen!r} is an attribute of every model: choose another name")
        else:
            chosen = self._automatic_name(module)
        self.modules[chosen] = module
        self._paths[id(module)] = chosen
        return chosen

    def _automatic_name(self, module: nn.Module) -> str:
        base = "flow" if isinstance(module, Graph) else snake_case(module)
        if hasattr(Graph, base) or keyword.iskeyword(base):
            base += "_"
        while True:
            count = self._counts[base] = self._counts.get(base, 0) + 1
            name = base if count == 1 else f"{base}_{count}"
            if name not in self.modules and name not in self._chosen:
                return name

    # -- checks

    def _tags(self) -> dict[str, int]:
        made = dict.fromkeys(self.inputs, 0)
        for number, step in enumerate(self.steps, start=1):
            self.number = number
            group = [f"{step.group}_{i}" for i in range(len(step.parts))] if step.group else []
            for name in (*step.tags, *step.internal, *group):
                if not usable(name, reserved=()):
                    raise self._error(f"tag {name!r} cannot be passed as a keyword argument; {suggestion(name)}")
                if name in made:
                    where = f"step {made[name]}" if made[name] else "an input"
                    raise self._error(f"the name {name!r} is taken by {where}")
                made[name] = number
        self.number = 1
        return made

    def _error(self, message: str) -> FlowError:
        where = f" of flow '{self.label}'" if self.label else ""
        return FlowError(f"step {self.number}{where}, {self.step}: {message}")


def _calls_in(value: Any) -> list[Call]:
    """The calls of an expression, outermost first."""
    if not isinstance(value, Call):
        return []
    return [value, *(c for part in value.args for c in _calls_in(part))]


def _parts(step: Step) -> tuple[Any, ...]:
    """The parts of a step, with what merges."""
    return (*step.parts, step.options["how"]) if step.kind == "merge" else step.parts


def _label(part: Any) -> str:
    """The label of a flow, built or not; empty for other parts."""
    if isinstance(part, FlowBuilder):
        return part._label
    return part.label if isinstance(part, Graph) else ""


def _reads(step: Step) -> list[str]:
    """The names that a step reads."""
    return [*step.using.values(), *([step.options["tag"]] if "tag" in step.options else [])]
