"""The part of a script that builds its parser, cut out of it without running anything.

Started from the statement that parses (`parser.parse_args()`, a click command's call, `typer.run(main)`), only the statements
before it that it depends on are kept: imports, helpers and assignments whose names it uses, and calls on them. What a script
does besides (loading data, importing torch for its training) is not in the slice and never runs.

Runs in the project's own Python, by path: it imports nothing but the standard library.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

__all__ = ["PROBE", "cut"]

PROBE = "__fdl_probe__"
_PARSING = {"parse_args", "parse_known_args", "parse_intermixed_args", "parse_args_into_dataclasses"}
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def cut(tree: ast.Module) -> tuple[ast.Module, list[ast.stmt]] | None:
    """A module that does nothing but build the parser and hand it over, and the statements before that it leaves out.

    None when the script has no parser.
    """
    top = list(_flat(tree.body))
    parsers = _parse_functions(tree)
    index = next(
        (i for i, s in enumerate(top) if not isinstance(s, (*_FUNCTION, ast.ClassDef)) and _parses(s, parsers)), None
    )
    if index is None:
        index = _command_call(top)
    if index is not None:
        kept, _ = _slice(top[:index], _names(top[index]))
        return _module([*kept, top[index]]), _without(top[:index], kept)
    function = next((f for f in _functions(top) if any(_parses(s, parsers) for s in f.body)), None)
    if function is None:
        return None
    at = next(i for i, s in enumerate(function.body) if _parses(s, parsers))
    body, needed = _slice(function.body[:at], _names(function.body[at]))
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    others = [s for s in top if s is not function]
    kept, _ = _slice(others, needed - set(parameters))
    left_out = [*_without(others, kept), *_without(function.body[:at], body)]
    return _module([*kept, *_call_of([*body, function.body[at]], parameters)]), left_out


def _without(statements: Sequence[ast.stmt], kept: Sequence[ast.stmt]) -> list[ast.stmt]:
    return [s for s in statements if not any(s is k for k in kept)]


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those under `if __name__ == "__main__":` among them."""
    for statement in body:
        if isinstance(statement, ast.If) and "__name__" in _names(statement.test):
            yield from statement.body
        else:
            yield statement


def _functions(top: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for statement in top:
        if isinstance(statement, ast.FunctionDef):
            yield statement


def _parse_functions(tree: ast.Module) -> set[str]:
    """The names under which the script knows the parse function of `flodl_cli.args`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "flodl_cli.args":
            names |= {a.asname or a.name for a in node.names if a.name == "parse"}
        if isinstance(node, ast.ImportFrom) and node.module == "flodl_cli":
            names |= {f"{a.asname or a.name}.parse" for a in node.names if a.name == "args"}
        if isinstance(node, ast.Import):
            names |= {
                f"{a.asname}.parse" if a.asname else "flodl_cli.args.parse"
                for a in node.names
                if a.name == "flodl_cli.args"
            }
    return names


def _parses(statement: ast.stmt, parsers: set[str]) -> bool:
    return any(
        (isinstance(call.func, ast.Attribute) and call.func.attr in _PARSING)
        or ast.unparse(call.func) in parsers
        or ast.unparse(call.func) == "typer.run"
        for call in ast.walk(statement)
        if isinstance(call, ast.Call)
    )


def _command_call(top: Sequence[ast.stmt]) -> int | None:
    """Where a click command or a typer application is called."""
    commands: set[str] = set()
    for i, statement in enumerate(top):
        if isinstance(statement, _FUNCTION):
            ends = {
                ast.unparse(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2]
                for d in statement.decorator_list
            }
            if ends & {"command", "group"}:
                commands.add(statement.name)
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            if ast.unparse(statement.value.func).rpartition(".")[2] in ("Typer", "Group", "Command"):
                commands |= {t.id for t in statement.targets if isinstance(t, ast.Name)}
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            called = statement.value.func
            if isinstance(called, ast.Name) and called.id in commands:
                return i
    return None


def _slice(statements: Sequence[ast.stmt], needed: set[str]) -> tuple[list[ast.stmt], set[str]]:
    """The statements that the needed names depend on, in their order, and all names that those need."""
    needed = set(needed)
    imported = {name for s in statements if isinstance(s, (ast.Import, ast.ImportFrom)) for name in _bound(s)}
    kept: set[int] = set()
    grown = True
    while grown:
        grown = False
        for i, statement in reversed(list(enumerate(statements))):
            if i in kept:
                continue
            changes = _changes(statement, needed, imported)
            if changes or _is_future(statement) or _is_path_change(statement) or _bound(statement) & needed:
                kept.add(i)
                needed |= _needs(statement)
                if changes:  # what it binds is a part of the parser: group = parser.add_argument_group()
                    needed |= _bound(statement)
                grown = True
    return [statements[i] for i in sorted(kept)], needed


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _is_path_change(statement: ast.stmt) -> bool:
    """`sys.path.insert(0, ...)`: the imports behind it depend on it."""
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return is_call and ast.unparse(statement).startswith("sys.path.")


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement gives a value."""
    if isinstance(statement, (*_FUNCTION, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(a.asname or a.name).partition(".")[0] for a in statement.names}
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | {
        name
        for inner in ast.walk(statement)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
        for name in _bound(inner)
    }


def _changes(statement: ast.stmt, needed: set[str], imported: set[str]) -> bool:
    """True for a call on or with a needed name (`parser.add_argument(...)`), and a function that a decorator registers.

    A call on something imported (`pathlib.Path("x").touch()`) changes no parser, unless it says that it adds to one.
    """
    if isinstance(statement, _FUNCTION):
        return any(_root(d) in needed for d in statement.decorator_list)
    if isinstance(statement, (ast.ClassDef, ast.Import, ast.ImportFrom)):
        return False
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
    own = needed - imported
    return any(
        (isinstance(c.func, ast.Attribute) and _root(c.func) in (needed if c.func.attr.startswith("add_") else own))
        or any(isinstance(a, ast.Name) and a.id in own for a in (*c.args, *(k.value for k in c.keywords)))
        for c in calls
        if not (isinstance(c.func, ast.Name) and c.func.id == "print")
    )


def _needs(statement: ast.stmt) -> set[str]:
    """The names that a kept statement uses; of a decorated function (a command) all but its body."""
    if isinstance(statement, _FUNCTION) and statement.decorator_list:
        parts: list[ast.AST] = [*statement.decorator_list, statement.args]
        return {name for part in parts for name in _names(part)}
    return _names(statement)


def _names(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for inner in ast.walk(node):
        annotation = inner.annotation if isinstance(inner, (ast.arg, ast.AnnAssign)) else None
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):  # in quotes
            quoted = ast.parse(annotation.value, mode="eval")
            names |= {n.id for n in ast.walk(quoted) if isinstance(n, ast.Name)}
    return names


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _call_of(body: list[ast.stmt], parameters: list[str]) -> list[ast.stmt]:
    """A function with this body, its parameters None, and its call."""
    frame = ast.parse(f"def {PROBE}({', '.join(f'{p}=None' for p in parameters)}):\n    pass\n{PROBE}()").body
    assert isinstance(frame[0], ast.FunctionDef)
    frame[0].body = body
    return frame


def _module(body: list[ast.stmt]) -> ast.Module:
    return ast.fix_missing_locations(ast.Module(body, []))
