"""The arguments of unmodified scripts: known without running them, checked before they start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.arguments.model import Argument

Fdl = Callable[..., Any]
Write = Callable[..., Path]

# Each leaves a file behind when anything but its parser runs.
CLICK = """\
import click, pathlib
pathlib.Path("ran").touch()

@click.command()
@click.option("--n", default=3, help="how many")
@click.option("--policy", type=click.Choice(["cadence", "async"]), default="cadence")
@click.option("--fast/--slow", default=False)
@click.argument("name", required=False)
def train(n, policy, fast, name):
    pathlib.Path("ran").touch()
    print(n, policy, fast, name)

if __name__ == "__main__":
    pathlib.Path("ran").touch()
    train()
"""

TYPER = """\
import pathlib
import typer
from enum import Enum
pathlib.Path("ran").touch()

class Policy(str, Enum):
    cadence = "cadence"
    async_ = "async"

app = typer.Typer()

@app.command()
def train(n: int = 3, policy: Policy = Policy.cadence, fast: bool = False) -> None:
    pathlib.Path("ran").touch()
    print(n, policy.value, fast)

if __name__ == "__main__":
    pathlib.Path("ran").touch()
    app()
"""

TYPER_RUN = """\
import pathlib, typer
pathlib.Path("ran").touch()

def train(n: int = 3, fast: bool = False):
    print(n, fast)

typer.run(train)
"""

DATACLASS = """\
import pathlib
from dataclasses import dataclass, field
from typing import Literal
from flodl_cli import args
pathlib.Path("ran").touch()

@dataclass(frozen=True)
class Settings:
    '''Trains letters.'''
    n: int = 3
    policy: Literal["cadence", "async"] = "cadence"
    fast: bool = False
    sizes: tuple[int, ...] = (1, 2)
    where: pathlib.Path | None = field(default=None, metadata={"help": "the data"})

if __name__ == "__main__":
    settings = args.parse(Settings)
    print(settings)
"""

MODULE_LEVEL = """\
import argparse, pathlib
pathlib.Path("ran").touch()
parser = argparse.ArgumentParser()
for name in ("n", "m"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--policy", choices=("cadence", "async"))
parser.add_argument("--fast", action="store_true")
pathlib.Path("ran").touch()
args = parser.parse_args()
print(args.n)
"""

SCRIPTS = {
    "click": CLICK,
    "typer": TYPER,
    "typer.run": TYPER_RUN,
    "dataclass": DATACLASS,
    "module level": MODULE_LEVEL,
}


@pytest.mark.parametrize("kind", ["argparse", *SCRIPTS])
def test_a_script_is_asked_without_being_run(
    fdl: Fdl, entry: Any, argparse_script: str, tmp_path: Path, kind: str
) -> None:
    entry(SCRIPTS.get(kind, argparse_script))
    result = fdl("go", "--n", "abc")
    assert (result.code, result.out) == (2, "")
    assert "go: --n is 'abc'; it must be a whole number" in result.err
    shown = fdl("go", "--help").out
    assert "--n" in shown
    assert not (tmp_path / "go" / "ran").exists()
    assert fdl("go", "--n", "4").code == 0
    assert (tmp_path / "go" / "ran").exists()


@pytest.mark.parametrize("kind", ["argparse", *(k for k in SCRIPTS if k != "typer.run")])
def test_choices_and_misspelt_options_are_refused_before_the_start(
    fdl: Fdl, entry: Any, argparse_script: str, tmp_path: Path, kind: str
) -> None:
    entry(SCRIPTS.get(kind, argparse_script))
    result = fdl("go", "--policy", "zigzag", "--fats")
    assert result.code == 2
    assert "--policy is 'zigzag'. Valid: async, cadence." in result.err
    assert "there is no option --fats. Did you mean '--fast'" in result.err
    assert not (tmp_path / "go" / "ran").exists()


def test_a_script_without_a_parser_is_never_run_to_ask(fdl: Fdl, entry: Any, tmp_path: Path) -> None:
    entry("import argparse, pathlib, sys\npathlib.Path('ran').touch()\nprint(sys.argv[1:])\n")
    shown = fdl("go", "--help")
    assert shown.code == 0
    assert "are not known: its script builds no argument parser" in shown.out
    assert not (tmp_path / "go" / "ran").exists()
    assert fdl("go", "--any", "thing").out == "['--any', 'thing']\n"


def test_a_script_that_cannot_be_asked_starts_all_the_same(fdl: Fdl, entry: Any) -> None:
    entry(
        "import argparse\nimport missing_module as m\n"
        "p = argparse.ArgumentParser()\np.add_argument('--x', type=m.kind)\np.parse_args()\n"
    )
    assert "asking train.py for its arguments failed: ModuleNotFoundError" in fdl("go", "--help").out
    result = fdl_raw(fdl, "go", "--x", "1")
    assert result.returncode == 1
    assert "missing_module" in result.stderr


def fdl_raw(fdl: Any, *words: str) -> Any:
    """A call whose child may show a traceback."""
    process = fdl.start(*words)
    out, err = process.communicate(timeout=60)
    process.stdout, process.stderr = out, err
    return process


def parsed(result: Any) -> dict[str, Any]:
    assert result.code == 0, result.err
    values: dict[str, Any] = dict(eval(result.out))
    return values


def test_a_program_in_another_language_answers_fdl_schema(fdl: Fdl, write: Write) -> None:
    schema = {"options": [{"name": "n", "flags": ["--n"], "kind": "int", "help": "how many", "default": 3}]}
    write("fdl.yml", "commands: { go: { path: go } }")
    write("go/fdl.yml", "entry: ./program\nschema: true\n")
    program = write(
        "go/program",
        f'#!/bin/sh\nif [ "$1" = --fdl-schema ]; then echo \'{json.dumps(schema)}\'; else echo ran "$@"; fi\n',
    )
    program.chmod(0o755)
    assert "--n is 'x'; it must be a whole number" in fdl("go", "--n", "x").err
    assert fdl("go", "--n", "5").out == "ran --n 5\n"
    program.write_text('#!/bin/sh\necho \'{"options": [{"nmae": 1}]}\'\n')
    result = fdl("go", "--n", "x")
    assert result.code == 2
    assert "not a schema of arguments: unknown key 'nmae'" in result.err


def test_the_example_of_the_readme_is_a_schema(fdl: Fdl, write: Write) -> None:
    readme = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    write("fdl.yml", "commands: { go: { path: go } }")
    write("go/fdl.yml", "entry: echo\nschema: args.json\n")
    write("go/args.json", readme.partition("```json\n")[2].partition("```")[0])
    assert fdl("go", "--model", "conv", "--no-shuffle", "-n", "4", "a", "b").code == 0
    refused = fdl("go", "--model", "cnov", "--epochs", "x").err
    assert "--model is 'cnov'. Did you mean 'conv'" in refused
    assert "--epochs is 'x'; it must be a whole number" in refused
    keys = {line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")}
    assert keys | {"help"} == set(Argument._fields)


def test_a_schema_can_be_a_file(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { go: { path: go } }")
    write("go/fdl.yml", "entry: echo\nschema: args.json\n")
    assert "cannot read" in fdl("go").err
    write("go/args.json", '{"options": [{"name": "n", "flags": ["--n"], "required": true}]}')
    assert "go: --n is missing" in fdl("go").err
    assert fdl("go", "--n", "1").out == "--n 1\n"


def test_answers_are_kept_until_a_file_changes(fdl: Fdl, entry: Any, argparse_script: str, tmp_path: Path) -> None:
    entry(argparse_script.replace("DEFAULT = 3", "from defaults import DEFAULT"))
    (tmp_path / "go" / "defaults.py").write_text("DEFAULT = 3\n")
    assert "9 options (asked now)" in fdl("schema", "list").out
    assert "asked now" not in fdl("schema", "list").out
    (tmp_path / "go" / "defaults.py").write_text("DEFAULT = 41\n")  # a module that the parser is built from
    assert "[41, train.py]" in fdl("go", "--help").out
    assert "asked now" not in fdl("schema", "list").out
    known = json.loads(fdl("schema", "list", "--json").out)
    assert known["fdl go"]["schema"]["options"][0]["flags"] == ["--n", "-n"]
    assert "asked now" in fdl("schema", "refresh").out
    assert fdl("schema", "clear").out.startswith("1 forgotten")
    assert "asked now" in fdl("schema", "list").out


@pytest.mark.parametrize("home", ["none", "read-only"])
def test_without_a_place_for_the_cache_everything_works(
    fdl: Fdl, entry: Any, argparse_script: str, tmp_path: Path, home: str
) -> None:
    entry(argparse_script)
    if home == "none":
        environ = {"HOME": None}
    else:
        blocked = tmp_path / "blocked"
        blocked.write_text("a file where the folder would be")  # root may write into any folder
        environ = {"XDG_CACHE_HOME": str(blocked)}
    for _ in range(2):
        assert "must be a whole number" in fdl("go", "--n", "x", env=environ).err
        assert fdl("go", env=environ).code == 0


def test_words_behind_the_dashes_are_the_entry_s_own_business(fdl: Fdl, entry: Any, argparse_script: str) -> None:
    entry(argparse_script)
    result = fdl_raw(fdl, "go", "--", "--n", "abc")
    assert result.returncode == 2
    assert "invalid int value" in result.stderr
    assert "usage: train.py" in fdl("go", "--", "--help").out


def test_a_module_can_be_the_entry(fdl: Fdl, write: Write, argparse_script: str) -> None:
    write("fdl.yml", "commands: { go: { path: go } }")
    write("go/fdl.yml", "entry: python -m pack.train")
    write("go/pack/__init__.py", "")
    write("go/pack/train.py", argparse_script)
    assert "--n is 'x'" in fdl("go", "--n", "x").err
    assert parsed(fdl("go", "--n", "4"))["n"] == 4


def test_sub_commands_of_the_entry(fdl: Fdl, entry: Any) -> None:
    script = """\
import argparse
p = argparse.ArgumentParser()
s = p.add_subparsers(dest='cmd')
q = s.add_parser('fit')
q.add_argument('--n', type=int)
print(vars(p.parse_args()))
"""
    entry(script)
    assert fdl("go", "fit", "--n", "3").out == "{'cmd': 'fit', 'n': 3}\n"
    assert "--n is 'x'" in fdl("go", "fit", "--n", "x").err
    assert "there is no 'fti'. Did you mean 'fit'" in fdl("go", "fti").err


def test_dataclass_fields_arrive_as_their_types(fdl: Fdl, entry: Any) -> None:
    entry(DATACLASS)
    shown = fdl("go", "--sizes", "3", "4", "--fast", "--where", "x").out
    assert shown == (
        "Settings(n=3, policy='cadence', fast=True, sizes=(3, 4), where=PosixPath('x'))\n"
    )  # fmt: skip
    assert "Trains letters." in fdl("go", "--help").out


def test_a_description_from_the_docstring_of_the_script(fdl: Any, entry: Any) -> None:
    entry(
        '"""Trains letters.\n\nMore of it."""\nimport argparse\n'
        "p = argparse.ArgumentParser(description=__doc__.splitlines()[0])\np.add_argument('--n')\np.parse_args()\n"
    )
    shown = fdl("go", "--help").out
    assert "Trains letters." in shown
    assert "--n" in shown
