"""Pictures of a model: DOT, SVG, a heat map of measured times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from flodl.errors import FlowError
from flodl.graph.dot import to_dot, with_graphviz
from flodl.graph.paths import plan_of
from flodl.graph.picture import Picture, picture_of_flow
from flodl.graph.seen import picture_of_run
from flodl.graph.tables import summary
from flodl.graph.timing import measure_ms

__all__ = ["Drawn"]


class Drawn:
    """Methods that show a model. `example` is an input, or a tuple of several."""

    @property
    def _root(self) -> nn.Module:
        """The module at the top."""
        raise NotImplementedError

    def dot(self, *, example: Any = None, profile: bool = False) -> str:
        """The model in the DOT language of Graphviz. Arguments as for `svg`."""
        return to_dot(self._picture(example, profile))

    def svg(self, path: str | Path | None = None, *, example: Any = None, profile: bool = False) -> str:
        """The model as SVG, also written to `path`: laid out by Graphviz where `dot` is installed, else by networkx.

        With `profile` the nodes show the median milliseconds that they take for `example`, and are coloured by them.
        A model that is no flow is drawn as it runs on `example`.
        """
        picture = self._picture(example, profile)
        text = with_graphviz(to_dot(picture))
        if text is None:
            from flodl.graph.layout import to_svg  # networkx takes a while to import

            text = to_svg(picture)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def summary(self, *example: Any) -> str:
        """A table of the modules with their parameters, and with the shapes of their outputs where an example is given."""
        return summary(self._root, example)

    def _picture(self, example: Any, profile: bool) -> Picture:
        inputs = example if isinstance(example, tuple) else (example,)
        if example is None and profile:
            raise FlowError("profile=True measures a forward: give example=x")
        if plan_of(self._root) is not None:
            picture = picture_of_flow(self._root)
        elif example is None:
            raise FlowError("a module that is no flow is drawn as it runs: give example=x")
        else:
            picture = picture_of_run(self._root, inputs)
        if profile:
            times = measure_ms(self._root, inputs)
            for node in picture.nodes:
                node.time_ms = times.get(node.key) if node.key else None
        return picture
