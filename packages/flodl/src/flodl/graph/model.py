"""`Graph`: what a flow becomes, an ordinary `nn.Module` whose forward is generated Python."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from flodl.graph.explain import explain
from flodl.graph.plan import Plan

__all__ = ["Graph"]


class Graph(nn.Module):
    """A built flow. `forward` takes the flow's inputs, `print(model.code)` shows it, child modules carry the flow's names.

    It nests, copies, pickles, moves, compiles and exports like any module. Made by `FlowBuilder.build()`.
    """

    _plan: Plan
    _observed: frozenset[str]

    @staticmethod
    def _of_plan(plan: Plan, modules: dict[str, nn.Module]) -> Graph:
        self = _blank(plan, frozenset())
        nn.Module.__init__(self)
        self._plan, self._observed = plan, frozenset()
        for name, module in modules.items():
            self.add_module(name, module)
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

    def detach_state(self) -> None:
        """Cut the gradient history of all carried state, here and in nested flows; the values stay."""
        for cell in self._cells():
            cell.detach()

    def reset_state(self) -> None:
        """Forget all carried state, here and in nested flows: the next call starts from zeros."""
        for cell in self._cells():
            cell.reset()

    def _cells(self) -> list[Any]:
        from flodl.graph.state import StateCell

        return [m for m in self.modules() if isinstance(m, StateCell)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except Exception as error:
            explained = explain(error, self, args, kwargs)
            if explained is error:
                raise
            raise explained from None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank, (self._plan, self._observed), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def _get_name(self) -> str:
        return self.label or "Flow"


def _blank(plan: Plan, observed: frozenset[str]) -> Graph:
    """An instance of the class that has this plan's forward, without contents (unpickling and copying fill them in)."""
    cls: type[Graph] = plan.forward_class(Graph, observed)
    return cls.__new__(cls)
