"""A flow lowered to a plan: straight-line assignments, printed as Python and, for torch's own tools, as a `torch.fx.Graph`.

The plan is plain data, so a model pickles, copies and prints without torch.fx; the forward is generated from it once per
plan and shared by every copy of the model.
"""

from __future__ import annotations

import functools
import itertools
import keyword
import linecache
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from flodl.graph.parts import part_name

__all__ = ["Call", "Line", "Plan", "Ref", "add"]


class Ref(NamedTuple):
    """A variable of the forward."""

    name: str


class Call(NamedTuple):
    """A call of a child module (`target` is its attribute path, empty for the flow itself), of its method, or of a function.

    `args` and the values of `kwargs` are `Ref`, `Call`, constants, or tuples of these.
    """

    target: str | Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    method: str = ""


def add(*values: Any) -> Any:
    """The sum, from the left: in a plan one flat call, however many branches are merged; printed as `a + b + c`."""
    return functools.reduce(operator.add, values)


class Line(NamedTuple):
    """One assignment `out = value`; `out` is empty where nobody reads the value. `tags` name the value for observation."""

    step: int
    out: str
    value: Ref | Call
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """The forward of a flow, as data.

    `inputs`: names of the arguments; `lines`: assignments in order; `output`: the variable returned; `steps`: what each
    step is called in messages, by number from 1; `tags`: tag -> attribute path of the module that makes it ("" if none);
    `groups`: tag group -> its tags; `internal`: tags that only this flow can address.
    """

    inputs: tuple[str, ...]
    lines: tuple[Line, ...]
    output: str
    steps: tuple[str, ...]
    tags: dict[str, str]
    label: str = ""
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    internal: frozenset[str] = frozenset()
    _classes: dict[frozenset[str], type] = field(default_factory=dict, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.inputs, self.lines, self.output, self.steps, self.tags, self.label, self.groups, self.internal)
        return Plan, fields

    def source(self, observed: frozenset[str] = frozenset()) -> str:
        """The forward as Python."""
        return _Printer(self, observed).source

    def forward_class(self, base: type, observed: frozenset[str]) -> type:
        """A subclass of `base` whose `forward` is this plan's; one per plan and set of observed tags."""
        if observed not in self._classes:
            self._classes[observed] = _compile(self, base, observed)
        return self._classes[observed]

    def line_at(self, number: int, observed: frozenset[str]) -> Line | None:
        """The assignment that source line `number` (from 1) belongs to."""
        return _Printer(self, observed).lines.get(number)

    def fx_graph(self) -> fx.Graph:
        """The same forward as a `torch.fx.Graph`: input for `fx.Interpreter`, `fx.GraphModule` and passes over graphs."""
        graph = fx.Graph()
        env: dict[str, Any] = {name: graph.placeholder(name) for name in self.inputs}

        def lower(value: Any, name: str | None = None) -> Any:
            if isinstance(value, Ref):
                return env[value.name]
            if isinstance(value, Call):
                args = tuple(lower(a) for a in value.args)
                kwargs = {k: lower(v) for k, v in value.kwargs}
                if value.target is add:  # one node for each sum of two, from the left, as Python does it
                    total = args[0]
                    for i, arg in enumerate(args[1:], start=2):
                        out = name if i == len(args) else None
                        total = graph.create_node("call_function", operator.add, (total, arg), {}, name=out)
                    return total
                if callable(value.target):
                    return graph.create_node("call_function", value.target, args, kwargs, name=name)
                if value.method:
                    owner = graph.create_node("get_attr", value.target, (), {})
                    return graph.create_node("call_method", value.method, (owner, *args), kwargs, name=name)
                return graph.create_node("call_module", value.target, args, kwargs, name=name)
            if isinstance(value, tuple):
                return [lower(v) for v in value]
            return value

        for line in self.lines:
            if isinstance(line.value, Call) and line.value.target == "":
                continue  # housekeeping of the flow itself, see `Graph._start_state`: no part of the dataflow
            node = lower(line.value, line.out or None)
            if line.out:
                env[line.out] = node
        graph.output(env[self.output])
        return graph


class _Printer:
    """Prints a plan: `source`, the functions it needs as `globals`, and which assignment each source line belongs to."""

    def __init__(self, plan: Plan, observed: frozenset[str]) -> None:
        self.globals: dict[str, Any] = {"torch": torch}
        self.lines: dict[int, Line] = {}
        self._taken = {"self", "torch", *plan.inputs, *(line.out for line in plan.lines)}
        text = [f"def forward(self, {', '.join(plan.inputs)}):"]
        for line in plan.lines:
            assign = f"{line.out} = " if line.out else ""
            seen = [t for t in line.tags if t in observed]
            if seen and not line.out:
                assign = "_ = "
            self._step = line.step
            text.append(f"    {assign}{self._expression(line.value)}")
            self.lines[len(text)] = line
            for tag in seen:
                text.append(f"    self._records.see({tag!r}, {line.out or '_'})")
                self.lines[len(text)] = line
        text.append(f"    return {plan.output}")
        self.source = "\n".join(text) + "\n"

    def _expression(self, value: Any) -> str:
        if isinstance(value, Ref):
            return value.name
        if not isinstance(value, Call):
            if isinstance(value, tuple):
                return "[" + ", ".join(self._expression(v) for v in value) + "]"
            return repr(value)
        if value.target is add:
            return " + ".join(self._expression(a) for a in value.args)
        if value.target is operator.truediv:
            return f"({self._expression(value.args[0])}) / {self._expression(value.args[1])}"
        arguments = [self._expression(a) for a in value.args]
        arguments += [f"{k}={self._expression(v)}" for k, v in value.kwargs]
        return f"{self._callee(value)}({', '.join(arguments)})"

    def _callee(self, call: Call) -> str:
        if isinstance(call.target, str):
            # a path may hold numbers (`experts.0`), which attribute syntax cannot
            path = "".join(f".{p}" if p.isidentifier() else f"[{p}]" for p in call.target.split(".") if p)
            return f"self{path}.{call.method}" if call.method else f"self{path}"
        name = part_name(call.target)
        if getattr(torch, name, None) is call.target:
            return f"torch.{name}"
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"step_{self._step}"
        for candidate in itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2))):
            if self.globals.get(candidate) is call.target:
                return candidate
            if candidate not in self.globals and candidate not in self._taken:
                self.globals[candidate] = call.target
                return candidate
        raise AssertionError("unreachable")


_serial: Iterator[int] = itertools.count(1)


def _compile(plan: Plan, base: type, observed: frozenset[str]) -> type:
    printer = _Printer(plan, observed)
    # A file name of its own, known to linecache, so that tracebacks and debuggers show the generated line.
    filename = f"<flow {plan.label or 'model'} {next(_serial)}>"
    # Without `__name__`, torch.compile looks the functions up here and not in a module of that name.
    namespace: dict[str, Any] = dict(printer.globals)
    exec(compile(printer.source, filename, "exec"), namespace)
    linecache.cache[filename] = (len(printer.source), None, printer.source.splitlines(keepends=True), filename)
    forward: types.FunctionType = namespace["forward"]
    forward.__qualname__, forward.__module__ = f"{base.__qualname__}.forward", base.__module__
    made = type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__, "__doc__": base.__doc__})
    weakref.finalize(made, linecache.cache.pop, filename, None)
    return made
