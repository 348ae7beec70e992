"""Merging, references, and the layers of a manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.config.layers import Resolved, Selection, resolve
from flodl_cli.config.report import document
from flodl_cli.errors import CliError

Fdl = Callable[..., Any]
Write = Callable[..., Path]


def layered(
    write: Write, *texts: str, environ: Mapping[str, str] | None = None, settings: tuple[str, ...] = ()
) -> Resolved:
    """The texts as fdl.yml, fdl.e1.yml, fdl.e2.yml... on top of each other."""
    folder = write("fdl.yml", texts[0]).parent
    names = [f"e{i}" for i in range(1, len(texts))]
    for name, text in zip(names, texts[1:], strict=True):
        write(f"fdl.{name}.yml", text)
    return resolve(folder, folder, Selection(tuple(names), settings), environ or {})


def values(*args: Any, **options: Any) -> Any:
    resolved = layered(*args, **options)
    assert resolved.problems == ()
    return resolved.node.plain()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a: { b: { c: 1, d: 2 } }", "a: { b: { d: 3, e: 4 } }"], {"a": {"b": {"c": 1, "d": 3, "e": 4}}}),
        (["a: [1, 2]", "a: [3]"], {"a": [3]}),
        (["a: true", "a: false"], {"a": False}),
        (["a: 1", "a: 0"], {"a": 0}),
        (["a: x", "a: ''"], {"a": ""}),
        (["a: { b: 1, c: 2 }", "a: null"], {}),
        (["a: { b: 1, c: 2 }", "a: { b: null }"], {"a": {"c": 2}}),
        (["x: 1", "a: { b: null, c: { d: null, e: 1 } }"], {"x": 1, "a": {"c": {"e": 1}}}),  # the base lacks it
        (["a: { b: 1 }", "a: { b: null }", "a: { b: 2 }"], {"a": {"b": 2}}),  # a reset over three layers
        (["a: { b: 1, c: 2 }", "a: null", "a: { c: 3 }"], {"a": {"c": 3}}),
        (["a: { b: 1 }", "x: 1", "a: { b: null }"], {"a": {}, "x": 1}),
        (["a: [1]", "a: !append [2]", "a: !prepend [0]"], {"a": [0, 1, 2]}),
        (["x: 1", "a: !append [2]"], {"x": 1, "a": [2]}),
        (["a: [1]", "a: null", "a: !append [2]"], {"a": [2]}),
        (["a: { b: 1, c: { d: 1 } }", "a: { c: !replace { e: 2 } }"], {"a": {"b": 1, "c": {"e": 2}}}),
        (["a: { b: 1 }", "a: 3"], {"a": 3}),
        (["a: 3", "a: { b: null, c: 1 }"], {"a": {"c": 1}}),
        (["a: { b: 1 }", "a: {}"], {"a": {"b": 1}}),
        (["a: [null, 1]"], {"a": [None, 1]}),
        (["a: null\nb: 1"], {"b": 1}),
        (["b: 1\na: 1", "c: 1\na: 2\nb: 2"], {"b": 2, "a": 2, "c": 1}),
    ],
)
def test_layers_merge(write: Write, texts: list[str], expected: dict[str, Any]) -> None:
    result = values(write, *texts)
    assert result == expected
    assert list(result) == list(expected)  # the base's order, then new keys


def test_a_list_extension_of_something_else_is_told(write: Write) -> None:
    with pytest.raises(CliError) as caught:
        layered(write, "a: { b: 1 }", "a: { b: !append [2] }")
    assert "fdl.e1.yml:1:9: !append extends a list, and a.b is '1' (fdl.yml:1)" in caught.value.render()


def test_the_whole_history_of_a_setting_is_kept(write: Write) -> None:
    resolved = layered(write, "a: { b: 1 }", "a: { b: null }", "a:\n  b: 2", settings=("a.b=3",))
    entry = document(resolved.node, resolved.layers)["origins"]["a.b"]
    assert (entry["value"], entry["text"], entry["file"]) == (3, "--set", None)
    chain = [(c["value"], c["text"], c.get("deleted", False)) for c in entry["chain"]]
    assert chain == [(1, "fdl.yml:1", False), (None, "fdl.e1.yml:1", True), (2, "fdl.e2.yml:2", False)]


def test_a_deletion_is_part_of_the_document(write: Write) -> None:
    resolved = layered(write, "a: { b: 1, c: 2 }", "a: null")
    shown = document(resolved.node, resolved.layers)
    assert shown["values"] == {}
    assert shown["origins"]["a.b"]["deleted"] is True
    assert shown["origins"]["a.b"]["text"] == "fdl.e1.yml:1"
    assert [c["value"] for c in shown["origins"]["a.c"]["chain"]] == [2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: ${env:N}\nb: '${env:N}'", {"a": 3, "b": "3"}),
        ("a: ${env:MISSING:7}", {"a": 7}),
        ("a: ${env:MISSING:}", {"a": None}),
        ("a: x-${env:N}-${env:MISSING:y:z}", {"a": "x-3-y:z"}),
        ("a: ${b.c}\nb: { c: [1, 2] }", {"a": [1, 2], "b": {"c": [1, 2]}}),
        ("a: ${b}\nb: { c: '${d}' }\nd: true", {"a": {"c": True}, "b": {"c": True}, "d": True}),
        ("a: is ${b}\nb: false", {"a": "is false", "b": False}),
        ("a: $${b}\nb: 1", {"a": "${b}", "b": 1}),
        ("a: ${env:MISSING:${env:N}}\nb: 'x ${env:MISSING:${env:GONE:c}-${c}}'\nc: 1", {"a": 3, "b": "x c-1", "c": 1}),
        ("a: ${env:MISSING:{}}", {"a": "{}"}),
        ('a: ${"x.y".z}\nx.y: { z: 1 }', {"a": 1, "x.y": {"z": 1}}),
        ("commands: { t: { run: 'echo ${HOME} ${x.y} ${env:N} ${HOME' } }\nx: { y: 5 }", None),
    ],
)
def test_references(write: Write, text: str, expected: dict[str, Any] | None) -> None:
    result = values(write, text, environ={"N": "3"})
    if expected is None:
        assert result["commands"]["t"]["run"] == "echo ${HOME} 5 3 ${HOME"
    else:
        assert result == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: ${b}\nb: ${c.d}\nc: { d: 'x${a}' }", "a cycle: a -> b -> c.d -> a"),
        ("a: ${a}", "a cycle: a -> a"),
        ("a: ${dbp.policy}\nddp: { policy: x }", "${dbp.policy}: there is no setting 'dbp'. Did you mean 'ddp'?"),
        ("a: ${env:NOT_SET}", "the environment variable NOT_SET is not set"),
        ("a: x ${b}\nb: { c: 1 }", "${b} is a map: it can only be a whole value"),
        ("a: ${}", "${}: '' is not the name of a setting"),
        ("a: x${.}", "${.}: '.' is not the name of a setting"),
        ('a: "a${env:X b"', "a `${` without its `}`"),
        ("commands: { t: { run: 'echo ${env:X' } }", "a `${` without its `}`"),
        ("a: ${b.${c}}\nb: { d: 1 }\nc: d", "the name of a setting holds no other reference"),
    ],
)
def test_references_that_lead_nowhere_are_told(write: Write, text: str, said: str) -> None:
    problems = layered(write, text).problems
    assert said in "\n".join(p.message for _, p in problems)
    assert all(p.place is not None and p.place.source.path for _, p in problems)


@pytest.mark.parametrize(
    ("level", "first", "said"),
    [
        ("'${o.a%d}${o.a%d}'", "'0123456789'", "more than 1 MB with its references written out"),
        ("['${o.a%d}', '${o.a%d}']", "[1, 2]", "more than 200000 values with its references written out"),
        ("'${o.a%d}'", "1", "references more than 60 deep"),
    ],
)
def test_a_bomb_of_references_is_refused(write: Write, level: str, first: str, said: str) -> None:
    count = 99 if "deep" in said else 30
    levels = [f"  a{i}: " + level.replace("%d", str(i - 1)) for i in range(count, 0, -1)]
    problems = layered(write, "\n".join(["o:", *levels, f"  a0: {first}"])).problems
    assert said in problems[0][1].message
    assert problems[0][1].render().startswith("fdl.yml:")


def test_all_references_together_are_limited(write: Write) -> None:
    lines = [f"b{i}: '${{a}}${{a}}'" for i in range(20)]
    problems = layered(write, f"a: {'x' * 400_000}\n" + "\n".join(lines)).problems
    assert "more than 8 MB in all" in problems[0][1].message


def test_overlays_see_each_others_references(write: Write) -> None:
    assert values(write, "a: 1\nb: ${a}", "a: 2") == {"a": 2, "b": 2}


def test_the_order_of_all_layers(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { show: { run: echo $A $B $C $D $E, env: { A: 1, B: 1, C: 1, D: 1, E: 1 } } }")
    write("fdl.ci.yml", "commands: { show: { env: { B: 2, C: 2, D: 2, E: 2 } } }")
    write("fdl.local.yml", "commands: { show: { env: { C: 3, D: 3, E: 3 } } }")
    environ = {"FDL_SET_COMMANDS__SHOW__ENV__D": "4"}  # names of settings there are in lower case
    assert fdl("--env", "ci", "--set", "commands.show.env.E=5", "show", env=environ).out == "1 2 3 3 5\n"
    assert fdl("--env", "ci", "config", "explain", "commands.show.env.d", env=environ).out.startswith(
        "commands.show.env.d = 4\n"
    )


def test_ways_to_choose_an_environment(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { show: { run: 'echo $A', env: { A: base } } }")
    write("fdl.ci.yml", "commands: { show: { env: { A: ci } } }")
    write("fdl.gpu.yml", "commands: { show: { env: { A: gpu } } }")
    assert fdl("show").out == "base\n"
    assert fdl("--env", "ci", "show").out == "ci\n"
    assert fdl("--env=ci", "--env", "gpu", "show").out == "gpu\n"
    assert fdl("-e", "gpu,ci", "show").out == "ci\n"
    assert fdl("show", env={"FDL_ENV": "ci"}).out == "ci\n"
    assert fdl("ci", "show").out == "ci\n"


def test_a_missing_environment_is_an_error_unless_it_is_the_first_word(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { show: { run: echo } }")
    write("fdl.prod.yml", "")
    for result in (fdl("--env", "prd", "show"), fdl("show", env={"FDL_ENV": "prd"})):
        assert result.code == 2
        assert "there is no environment 'prd'" in result.err
        assert "Did you mean 'prod'?" in result.err
    assert "no command 'prd'" in fdl("prd", "show").err


def test_a_command_named_like_an_environment_is_the_command(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { ci: { run: echo command } }")
    write("fdl.ci.yml", "commands: { ci: { run: echo overlaid } }")
    assert fdl("ci").out == "command\n"
    assert fdl("--env", "ci", "ci").out == "overlaid\n"


@pytest.mark.parametrize("setting", ["training", "=1", "a..b=1", ".a=1"])
def test_a_setting_that_is_none_is_told(fdl: Fdl, write: Write, setting: str) -> None:
    write("fdl.yml", "commands: { show: { run: echo } }")
    result = fdl("--set", setting, "show")
    assert result.code == 2
    assert "for example" in result.err
    assert setting in result.err


def test_a_variable_that_names_no_setting_is_told(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { show: { run: echo } }")
    result = fdl("show", env={"FDL_SET_": "8"})
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("fdl: FDL_SET_=8: '' is not the name of a setting")
