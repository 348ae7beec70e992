"""Recipes: the ways in which one and the same training step can be computed, as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from flodl.errors import ConfigError, nearest

__all__ = ["NAMES", "Recipe"]

Graph = Literal["eager", "model", "whole"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a step is computed. Every recipe makes the same update, to rounding; without arguments, it is plain PyTorch.

    graph: "eager"; "model" (`model.compile()`: forward and backward); "whole" (forward, backward and update in one).
    fused: the optimizer's fused kernels (an eager update only). onednn: float32 matrix products by oneDNN, where a check
    on this machine finds them as exact. threads: torch's, None for as many as there are. channels_last: the memory
    format of convolutions' weights. allocator: freed memory is kept for the next step instead of being given back.
    """

    graph: Graph = "eager"
    fused: bool = False
    onednn: bool = False
    threads: int | None = None
    channels_last: bool = False
    allocator: bool = False

    def __str__(self) -> str:
        """The name that `parse` reads: "eager", "eager+fused+onednn+threads=1", "whole+allocator"."""
        flags = [name for name in _FLAGS if getattr(self, name)]
        if self.threads is not None:
            flags.append(f"threads={self.threads}")
        return "+".join([self.graph, *flags])

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """The recipe of that name ("compiled" is "whole"). Raises `ConfigError` for a word that is none."""
        fields: dict[str, object] = {}
        for place, word in enumerate(text.replace(" ", "").split("+")):
            name, _, value = word.partition("=")
            if place == 0 and word in _GRAPHS:
                fields["graph"] = _GRAPHS[word]
            elif word in _FLAGS:
                fields[word] = True
            elif name == "threads" and value.isdecimal() and int(value) > 0:
                fields["threads"] = int(value)
            else:
                known = [*(NAMES if place == 0 else ()), *_FLAGS, "threads=1"]
                raise ConfigError(f"training.step is {text!r}: there is no {word!r}.{nearest(word, known)}")
        return cls(**fields)  # type: ignore[arg-type]

    def but(self, **changes: object) -> Recipe:
        """The same recipe with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


_FLAGS = tuple(f.name for f in dataclasses.fields(Recipe) if f.type == "bool")
_GRAPHS: dict[str, Graph] = {"eager": "eager", "model": "model", "whole": "whole", "compiled": "whole"}
NAMES = ("auto", *_GRAPHS)
"""What `training.step` is, or begins with."""
