"""What the heads' `predict` answers with."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Answer", "Entity", "Label", "Token"]


@dataclass(frozen=True)
class Label:
    """A label of a whole text. score: its probability."""

    label: str
    score: float


@dataclass(frozen=True)
class Entity:
    """A labelled span, `text[start:end]`. score: the mean probability over its words."""

    label: str
    score: float
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Answer:
    """`context[start:end]`. score: its probability among all spans that were considered."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Token:
    """A token that may stand at a place. score: its probability."""

    text: str
    id: int
    score: float
