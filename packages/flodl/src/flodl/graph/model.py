"""`Graph`: what a flow becomes, an ordinary `nn.Module` whose forward is generated Python."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree

from flodl.errors import FlowError, StepError, nearest
from flodl.graph.drawing import Drawn
from flodl.graph.explain import explain, shape_of
from flodl.graph.observation import Observed
from flodl.graph.plan import Plan
from flodl.graph.records import Records
from flodl.graph.shapes import faked, find_zeros, follow_batch
from flodl.graph.state import StateCell, Zero, zero_of
from flodl.graph.tree import Tree
from flodl.graph.view import View

__all__ = ["Graph"]


class Graph(Tree, Observed, Drawn, nn.Module):
    """A built flow. `forward` takes the flow's inputs, `print(model.code)` shows it, child modules carry the flow's names.

    It nests, copies, pickles, moves, compiles and exports like any module. Made by `FlowBuilder.build()`; `Graph.of(module)`
    gives the same methods for a module that is no flow.
    """

    _plan: Plan
    _observed: frozenset[str]
    _zeros: dict[Any, dict[str, Zero]]  # by the shapes of the inputs: the carried state at first

    @staticmethod
    def _of_plan(plan: Plan, modules: dict[str, nn.Module]) -> Graph:
        self = _blank(plan, frozenset())
        nn.Module.__init__(self)
        self._plan, self._observed = plan, frozenset()
        self._zeros = {}
        self._records, self._hooks = Records(), {}
        for name, module in modules.items():
            self.add_module(name, module)
        return self

    @staticmethod
    def of(module: nn.Module) -> Graph | View:
        """Tree, observation and drawing for any module, with no change to it; a flow is returned as it is."""
        return module if isinstance(module, Graph) else View(module)

    @property
    def _root(self) -> nn.Module:
        return self

    @property
    def label(self) -> str:
        """The flow's label, empty without one."""
        return self._plan.label

    @property
    def code(self) -> str:
        """The source of `forward`."""
        return self._plan.source(self._observed)

    def fx_graph(self) -> fx.Graph:
        """The forward as a `torch.fx.Graph`, for `fx.GraphModule(model, model.fx_graph())`, interpreters and passes."""
        return self._plan.fx_graph()

    def check(self, *inputs: Any, **named: Any) -> Any:
        """Run the flow on fake tensors shaped like the inputs; returns the output's shape (nested as the output is).

        Nothing is computed and nothing changes. Raises `StepError` that names the first step that does not fit, with
        the shapes.
        """
        with faked(self, inputs, named) as (fake_inputs, fake_named):
            return shape_of(self(*fake_inputs, **fake_named))

    # -- state carried between calls

    def detach_state(self) -> None:
        """Cut the gradient history of all carried state, here and in nested flows; the values stay."""
        for cell in self.modules():
            if isinstance(cell, StateCell):
                cell.detach()

    def reset_state(self, **values: Tensor) -> None:
        """Forget all carried state, here and in nested flows: the next call starts from zeros, or from given `values`.

        A value may be a parameter (a learned first value) or depend on one: gradients reach it.
        """
        cells = self._own_cells()
        for tag in set(values) - set(cells):
            raise FlowError(f"no state '{tag}' is carried here.{nearest(tag, cells)}")
        for tag, value in values.items():
            shapes = [found[tag][0] for found in self._zeros.values() if tag in found]
            fits = isinstance(value, Tensor) and (not shapes or value.ndim in map(len, shapes))
            if not fits:  # other sizes may be right for other inputs
                expected = f"a tensor like {shapes[-1]}" if shapes else "a tensor"
                raise FlowError(f"the first value of state '{tag}' must be {expected}, this is {shape_of(value)}")
        for cell in self.modules():
            if isinstance(cell, StateCell):
                cell.reset()
        for tag, value in values.items():
            cells[tag].write(value)

    def _own_cells(self) -> dict[str, StateCell]:
        return {m.tag: m for m in self.children() if isinstance(m, StateCell)}

    def _start_state(self, *inputs: Any) -> None:
        """First line of the forward of a flow that carries state: zeros where there is no value yet."""
        if torch.compiler.is_compiling():
            return  # the compiler cannot run the flow inside the flow: the cell makes its zeros by itself
        cells = self._own_cells()
        if all(cell.ready for cell in cells.values()):
            return
        held = tuple(None if cell.value is None else tuple(cell.value.shape) for cell in cells.values())
        if None in held:
            seen = tuple(zero_of(v) if isinstance(v, Tensor) else type(v) for v in _pytree.tree_leaves(inputs))
            key = (*seen, held)
            if key not in self._zeros:
                try:
                    self._zeros[key] = find_zeros(self, inputs)
                except (
                    StepError
                ) as error:  # raised by the step that reads the state; an earlier step that fails goes first
                    for cell in cells.values():
                        cell.problem = str(error)
                    return
            for tag, (shape, dtype, device) in self._zeros[key].items():
                cells[tag].write(torch.zeros(shape, dtype=dtype, device=device))
        if any(cell.per_sample is None for cell in cells.values()):
            for tag, follows in follow_batch(self, inputs).items():
                cells[tag].per_sample = follows

    def _see_only(self, observed: frozenset[str]) -> None:
        """Take the forward that shows these tags to the records, and no others."""
        self._observed = observed
        self.__class__ = self._plan.forward_class(Graph, observed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            # What `nn.Module.__call__` does, without its frame: a microsecond for each call of a nested flow.
            return (self._compiled_call_impl or self._call_impl)(*args, **kwargs)
        except Exception as error:
            explained = explain(error, self, args, kwargs)
            if explained is error:
                raise
            raise explained from None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank, (self._plan, self._observed), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        # As for any module: what `compile()` made can be neither pickled nor copied.
        return {k: v for k, v in self.__dict__.items() if k != "_compiled_call_impl"}

    def _get_name(self) -> str:
        return self.label or "Flow"


def _blank(plan: Plan, observed: frozenset[str]) -> Graph:
    """An instance of the class that has this plan's forward, without contents (unpickling and copying fill them in)."""
    cls: type[Graph] = plan.forward_class(Graph, observed)
    return cls.__new__(cls)
