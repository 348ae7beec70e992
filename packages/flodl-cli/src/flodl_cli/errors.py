"""What a wrong call or a wrong file is reported as: exit code 2, the place, a caret line, the nearest valid name."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from flodl_cli.config.source import Place

__all__ = ["CliError", "Problem", "nearest"]


class Problem(NamedTuple):
    """One thing that is wrong, and where."""

    message: str
    place: "Place | None" = None

    def render(self) -> str:
        """`fdl.yml:3:5: message`, the line itself and a caret line below it."""
        if self.place is None:
            return self.message
        return f"{self.place.shown()}: {self.message}{self.place.excerpt()}"


class CliError(Exception):
    """The call or a file was wrong. Holds every problem that was found, not just the first."""

    exit_code = 2

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = tuple(Problem(p) if isinstance(p, str) else p for p in problems)
        super().__init__("; ".join(p.message for p in self.problems))

    def render(self) -> str:
        """The text for stderr: one paragraph for each problem."""
        return "\n".join(f"fdl: {p.render()}" for p in self.problems)


def nearest(name: str, valid: Iterable[str]) -> str:
    """A sentence with the valid names nearest to `name`, ready to be appended to a message; all of them when none is near."""
    import difflib

    names = [text for v in valid if (text := str(v)) != name]  # the very name that was refused is no help
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return " Did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    if names:
        return f" Valid: {', '.join(sorted(names)[:12])}{', ...' if len(names) > 12 else ''}."
    return ""
