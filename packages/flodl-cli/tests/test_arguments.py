"""The arguments of unmodified scripts: known without running them, checked before they start."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fdl = Callable[..., Any]
Write = Callable[..., Path]

# Each leaves a file behind when anything but its parser runs.
ARGPARSE = """\
import argparse
import pathlib

pathlib.Path("ran").touch()
DEFAULT = 3

def add_common(parser):
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate")

def main():
    pathlib.Path("ran").touch()
    parser = argparse.ArgumentParser(description="trains letters")
    parser.add_argument("--n", "-n", type=int, default=DEFAULT, help="how many")
    parser.add_argument("--policy", choices=["cadence", "async"], default="cadence")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--tag", action="append")
    parser.add_argument("--text")
    add_common(parser)
    args = parser.parse_args()
    pathlib.Path("ran").touch()
    print(sorted(vars(args).items()))

if __name__ == "__main__":
    pathlib.Path("ran").touch()
    main()
"""

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
    "argparse": ARGPARSE,
    "click": CLICK,
    "typer": TYPER,
    "typer.run": TYPER_RUN,
    "dataclass": DATACLASS,
    "module level": MODULE_LEVEL,
}


@pytest.fixture
def entry(write: Write, tmp_path: Path) -> Callable[..., None]:
    """A project with one folder, whose entry is the given script."""

    def make(script: str, manifest: str = "", name: str = "train.py") -> None:
        write("fdl.yml", "commands: { go: { path: go } }")
        write("go/fdl.yml", f"entry: python {name}\n{manifest}")
        write(f"go/{name}", script)

    return make


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_is_asked_without_being_run(fdl: Fdl, entry: Any, tmp_path: Path, kind: str) -> None:
    entry(SCRIPTS[kind])
    result = fdl("go", "--n", "abc")
    assert (result.code, result.out) == (2, "")
    assert "go: --n is 'abc'; it must be a whole number" in result.err
    shown = fdl("go", "--help").out
    assert "--n" in shown
    assert not (tmp_path / "go" / "ran").exists()
    assert fdl("go", "--n", "4").code == 0
    assert (tmp_path / "go" / "ran").exists()


@pytest.mark.parametrize("kind", [k for k in SCRIPTS if k != "typer.run"])
def test_choices_and_misspelt_options_are_refused_before_the_start(
    fdl: Fdl, entry: Any, tmp_path: Path, kind: str
) -> None:
    entry(SCRIPTS[kind])
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


def test_help_shows_defaults_with_their_origin_choices_and_presets(fdl: Fdl, entry: Any) -> None:
    entry(
        ARGPARSE,
        "description: letters\ntraining: { epochs: 7 }\noptions: { lr: 0.1 }\ncommands:\n  quick: { training: { epochs: 1 } }\n",
    )
    shown = " ".join(fdl("go", "--help").out.split())
    assert "Usage: fdl go [COMMAND] [OPTIONS]" in shown
    assert "quick { training: { epochs: 1 } }" in shown
    assert "--n, -n INT how many [3, train.py]" in shown
    assert "one of: cadence, async [cadence, train.py]" in shown
    assert "--epochs INT [7, go/fdl.yml:3]" in shown
    assert "--lr FLOAT learning rate [0.1, go/fdl.yml:4]" in shown
    assert "--epochs INT [1, go/fdl.yml:6]" in " ".join(fdl("go", "quick", "--help").out.split())


def parsed(result: Any) -> dict[str, Any]:
    assert result.code == 0, result.err
    values: dict[str, Any] = dict(eval(result.out))
    return values


PRESETS = """\
training: { epochs: 7 }
options: { fast: true, names: [a, b c] }
commands:
  quick:
    training: { epochs: 1 }
    options: { n: 9, shuffle: false, tag: [x, y], text: "-dash" }
  wrong:
    options: { n: abc, policy: zigzag, sped: 3 }
"""


def test_a_preset_becomes_options_and_what_is_typed_wins(fdl: Fdl, entry: Any) -> None:
    entry(ARGPARSE, PRESETS)
    values = parsed(fdl("go", "quick"))
    assert values["epochs"] == 1
    assert (values["n"], values["fast"], values["shuffle"], values["tag"]) == (9, True, False, ["x", "y"])
    assert (values["names"], values["text"]) == (["a", "b c"], "-dash")
    values = parsed(fdl("go", "quick", "-n", "5", "--epochs=2"))
    assert (values["n"], values["epochs"]) == (5, 2)
    assert parsed(fdl("go"))["epochs"] == 7


@pytest.mark.parametrize("words", [["--n", "5"], ["-n5"], ["--n=5"]])
def test_an_option_given_by_preset_and_by_hand_reaches_the_entry_once(fdl: Fdl, entry: Any, words: list[str]) -> None:
    entry(ARGPARSE, PRESETS)
    printed = fdl("--dry-run", "go", "quick", *words).out
    assert re.findall(r" (--?n[ =]?\d+)", printed) == [" ".join(words)]


def test_the_values_of_a_preset_are_checked_with_their_place(fdl: Fdl, entry: Any) -> None:
    entry(ARGPARSE, PRESETS)
    result = fdl("go", "wrong")
    assert (result.code, result.out) == (2, "")
    for said in (
        "go/fdl.yml:9:19: n is 'abc'; it must be a whole number",
        "go/fdl.yml:9:32: policy is 'zigzag'. Valid: async, cadence.",
        "go/fdl.yml:9:40: the entry has no option 'sped'.",
    ):
        assert said in result.err
    assert parsed(fdl("go", "quick"))["n"] == 9  # its neighbour is not concerned


def test_a_misspelt_preset_is_told_the_nearest(fdl: Fdl, entry: Any) -> None:
    entry(ARGPARSE, PRESETS)
    result = fdl("go", "quik")
    assert result.code == 2
    assert "fdl go has no command 'quik'. Did you mean 'quick'?" in result.err


def test_options_of_an_unknown_program_are_passed_by_name(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { go: { path: go } }")
    write(
        "go/fdl.yml",
        "entry: sh show.sh\noptions: { batch_size: 3, loud: true, quiet: false }\ncommands: { a: { options: { x: [1, 2] } } }",
    )
    write("go/show.sh", 'for w in "$@"; do echo "$w"; done')
    assert fdl("go", "a", "typed").out.split() == ["--batch-size", "3", "--loud", "--x", "1", "2", "typed"]
    assert fdl("go", "--batch-size", "4").out.split() == ["--loud", "--batch-size", "4"]


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


def test_a_schema_can_be_a_file(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { go: { path: go } }")
    write("go/fdl.yml", "entry: echo\nschema: args.json\n")
    assert "cannot read" in fdl("go").err
    write("go/args.json", '{"options": [{"name": "n", "flags": ["--n"], "required": true}]}')
    assert "go: --n is missing" in fdl("go").err
    assert fdl("go", "--n", "1").out == "--n 1\n"


def test_answers_are_kept_until_a_file_changes(fdl: Fdl, entry: Any, tmp_path: Path) -> None:
    entry(ARGPARSE.replace("DEFAULT = 3", "from defaults import DEFAULT"))
    (tmp_path / "go" / "defaults.py").write_text("DEFAULT = 3\n")
    assert "9 options (asked now)" in fdl("schema", "list").out
    assert "asked now" not in fdl("schema", "list").out
    (tmp_path / "go" / "defaults.py").write_text("DEFAULT = 41\n")  # a module that the parser is built from
    assert "[41, train.py]" in fdl("go", "--help").out
    assert "asked now" not in fdl("schema", "list").out
    assert "asked now" in fdl("schema", "refresh").out
    assert fdl("schema", "clear").out.startswith("1 forgotten")
    assert "asked now" in fdl("schema", "list").out


@pytest.mark.parametrize("home", ["none", "read-only"])
def test_without_a_place_for_the_cache_everything_works(fdl: Fdl, entry: Any, tmp_path: Path, home: str) -> None:
    entry(ARGPARSE)
    if home == "none":
        environ = {"HOME": None}
    else:
        blocked = tmp_path / "blocked"
        blocked.write_text("a file where the folder would be")  # root may write into any folder
        environ = {"XDG_CACHE_HOME": str(blocked)}
    for _ in range(2):
        assert "must be a whole number" in fdl("go", "--n", "x", env=environ).err
        assert fdl("go", env=environ).code == 0


def test_the_run_configuration_reaches_the_entry_as_a_file(fdl: Fdl, entry: Any, tmp_path: Path) -> None:
    script = """\
import json, os, pathlib
path = os.environ['FDL_CONFIG']
print(json.dumps([json.loads(pathlib.Path(path).read_text()), path]))
"""
    entry(
        script,
        "training:\n  epochs: 7\n  seed: 1\noutput: { folder: out }\ncommands:\n  quick:\n    training: { epochs: 1 }\n",
    )
    config, path = json.loads(fdl("go", "quick").out)
    assert config["values"] == {"training": {"epochs": 1, "seed": 1}, "output": {"folder": "out"}}
    assert config["origins"]["training.epochs"] == {
        "file": str(tmp_path / "go" / "fdl.yml"),
        "line": 8,
        "column": 25,
        "text": "go/fdl.yml:8",
    }
    assert not os.path.exists(path)
    config, _ = json.loads(fdl("--set", "training.epochs=5", "go").out)
    assert config["values"]["training"]["epochs"] == 5
    assert config["origins"]["training.epochs"]["text"] == "--set"


def test_what_is_typed_is_in_the_run_configuration(fdl: Fdl, entry: Any) -> None:
    reader = """\
    import os, sys
    sys.stderr.write(pathlib.Path(os.environ['FDL_CONFIG']).read_text())
    print("""
    entry(ARGPARSE.replace("    print(", reader), "training: { epochs: 7 }\n")
    assert json.loads(fdl("go").err)["values"] == {"training": {"epochs": 7}}
    said = json.loads(fdl("go", "--epochs", "3").err)
    assert said["values"] == {"training": {"epochs": 3}}
    assert said["origins"]["training.epochs"]["text"] == "--epochs on the command line"


def test_words_behind_the_dashes_are_the_entry_s_own_business(fdl: Fdl, entry: Any) -> None:
    entry(ARGPARSE)
    result = fdl_raw(fdl, "go", "--", "--n", "abc")
    assert result.returncode == 2
    assert "invalid int value" in result.stderr
    assert "usage: train.py" in fdl("go", "--", "--help").out


def test_a_module_can_be_the_entry(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { go: { path: go } }")
    write("go/fdl.yml", "entry: python -m pack.train")
    write("go/pack/__init__.py", "")
    write("go/pack/train.py", ARGPARSE)
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


def test_a_preset_can_have_an_entry_of_its_own(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { bench: { path: bench } }")
    write(
        "bench/fdl.yml",
        "commands:\n  graph: { entry: python graph.py, options: { rounds: 3 } }\n  other: { run: echo other }\n",
    )
    write(
        "bench/graph.py",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--rounds', type=int)\nprint(p.parse_args())\n",
    )
    assert fdl("bench", "graph").out == "Namespace(rounds=3)\n"
    assert fdl("bench", "graph", "--rounds", "5").out == "Namespace(rounds=5)\n"
    assert "bench graph: --rounds is 'x'" in fdl("bench", "graph", "--rounds", "x").err
    assert "--rounds INT" in fdl("bench", "graph", "--help").out
    assert "fdl bench graph" in fdl("schema", "list").out
    assert fdl("--complete", "fish", "bench", "graph", "--r").out.splitlines()[1] == "--rounds\t"
