"""Tasks of a manifest, each call a real process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.errors import nearest

Fdl = Callable[..., Any]
Write = Callable[..., Path]


@pytest.mark.parametrize(
    "words",
    [
        ["a", "b c"],
        ["-DVAR='hello, world'"],
        ["$HOME; touch x", "`touch x`", "$(touch x)", "a|b", "> x"],
        ["*", "?", "~", "[a-z]"],
        ["", " ", "tab\there", "line\nbreak", 'quo"te', "back\\slash"],
        ["--", "-k", "--help"],
        ["ümlaut", "日本"],
    ],
)
def test_arguments_after_the_dashes_arrive_as_they_were_typed(
    fdl: Fdl, write: Write, show_words: Path, words: list[str]
) -> None:
    write("fdl.yml", f"commands:\n  show:\n    run: python {show_words.name}\n")
    result = fdl("show", "--", *words)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [repr(w) for w in words]
    assert not Path("x").exists()


def test_arguments_before_the_dashes_are_refused_with_the_right_form(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands:\n  test:\n    run: touch x\n")
    result = fdl("test", "-k", "a b")
    assert (result.code, result.out) == (2, "")
    assert "fdl test -- -k 'a b'" in result.err
    assert "fdl test -- b c" in fdl("test", "b", "--", "c").err
    assert not Path("x").exists()


# In each "words" stands for `python words.py`.
@pytest.mark.parametrize(
    "line",
    [
        "words # what it does",
        "words # it's\n# \"one more",
        "echo one > /dev/null; words 2>&1 #",
        "cd . && words $(echo)",
        "words ${NO_SUCH#x}",
        "for i in 1; do :; done\nwords",
        "echo '$1' >/dev/null | words",
        "true '#' \"#\"; words",
        'if true; then words "$@"; fi',
        '( words "$@" )',
        'cat << E > /dev/null; words "$@"\n# it\'s\nE',
    ],
)
def test_arguments_reach_the_last_command_of_a_line(fdl: Fdl, write: Write, show_words: Path, line: str) -> None:
    write("fdl.yml", f"commands: {{ show: {{ run: {json.dumps(line.replace('words', 'python words.py'))} }} }}")
    result = fdl("show", "--", "a b", "c")
    assert (result.code, result.out.splitlines()[-2:]) == (0, ["'a b'", "'c'"]), result.err


@pytest.mark.parametrize(
    "line",
    [
        "cat << E\ntext\nE",
        "echo a \\",
        "for i in 1 2; do echo $i; done",
        "for i in 1 2; do echo $i; done > out # comment",
        "( echo a )",
        "{ echo a; }",
        "echo a &",
        "echo a;",
        "if true; then echo a; fi",
    ],
)
def test_arguments_that_no_command_would_take_are_refused(fdl: Fdl, write: Write, line: str) -> None:
    write("fdl.yml", f"commands: {{ show: {{ run: {json.dumps(line)} }} }}")
    result = fdl("show", "--", "x")
    assert (result.code, result.out) == (2, "")
    assert "fdl.yml:1:26: run: its end is no simple command" in result.err
    assert 'write "$@" in the line' in result.err
    assert fdl("show").code == 0


def test_a_comment_does_not_swallow_what_is_appended(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { up: { run: 'echo a # comment', append: '| tr a-z A-Z' } }")
    assert fdl("up").out == "A\n"
    assert fdl("up", "--", "b").out == "A B\n"


def test_the_exit_code_of_the_task_is_the_exit_code_of_fdl(fdl: Fdl, write: Write) -> None:
    write(
        "fdl.yml",
        "commands:\n  seven: { run: exit 7 }\n  term: { run: 'kill -TERM $$' }\n  no: { run: no-such-program }\n",
    )
    assert fdl("seven").code == 7
    assert fdl("term").code == 143
    assert fdl("no").code == 127


def test_a_path_command_runs_the_entry_of_its_folder_with_plain_arguments(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands:\n  demo: { path: examples/demo }\n")
    write("examples/demo/fdl.yml", "entry: python show.py first\ncommands:\n  quick: { run: echo quick }\n")
    write("examples/demo/show.py", "import os, sys\nprint(sys.argv[1:], os.path.basename(os.getcwd()))\n")
    assert fdl("demo", "--data", "fashion mnist").out == "['first', '--data', 'fashion mnist'] demo\n"
    assert fdl("demo").out == "['first'] demo\n"
    assert fdl("demo", "quick").out == "quick\n"


def test_a_misspelt_command_is_told_the_nearest(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands:\n  train: { run: 'true' }\n  test: { run: 'true' }\n")
    result = fdl("trian")
    assert (result.code, result.out) == (2, "")
    assert "'trian'" in result.err
    assert "Did you mean 'train'" in result.err
    for words in (["confg", "show"], ["confg", "--help"]):
        assert "Did you mean 'config'" in fdl(*words).err


def test_what_was_refused_is_not_suggested() -> None:
    assert nearest("train", ["train", "trian"]) == " Did you mean 'trian'?"
    assert nearest("3", [3]) == ""


def test_a_manifest_above_is_found_and_its_folder_is_where_tasks_run(fdl: Fdl, write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "Größe und Maß"
    write("fdl.yml", "commands:\n  where: { run: pwd }\n", folder)
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    assert fdl("where", cwd=deep).out == f"{folder}\n"


def test_a_named_project_is_used_from_anywhere_and_not_handed_down(fdl: Fdl, write: Write, tmp_path: Path) -> None:
    write("one/fdl.yml", "commands:\n  hand: { run: 'echo here; env | grep FDL_PROJECT' }\n")
    result = fdl("hand", env={"FDL_PROJECT": str(tmp_path / "one")}, cwd=Path("/"))
    assert (result.code, result.out) == (1, "here\n")


def test_python_is_the_one_of_the_project(fdl: Fdl, write: Write, tmp_path: Path) -> None:
    write("fdl.yml", "commands:\n  which: { run: command -v python }\n")
    python = write(".venv/bin/python", "#!/bin/sh\n")
    python.chmod(0o755)
    assert fdl("which", env={"VIRTUAL_ENV": None}).out == f"{python}\n"


def test_variables_of_a_task(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "env: { A: all, B: 1 }\ncommands:\n  show: { run: 'echo $A $B $C', env: { A: own, C: true } }\n")
    assert fdl("show").out == "own 1 true\n"
