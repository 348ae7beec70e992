"""Choices that come from a registry: a correct call is never refused, whatever fills it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]

PARSE = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--model", choices=CHOICES)
print(p.parse_args().model)
"""
REG = "R = {}\ndef reg(name):\n    def keep(made):\n        R[name] = made\n        return made\n    return keep\n"

# Each makes "lin" a valid value.
FILLED = {
    "item": "R = {}\nR['lin'] = 1",
    "next to a literal": "R = {'conv': 2}\nR['lin'] = 1",
    "loop": "R = {'conv': 2}\nfor k in ('lin', 'b'):\n    R[k] = k",
    "if": "R = {'conv': 2}\nif True:\n    R['lin'] = 1",
    "try": "R = {'conv': 2}\ntry:\n    R['lin'] = 1\nexcept KeyError:\n    pass",
    "function": "R = {'conv': 2}\ndef reg(name):\n    R[name] = 1\nreg('lin')",
    "function of a function": "R = {'conv': 2}\ndef put(n):\n    R[n] = 1\ndef reg(n):\n    put(n)\nreg('lin')",
    "decorated function": f"{REG}@reg('lin')\ndef lin():\n    pass",
    "decorated class": f"{REG}R['conv'] = 2\n@reg('lin')\nclass Lin:\n    pass",
    "__init_subclass__": "R = {'conv': 2}\nclass Base:\n    def __init_subclass__(cls):\n        R[cls.__name__] = cls\n"
    "class lin(Base):\n    pass",
    "another name": "R = {'conv': 2}\nsame = R\nsame['lin'] = 1",
    "nested": "C = {'m': {'conv': 2}}\nm = C['m']\nm['lin'] = 1\nR = C['m']",
    "globals": "R = {'conv': 2}\nglobals()['R']['lin'] = 1",
    "decorators of a module": "from registry import R, reg\n@reg('lin')\nclass Lin:\n    pass",
    "a plugin": "from registry import R\nimport plugin",
}
MODULES = {"registry.py": f"{REG}R['conv'] = 2\n", "plugin.py": "import registry\nregistry.R['lin'] = 1\n"}


@pytest.mark.parametrize("choices", ["sorted(R)", "[k for k in R]"])
@pytest.mark.parametrize("kind", FILLED)
def test_a_valid_value_is_never_refused(fdl: Any, entry: Any, write: Write, kind: str, choices: str) -> None:
    for name, text in MODULES.items():
        write(f"go/{name}", text)
    entry(FILLED[kind] + PARSE.replace("CHOICES", choices))
    result = fdl("go", "--model", "lin")
    assert (result.code, result.out) == (0, "lin\n"), result.err


def test_neither_in_a_function_nor_with_click(fdl: Any, entry: Any) -> None:
    function = PARSE.replace("CHOICES", "sorted(R)").strip().replace("\n", "\n    ")
    entry(f"R = {{'conv': 2}}\nR['lin'] = 1\ndef main():\n    {function}\nmain()\n")
    assert fdl("go", "--model", "lin").out == "lin\n"
    entry(
        "import click\nR = {'conv': 2}\nR['lin'] = 1\n@click.command()\n"
        "@click.option('--model', type=click.Choice(sorted(R)))\ndef main(model):\n    print(model)\nmain()\n"
    )
    assert fdl("go", "--model", "lin").out == "lin\n"


@pytest.mark.parametrize("add", ["p.add_argument('--' + k)", "s.add_parser(k)"])
def test_options_and_commands_made_from_a_registry_are_not_refused(fdl: Any, entry: Any, add: str) -> None:
    entry(
        "import argparse\nR = {}\nR['lin'] = 1\np = argparse.ArgumentParser()\ns = p.add_subparsers(required=False)\n"
        f"for k in R:\n    {add}\np.parse_args()\nprint('parsed')\n"
    )
    words = ["--lin", "1"] if "argument" in add else ["lin"]
    assert fdl("go", *words).out == "parsed\n"


@pytest.mark.parametrize(
    "before",
    [
        "import json\nR = ['conv', 'lin']",
        "from missing_for_training import Net\nR = {'conv': Net, 'lin': Net}\ndef build(name):\n    return R[name]()",
        "from enum import Enum\nclass R(str, Enum):\n    conv = 'conv'\n    lin = 'lin'",
        "KINDS = ('conv', 'lin')\nR = [k for k in KINDS]\nother = {}\nother['x'] = 1",
    ],
)
def test_choices_that_nothing_else_touches_are_still_checked(fdl: Any, entry: Any, write: Write, before: str) -> None:
    choices = "[m.value for m in R]" if "Enum" in before else "list(R)"
    write("go/missing_for_training.py", "class Net: pass\n")
    entry(before + PARSE.replace("CHOICES", choices))
    result = fdl("go", "--model", "lni")
    assert result.code == 2
    assert "--model is 'lni'. Did you mean 'lin'" in result.err
