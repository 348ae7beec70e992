"""`fdl config validate` finds without running anything what a command would be refused for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fdl = Callable[..., Any]
Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("commands: { a: { run: x, needs: biuld }, build: { run: x } }", "1:33: needs: no command 'biuld'. Did you"),
        ("commands: { a: { run: x, needs: [b, a] }, b: { run: x } }", "1:37: needs: a cycle: a -> a"),
        (
            "commands:\n  a: { run: x, needs: b }\n  b: { run: x, needs: [c] }\n  c: { run: x, needs: a }\n",
            "4:23: needs: a cycle: a -> b -> c -> a",
        ),
        ("commands: { a: {} }", "1:13: command 'a' is a preset, and this manifest has no entry for it to start"),
        ("commands: { a: { run: '' } }", "1:23: command 'a': run is empty"),
        ("commands: { a: { run: ' ' } }", "1:23: command 'a': run is empty"),
        ("entry: 'echo \"'\ncommands: { a: { options: { x: 1 } } }", "1:8: entry: no closing quotation"),
    ],
)
def test_what_cannot_run_is_found(fdl: Fdl, write: Write, manifest: str, said: str) -> None:
    write("fdl.yml", manifest)
    result = fdl("config", "validate")
    assert (result.code, result.out) == (2, "")
    assert f"fdl: fdl.yml:{said}" in result.err
    assert result.err.count("fdl: ") == 1


def test_cycles_through_folders_are_found_and_many_paths_are_none(fdl: Fdl, write: Write) -> None:
    levels = "".join(f"  l{i}: {{ run: x, needs: [l{i + 1}, 'sub x', l{i + 1}] }}\n" for i in range(40))
    write("fdl.yml", f"commands:\n{levels}  l40: {{ run: x }}\n  sub: {{ path: sub, needs: [l40] }}\n")
    write("sub/fdl.yml", "commands: { x: { run: x, needs: y }, y: { run: x } }")
    assert fdl("config", "validate").out == "valid: fdl.yml, sub/fdl.yml\n"
    write("sub/fdl.yml", "commands: { x: { run: x, needs: y }, y: { run: x, needs: x } }")
    assert "sub/fdl.yml:1:58: needs: a cycle: sub x -> sub y -> sub x" in fdl("config", "validate").err


def test_options_that_the_entry_refuses_are_found(fdl: Fdl, entry: Any, argparse_script: str, tmp_path: Path) -> None:
    entry(argparse_script, "options: { sped: 1 }\ncommands:\n  wrong: { options: { n: abc, policy: zigzag } }\n")
    result = fdl("config", "validate")
    assert (result.code, result.out) == (2, "")
    for said in (
        "go/fdl.yml:2:12: the entry has no option 'sped'.",
        "go/fdl.yml:4:26: n is 'abc'; it must be a whole number",
        "go/fdl.yml:4:39: policy is 'zigzag'. Valid: async, cadence.",
    ):
        assert said in result.err
    assert result.err.count("fdl: ") == 3
    assert not (tmp_path / "go" / "ran").exists()


def test_a_command_that_hides_a_built_in_is_told_and_the_built_in_can_be_reached(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { schema: { run: echo mine }, completions: { run: echo mine } }")
    result = fdl("config", "validate")
    assert (result.code, result.out) == (0, "valid: fdl.yml\n")
    assert "fdl.yml:1:13: warning: command 'schema' hides fdl's own, which is now `fdl --built-in schema`" in result.err
    assert "fdl.yml:1:41: warning: command 'completions' cannot be called" in result.err
    assert len(json.loads(fdl("config", "validate", "--json").out)["warnings"]) == 2
    listed = fdl("--help").out
    assert "echo mine (hides fdl's own: fdl --built-in schema)" in listed
    assert "echo mine (cannot be called: fdl's own goes first)" in listed
    assert fdl("schema").out == "mine\n"
    assert fdl("--built-in", "schema", "list").out == "no command here has an entry\n"
    wrong = fdl("--built-in", "shcema")
    assert wrong.code == 2
    assert "Did you mean 'schema'" in wrong.err
