"""The picture of a module that is no flow: which modules ran on an example, and what went from which to which."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from flodl.graph.parts import part_name
from flodl.graph.picture import Node, Picture, describe, kind_of
from flodl.graph.shapes import faked

__all__ = ["picture_of_run"]


class _Origins(TorchFunctionMode):
    """Follows values through functions: the result of a function comes from where its arguments come from."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[int, tuple[Node, ...]] = {}
        self._kept: list[Tensor] = []  # so that an id is not given twice

    def of(self, values: Any) -> list[Node]:
        """The nodes that these values come from."""
        tensors = [v for v in _pytree.tree_leaves(values) if isinstance(v, Tensor)]
        return list({n.id: n for t in tensors for n in self._of.get(id(t), ())}.values())

    def set(self, values: Any, nodes: list[Node]) -> None:
        """These values come from these nodes."""
        for tensor in _pytree.tree_leaves(values):
            if isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter):
                self._of[id(tensor)] = tuple(nodes)
                self._kept.append(tensor)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        nodes = self.of((args, kwargs))
        if nodes:
            self.set(result, nodes)
        return result


def picture_of_run(root: nn.Module, inputs: tuple[Any, ...]) -> Picture:
    """Draw the modules without children that a forward on fake copies of `inputs` calls, framed by the modules around.

    Functions between modules are not drawn; values are followed through them.
    """
    picture = Picture()
    frames: dict[str, str] = {"": ""}
    origins = _Origins()
    inside: list[str] = []

    def frame(path: str) -> str:
        if path not in frames:
            module = root.get_submodule(path)
            outer, _, name = path.rpartition(".")
            if isinstance(module, nn.ModuleList):  # never called itself: its children say where they are
                frames[path] = frame(outer)
            else:
                parent = root.get_submodule(outer)
                shown = (
                    f"{outer.rpartition('.')[2]}.{name}" if isinstance(parent, (nn.ModuleList, nn.Sequential)) else name
                )
                frames[path] = picture.frame(f"{shown}: {part_name(module)}", "flow", frame(outer))
        return frames[path]

    def before(path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if inside:
                return
            inside.append(path)
            node = picture.add(
                _title(path, module), kind_of(module), frame(path.rpartition(".")[0]), detail=describe(module), key=path
            )
            for source in origins.of((args, kwargs)):
                picture.link(source, node)
            found[path] = node

        return hook

    def after(path: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if inside == [path]:
                inside.pop()
                origins.set(output, [found[path]])

        return hook

    found: dict[str, Node] = {}
    handles = []
    for path, module in root.named_modules():
        if path and not any(True for _ in module.children()):
            handles.append(module.register_forward_pre_hook(before(path), with_kwargs=True))
            handles.append(module.register_forward_hook(after(path)))
    try:
        with faked(root, *inputs) as fake, origins:
            for i, value in enumerate(fake):
                origins.set(value, [picture.add("input" if len(fake) == 1 else f"input {i}", "input")])
            output = root(*fake)
    finally:
        for handle in handles:
            handle.remove()
    end = picture.add("output", "output")
    for source in origins.of(output):
        picture.link(source, end)
    return picture


def _title(path: str, module: nn.Module) -> str:
    name, kind = path.rpartition(".")[2], part_name(module)
    return kind if name.isdigit() or name == kind else f"{name}: {kind}"
