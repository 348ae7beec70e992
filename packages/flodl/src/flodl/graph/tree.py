"""The tree of a model: parts addressed by path, frozen, summed up; the same for a flow and for a view of any module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from torch import nn

from flodl.errors import FlowError
from flodl.graph.paths import find_module, find_value
from flodl.graph.structure import structural_hash
from flodl.graph.tables import param_summary, tree_summary

__all__ = ["Tree"]


class Tree:
    """Methods that address parts by path: attribute names joined by dots, the last part may be a tag.

    An empty path is the whole model. Unknown paths raise `FlowError` with the nearest valid names.
    """

    @property
    def _root(self) -> nn.Module:
        """The module at the top."""
        raise NotImplementedError

    def validate_path(self, path: str) -> Literal["module", "tag"]:
        """What is at `path`: a tag or a module; raises `FlowError` when nothing is."""
        if path == "":
            return "module"
        return "module" if find_value(self._root, path).kind == "module" else "tag"

    def subgraph(self, path: str) -> nn.Module:
        """The module at `path`: load it, save it, move it, use it elsewhere."""
        return find_module(self._root, path)

    def parameters_at(self, path: str) -> Iterator[nn.Parameter]:
        """The parameters of the part at `path`, for example for an optimizer's group."""
        return find_module(self._root, path).parameters()

    def named_parameters_at(self, path: str) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of the part at `path`, named from there."""
        return find_module(self._root, path).named_parameters()

    def freeze(self, path: str = "") -> None:
        """Train the part no further. Stale gradients are cleared, so that momentum and weight decay do not move it either."""
        for parameter in self.parameters_at(path):
            parameter.requires_grad_(False)
            parameter.grad = None

    def thaw(self, path: str = "") -> None:
        """Train the part again."""
        for parameter in self.parameters_at(path):
            parameter.requires_grad_(True)

    def is_frozen(self, path: str = "") -> bool:
        """Whether no parameter of the part is trained. Raises `FlowError` for a part without parameters."""
        parameters = list(self.parameters_at(path))
        if not parameters:
            raise FlowError(f"'{path}' has no parameters that could be frozen")
        return not any(p.requires_grad for p in parameters)

    def set_training_at(self, path: str, mode: bool = True) -> None:
        """Put one part into training mode, or with `False` into evaluation mode, until `train()` or `eval()` of the whole."""
        find_module(self._root, path).train(mode)

    def tree_summary(self, depth: int = 3) -> str:
        """The parts as an indented tree, with their tags and numbers of parameters."""
        return tree_summary(self._root, depth)

    def param_summary(self) -> str:
        """A table of the parts at the top: parameters, trained ones, type and device."""
        return param_summary(self._root)

    def structural_hash(self) -> str:
        """64 hexadecimal digits for topology, kinds of modules and shapes, the same in every process; not for values."""
        return structural_hash(self._root)
