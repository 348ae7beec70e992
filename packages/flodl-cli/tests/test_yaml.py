"""What a manifest file may be, and what it is told when it is not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.config.source import Source
from flodl_cli.config.yaml import parse_yaml
from flodl_cli.errors import CliError

Fdl = Callable[..., Any]
Write = Callable[..., Path]


def plain(text: str) -> Any:
    return parse_yaml(Source("fdl.yml", text)).plain()


def problem(text: str) -> str:
    with pytest.raises(CliError) as caught:
        parse_yaml(Source("fdl.yml", text, Path("fdl.yml")))
    return caught.value.render()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("True", True),
        ("null", None),
        ("~", None),
        ("0o17", 15),
        ("0x1F", 31),
        ("010", 10),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        (".inf", float("inf")),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
        ("1.2.3", "1.2.3"),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    read = plain(f"a: {text}")["a"]
    assert read == value
    assert type(read) is type(value)


def test_keys_are_strings_whatever_they_look_like() -> None:
    assert plain("1: a\nno: b\nnull: c\n1.5: d") == {"1": "a", "no": "b", "null": "c", "1.5": "d"}


def test_a_key_that_is_there_twice_is_told_with_both_lines() -> None:
    said = problem("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n")
    assert "fdl.yml:5:3" in said
    assert "'c' is here twice: first in line 3" in said
    assert said.endswith("    5 |   c: 3\n      |   ^")


def test_merge_keys_give_way_to_own_keys_and_keep_their_place_at_the_anchor() -> None:
    root = parse_yaml(
        Source("f", "x-a: &a { p: 1, q: 2 }\nx-b: &b { q: 3, r: 4 }\nc:\n  <<: [*a, *b]\n  p: 9\n", Path("f"))
    )
    c = root.get("c")
    assert c is not None
    assert c.plain() == {"q": 2, "r": 4, "p": 9}
    assert {k: v.place.line for k, v in c.entries().items()} == {"q": 1, "r": 2, "p": 5}


def test_an_anchor_bomb_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    before = time.process_time()
    assert "more than 200000 values" in problem("\n".join(lines))
    assert time.process_time() - before < 5  # written out, it would be a terabyte


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [*a]", "'*a' is inside the value that it names"),
        ("a: *nothing", "no anchor '&nothing'"),
        ("a: !apend [1]", "unknown tag '!apend'. Did you mean '!append'"),
        ("a: !append x", "!append extends a list: write a list behind it"),
        ("a: !prepend { b: 1 }", "!prepend extends a list: write a list behind it"),
        ("a: !replace x", "!replace replaces a map"),
        ("a:\n\tb: 1", "a tab: YAML is indented with spaces"),
        ("- a", "a manifest is a map of keys, this is a list"),
        ("a: [1, 2", "not valid YAML"),
        ("a: 1\n---\nb: 2", "a second document starts here"),
        ("[a, b]: 1", "a key is a word"),
        ("a: \x07", "U+0007"),
        ("a: " + "[" * 100 + "]" * 100, "more than 64 levels deep"),
        ("a: !!int x", "'x' is not int"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, said: str) -> None:
    assert said in problem(text)


def test_an_empty_file_is_an_empty_manifest() -> None:
    assert plain("") == {}
    assert plain("# nothing\n") == {}


@pytest.mark.parametrize(
    "raw", [b"commands:\r\n  a: { run: echo ok }\r\n", b"\xef\xbb\xbfcommands: { a: { run: echo ok } }"]
)
def test_windows_line_ends_and_a_byte_order_mark_are_fine(fdl: Fdl, write: Write, raw: bytes) -> None:
    write("fdl.yml", raw)
    assert fdl("a").out == "ok\n"


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50 * 2**20)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p.mkdir(), "is a folder"),
        (make_fifo, "is not a regular file"),
        (make_huge, "has 50 MB; a manifest may have 4 MB"),
        (lambda p: p.write_bytes(b"a\x00b"), "is a binary file"),
        (lambda p: p.write_bytes("a: ü".encode("latin-1")), "fdl.yml:1:4: byte 0xfc is not UTF-8"),
        (lambda p: p.write_bytes("a: 1".encode("utf-16")), "is UTF-16"),
        (lambda p: p.write_bytes(b"a:\n\tb: 1\n"), "a tab"),
        (lambda p: p.symlink_to("nowhere"), "does not exist"),
        (lambda p: p.symlink_to("/proc/self/mem"), "cannot read"),
        (lambda p: p.write_bytes(b"rnu: 1\n"), "unknown key 'rnu'"),
    ],
)
def test_a_file_that_is_no_manifest_is_told_what_it_is(
    fdl: Fdl, tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    make(tmp_path / "fdl.yml")
    result = fdl("--help")
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert result.err.startswith("fdl: ")


@pytest.mark.parametrize("text", ["commands: [", "rnu: 1"])
@pytest.mark.parametrize("words", [[], ["test"], ["config", "show"], ["--help", "test"], ["schema", "list"]])
def test_every_command_tells_that_the_manifest_is_broken(fdl: Fdl, write: Write, text: str, words: list[str]) -> None:
    write("fdl.yml", text)
    result = fdl(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("fdl: fdl.yml:1:")
