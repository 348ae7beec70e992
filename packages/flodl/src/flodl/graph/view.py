"""A view of any module: the tree, observation and drawing that flows have, with no change to the module."""

from __future__ import annotations

from torch import nn
from torch.utils.hooks import RemovableHandle

from flodl.graph.drawing import Drawn
from flodl.graph.observation import Observed
from flodl.graph.records import Records
from flodl.graph.tree import Tree

__all__ = ["View"]


class View(Tree, Observed, Drawn):
    """What `Graph.of(module)` gives. Names are paths of modules (their outputs), and of tags where flows are among them.

    Nothing is added to the module but forward hooks, while something is observed: `release()` removes them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._records = Records()
        self._hooks: dict[str, RemovableHandle] = {}

    @property
    def _root(self) -> nn.Module:
        return self.module

    def __repr__(self) -> str:
        return f"View of {type(self.module).__name__}"
