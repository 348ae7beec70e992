"""Which computed choices of a sliced parser can be believed: those that nothing left out of the slice could have changed.

A registry (`R["linear"] = Linear`, `@register("linear")`, a base class that collects its subclasses, a plugin that is imported)
is filled by statements that the slice does not run. A choice too many costs a late error message, a choice too few refuses a
correct call: in doubt the choices are taken for unknown. Literal ones are always believed.

Runs in the project's own Python, by path: it imports nothing but the standard library.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence

__all__ = ["believed"]

_COPIES = {"list", "sorted", "tuple", "set", "frozenset"}
_READERS = _COPIES | {"len", "print", "enumerate", "min", "max", "iter", "repr", "str"}
_READING_METHODS = {"keys", "get", "values", "items", "index", "count"}
_ANYTHING = {"exec", "eval", "globals", "locals", "vars", "importlib", "import_module", "__import__", "setattr"}
_ENUMS = {"Enum", "StrEnum", "IntEnum"}
_STANDARD = sys.stdlib_module_names
_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def believed(module: ast.Module, left_out: Sequence[ast.stmt]) -> ast.Module | None:
    """The module without choices in doubt; None when in doubt are the very options or commands of the parser."""
    doubt = _Doubt(module, left_out)
    for node in list(ast.walk(module)):
        loops = [g.iter for g in getattr(node, "generators", [])] + ([node.iter] if isinstance(node, ast.For) else [])
        if loops and _adds(node) and any(map(doubt.about, loops)):
            return None
        if isinstance(node, (ast.If, ast.While)) and _adds(node) and doubt.about(node.test):
            return None
        if isinstance(node, ast.Call) and _last_name(node.func) in _ENUMS and any(map(doubt.about, node.args)):
            return None
        if isinstance(node, ast.Subscript) and _last_name(node.value) == "Literal" and doubt.about(node.slice):
            return None
    _Unknown(doubt).visit(module)  # changes it in place
    return ast.fix_missing_locations(module)


class _Unknown(ast.NodeTransformer):
    """Choices in doubt become None, a click.Choice in doubt becomes str."""

    def __init__(self, doubt: _Doubt) -> None:
        self.doubt = doubt

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        for keyword in node.keywords:
            if keyword.arg == "choices" and _last_name(node.func) != "Choice" and self.doubt.about(keyword.value):
                keyword.value = ast.Constant(None)
        values = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "choices")]
        if _last_name(node.func) == "Choice" and any(map(self.doubt.about, values)):
            return ast.Name("str", ast.Load())
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.generic_visit(node)
        for i, key in enumerate(node.keys):
            if isinstance(key, ast.Constant) and key.value == "choices" and self.doubt.about(node.values[i]):
                node.values[i] = ast.Constant(None)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        sets = any(isinstance(t, ast.Attribute) and t.attr == "choices" for t in node.targets)
        if sets and self.doubt.about(node.value):
            node.value = ast.Constant(None)
        return node


class _Doubt:
    def __init__(self, module: ast.Module, left_out: Sequence[ast.stmt]) -> None:
        self.left_out = left_out
        self.foreign: set[str] = set()  # names from modules that a plugin could change
        self.values: dict[str, list[ast.AST]] = {}  # what is bound to a name, anywhere in the slice
        self.parents: dict[ast.AST, ast.AST] = {}
        for root in (module, *left_out):
            for node in ast.walk(root):
                self.parents.update(dict.fromkeys(ast.iter_child_nodes(node), node))
                if isinstance(node, (ast.Import, ast.ImportFrom)) and _is_foreign(node):
                    self.foreign |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        for node in ast.walk(module):
            for name, value in _bindings(node, module):
                self.values.setdefault(name, []).append(value)
        self.definitions = [n for root in (module, *left_out) for n in ast.walk(root) if isinstance(n, _DEFINITION)]

    def about(self, expression: ast.AST) -> bool:
        """Could something that was left out have changed the value of this expression?"""
        copied = _copied(expression)
        keys = isinstance(copied, ast.Name) and all(map(_has_plain_keys, self.values.get(copied.id, [None])))
        names = {copied.id} if keys and isinstance(copied, ast.Name) else self.behind(expression)
        if not names:
            return False
        foreign = bool(names & self.foreign)
        touching = self.touching(names, keys=keys)
        return any(self.touches(s, names, touching, keys=keys, foreign=foreign) for s in self.left_out)

    def behind(self, expression: ast.AST) -> set[str]:
        """The names that an expression depends on, through all that is bound to them."""
        found: set[str] = set()
        todo = _used(expression)
        while todo:
            name = todo.pop()
            if name not in found and (name in self.values or name in self.foreign):
                found.add(name)
                for value in self.values.get(name, []):
                    todo |= _used(value)
        return found

    def touching(self, names: set[str], *, keys: bool) -> set[str]:
        """The functions and classes that do something to those names when they are called or derived from."""
        touching: set[str] = set()
        grown = True
        while grown:
            grown = False
            for definition in self.definitions:
                if definition.name not in touching and any(
                    isinstance(n, ast.Name) and (n.id in touching or (n.id in names and not self.reads(n, keys=keys)))
                    for inner in definition.body
                    for n in ast.walk(inner)
                ):
                    touching.add(definition.name)
                    grown = True
        return touching

    def touches(self, statement: ast.stmt, names: set[str], touching: set[str], *, keys: bool, foreign: bool) -> bool:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            return foreign and _is_foreign(statement)
        suspects = touching | _ANYTHING | (self.foreign if foreign else set())
        return any(
            (isinstance(n, (ast.Import, ast.ImportFrom)) and foreign and _is_foreign(n))
            or (isinstance(n, ast.Name) and n.id in names and not self.reads(n, keys=keys))
            or (isinstance(n, ast.Name) and n.id in suspects - names)
            for part in _executed(statement)
            for n in ast.walk(part)
        )

    def reads(self, name: ast.Name, *, keys: bool) -> bool:
        """True where a name is only looked at: `len(R)`, `x in R`, `R.get(x)`, and for its keys `R[x]`, too."""
        parent = self.parents.get(name)
        above = self.parents.get(parent) if parent is not None else None
        if isinstance(parent, ast.Call):
            return isinstance(parent.func, ast.Name) and parent.func.id in _READERS and name in parent.args
        if isinstance(parent, ast.Compare):
            return True
        if isinstance(parent, (ast.For, ast.comprehension)):
            return parent.iter is name and keys
        if isinstance(parent, ast.Attribute):
            return keys and parent.attr in _READING_METHODS and isinstance(above, ast.Call) and above.func is parent
        if isinstance(parent, ast.Subscript) and parent.value is name:
            return keys and isinstance(parent.ctx, ast.Load) and not isinstance(above, (ast.Attribute, ast.Subscript))
        return False


def _bindings(node: ast.AST, module: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """What a node of the slice binds to which names."""
    if isinstance(node, (ast.For, ast.comprehension)):
        yield from ((n, node.iter) for n in _stored(node.target))
    elif isinstance(node, ast.Assign):
        yield from ((n, node.value) for target in node.targets for n in _stored(target))
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        yield from ((n, node.value or node.target) for n in _stored(node.target))
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        yield from ((n, i.context_expr) for i in node.items if i.optional_vars for n in _stored(i.optional_vars))
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name, node
        arguments = node.args
        calls = [c for c in ast.walk(module) if isinstance(c, ast.Call) and _last_name(c.func) == node.name]
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            for call in calls:
                yield from ((argument.arg, value) for value in (*call.args, *(k.value for k in call.keywords)))
            yield from ((argument.arg, d) for d in (*arguments.defaults, *arguments.kw_defaults) if d is not None)
    elif isinstance(node, ast.ClassDef):
        yield node.name, node


def _executed(statement: ast.stmt) -> Iterator[ast.AST]:
    """What runs of a statement when the script reaches it: of a function its decorators and defaults only."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        defaults = (*statement.args.defaults, *statement.args.kw_defaults)
        yield from (*statement.decorator_list, *(d for d in defaults if d is not None))
    elif isinstance(statement, ast.ClassDef):
        yield from (*statement.decorator_list, *statement.bases, *statement.keywords)
        for inner in statement.body:
            yield from _executed(inner)
    else:
        yield statement


def _copied(expression: ast.AST) -> ast.AST:
    """What a copy (`sorted(R)`, `R.keys()`, `[*R]`) is a copy of."""
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id in _COPIES:
        return _copied(expression.args[0]) if len(expression.args) == 1 else expression
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        return _copied(expression.func.value) if expression.func.attr == "keys" else expression
    if isinstance(expression, (ast.List, ast.Tuple)) and len(expression.elts) == 1:
        inner = expression.elts[0]
        return _copied(inner.value) if isinstance(inner, ast.Starred) else expression
    return expression


def _has_plain_keys(value: ast.AST | None) -> bool:
    """A literal collection: what its values are made of changes none of its keys."""
    if isinstance(value, ast.Dict):
        return all(isinstance(k, ast.Constant) for k in value.keys)
    return isinstance(value, (ast.List, ast.Tuple, ast.Set)) and all(isinstance(v, ast.Constant) for v in value.elts)


def _adds(node: ast.AST) -> bool:
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr.startswith("add_") for f in calls)


def _is_foreign(statement: ast.Import | ast.ImportFrom) -> bool:
    """An import of something that is not Python's own."""
    if isinstance(statement, ast.ImportFrom):
        return bool(statement.level) or (statement.module or "").partition(".")[0] not in _STANDARD
    return any(a.name.partition(".")[0] not in _STANDARD for a in statement.names)


def _used(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _stored(target: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
