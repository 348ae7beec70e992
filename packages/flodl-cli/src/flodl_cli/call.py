"""The options that stand before the command, and what they mean for a call."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from flodl_cli.config.layers import Selection
from flodl_cli.errors import CliError, nearest
from flodl_cli.manifest import Loader
from flodl_cli.project import MANIFEST, find_root

__all__ = ["GLOBAL_OPTIONS", "Call", "GlobalOptions", "parse_call"]

# flags, the value's name, what it does; also what completion offers
GLOBAL_OPTIONS = (
    (("--env", "-e"), "NAME", "apply fdl.NAME.yml (repeatable, or a comma list; or FDL_ENV=NAME)"),
    (("--set",), "KEY=VALUE", "set one setting, above all files (repeatable; or FDL_SET_A__B=VALUE)"),
    (("--dry-run",), "", "print what would run"),
    (("--built-in",), "", "take fdl's own command where the project has one of the same name"),
    (("--help", "-h"), "", "show help, also after a command"),
    (("--version", "-V"), "", "show the version"),
    (("--verbose", "-v"), "", "say what runs (-vv: with its words, -vvv: with its environment)"),
    (("--quiet", "-q"), "", "errors only"),
    (("--ansi",), "", "colours even without a terminal"),
    (("--no-ansi",), "", "no colours (or NO_COLOR=1)"),
)


class GlobalOptions(NamedTuple):
    """The options before the command."""

    environments: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    dry_run: bool = False
    help: bool = False
    version: bool = False
    verbosity: int = 0
    ansi: bool | None = None
    built_in: bool = False
    typed_env: bool = False  # --env, not the variable FDL_ENV, which may be set for other folders


class Call:
    """One call of fdl: its global options and the words from the command on."""

    def __init__(self, options: GlobalOptions, words: tuple[str, ...]) -> None:
        self.options, self.words = options, words

    def in_environment(self) -> "Call":
        """`fdl ci test`: the first word is an environment, the call is what follows it."""
        names = (*self.options.environments, self.words[0])
        return Call(self.options._replace(environments=names), self.words[1:])

    @cached_property
    def root(self) -> Path | None:
        """The project's folder."""
        return find_root(_current_folder(), os.environ)

    @cached_property
    def loader(self) -> Loader:
        """Loads manifests with the layers of this call."""
        if self.root is None:
            raise CliError(f"there is no {MANIFEST} in this folder or one above; `fdl init NAME` makes a project")
        return Loader(self.root, Selection(self.options.environments, self.options.settings), os.environ)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise CliError("the current folder was removed") from None


def parse_call(argv: Sequence[str]) -> Call:
    """Reads the options up to the first word that is none."""
    environments: list[str] = []
    settings: list[str] = []
    flags: set[str] = set()
    verbosity, ansi, at = 0, None, 0
    names = {flag: flags[0] for flags, _, _ in GLOBAL_OPTIONS for flag in flags}
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "-":
        word, equals, value = argv[at].partition("=")
        at += 1
        if word == "--":
            break
        for name in _flags(word, names):
            if name in ("--env", "--set"):
                if not equals:
                    if at == len(argv):
                        raise CliError(f"{word} needs a value")
                    value, at = argv[at], at + 1
                (environments if name == "--env" else settings).append(value)
            elif equals:
                raise CliError(f"{word} takes no value")
            elif name in ("--verbose", "--quiet"):
                verbosity += 1 if name == "--verbose" else -1
            elif name in ("--ansi", "--no-ansi"):
                ansi = name == "--ansi"
            else:
                flags.add(name)
    chosen = environments or [os.environ.get("FDL_ENV", "")]
    options = GlobalOptions(
        tuple(_environment_names(chosen)),
        tuple(settings),
        "--dry-run" in flags,
        "--help" in flags,
        "--version" in flags,
        verbosity,
        ansi,
        "--built-in" in flags,
        bool(environments),
    )
    return Call(options, tuple(argv[at:]))


def _flags(word: str, names: dict[str, str]) -> Iterator[str]:
    """The options that a word stands for: one, or several short ones as in -vv."""
    if word in names:
        yield names[word]
        return
    letters = [f"-{c}" for c in word[1:]]
    if word.startswith("--") or not all(letter in names for letter in letters):
        raise CliError(f"there is no option {word}.{nearest(word, [n for n in names if n.startswith('--')])}")
    yield from (names[letter] for letter in letters)


def _environment_names(given: Sequence[str]) -> Iterator[str]:
    for text in given:
        for name in text.split(","):
            name = name.strip()
            if "/" in name or name.startswith("."):
                raise CliError(f"--env {name}: the name of an environment, not a file; ci means fdl.ci.yml")
            if name:
                yield name
