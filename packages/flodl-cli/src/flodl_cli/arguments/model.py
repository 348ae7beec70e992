"""The arguments of an entry as data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from flodl_cli.errors import CliError

__all__ = ["Argument", "Schema", "schema_from"]

KINDS = ("str", "int", "float", "path", "flag", "count")


class Argument(NamedTuple):
    """One option, or one positional argument (then it has no flags)."""

    name: str
    flags: tuple[str, ...] = ()
    off: tuple[str, ...] = ()  # those of the flags that say no
    kind: str = "str"
    checked: bool = True  # False when only the program itself can tell whether a text fits
    choices: tuple[Any, ...] | None = None
    default: Any = None
    required: bool = False
    nargs: int | str | None = None  # a number of values, or "?", "*", "+", "..."
    repeat: bool = False
    help: str = ""
    hidden: bool = False

    @property
    def takes_value(self) -> bool:
        return self.kind not in ("flag", "count")

    @property
    def flag(self) -> str:
        """The flag to show and to pass: the first long one that says yes."""
        yes = [f for f in self.flags if f not in self.off] or list(self.flags)
        return next((f for f in yes if f.startswith("--")), yes[0] if yes else self.name)


class Schema(NamedTuple):
    """What a program takes."""

    options: tuple[Argument, ...] = ()
    positionals: tuple[Argument, ...] = ()
    commands: "Mapping[str, Schema]" = MappingProxyType({})
    description: str = ""
    open: bool = False  # it accepts what it does not list
    abbreviations: bool = False  # --epo for --epochs

    def option(self, name: str) -> Argument | None:
        """The option of this name, with - and _ taken for the same."""
        wanted = name.replace("-", "_")
        for option in self.options:
            names = {option.name, *(f.lstrip("-") for f in option.flags if f not in option.off)}
            if wanted in {n.replace("-", "_") for n in names}:
                return option
        return None


def schema_from(data: Any, where: str) -> Schema:
    """A schema from JSON; a wrong document is an error that names where it is from."""
    if not isinstance(data, dict):
        raise CliError(f"{where}: the schema is not a JSON object")
    try:
        return Schema(
            tuple(_argument(a) for a in data.get("options", ())),
            tuple(_argument(a) for a in data.get("positionals", ())),
            {name: schema_from(sub, where) for name, sub in data.get("commands", {}).items()},
            str(data.get("description", "")),
            bool(data.get("open", False)),
            bool(data.get("abbreviations", False)),
        )
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise CliError(f"{where}: not a schema of arguments: {error}") from error


def _argument(data: dict[str, Any]) -> Argument:
    if unknown := sorted(set(data) - set(Argument._fields)):
        raise ValueError(f"unknown key '{unknown[0]}'")
    lists = {k: tuple(data[k]) for k in ("flags", "off", "choices") if data.get(k) is not None}
    values: dict[str, Any] = {**data, **lists}
    argument = Argument(**values)
    if argument.kind not in KINDS:
        raise ValueError(f"kind of '{argument.name}' is '{argument.kind}', not one of {', '.join(KINDS)}")
    return argument
