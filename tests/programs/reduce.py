"""Makes a failing program small: deletes statements and replaces expressions by parts of them, while it fails."""

from __future__ import annotations

import ast
import copy
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

#: Fields that hold statements.
BODIES = ("body", "orelse", "finalbody")
#: Simplest replacements of an expression; tried after its own parts.
CONSTANTS = ("1", "True", "'a'", "[]")

Edit = Callable[[ast.Module], None]


def reduced(source: str, fails: Callable[[str], bool], seconds: float = 60.0) -> str:
    """The smallest program found for which `fails` is true, within a time limit."""
    deadline = time.monotonic() + seconds
    best = ast.parse(source)
    coarse = (definitions, statements, unwrappings, parameters)
    for passes in (coarse, (*coarse, elements), (*coarse, elements, expressions)):
        before = None
        while before != (before := ast.dump(best)) and time.monotonic() < deadline:
            for edits in passes:
                best = _greedy(best, edits, fails, deadline)
    return ast.unparse(best) + "\n"


def _greedy(
    best: ast.Module, edits: Callable[[ast.Module], list[Edit]], fails: Callable[[str], bool], deadline: float
) -> ast.Module:
    """Apply each edit that keeps the program failing; the list is made again after one that did."""
    k = 0
    while time.monotonic() < deadline:
        tree = copy.deepcopy(best)
        found = edits(tree)
        if k >= len(found):
            break
        found[k](tree)
        if _fails(tree, fails):
            best = tree
        else:
            k += 1
    return best


def _fails(tree: ast.Module, fails: Callable[[str], bool]) -> bool:
    try:
        source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "reduced", "exec")
            return fails(source)
    except (SyntaxError, ValueError, TypeError):
        return False


def _bodies(tree: ast.AST) -> Iterator[tuple[Any, str, list[ast.stmt]]]:
    for node in ast.walk(tree):
        for name in BODIES:
            body = getattr(node, name, None)
            if isinstance(body, list) and body and not isinstance(node, ast.Lambda | ast.IfExp):
                yield node, name, body


def definitions(tree: ast.Module) -> list[Edit]:
    """Delete a top-level definition."""
    return statements(tree, lambda node: isinstance(node, ast.Module))


def statements(tree: ast.Module, where: Callable[[ast.AST], bool] = lambda node: True) -> list[Edit]:
    """Delete a run of statements: long runs first."""
    edits: list[Edit] = []
    for node, name, body in _bodies(tree):
        if not where(node):
            continue
        for size in dict.fromkeys((len(body) // 2, 4, 2, 1)):
            for start in range(len(body) - size, -1, -1) if size else ():
                edits.append(_deletion(node, name, body, start, size))
    return edits


def _deletion(node: Any, name: str, body: list[ast.stmt], start: int, size: int) -> Edit:
    def edit(tree: ast.Module) -> None:
        left = body[:start] + body[start + size :]
        needed = name == "body" or isinstance(node, ast.Try) and not node.handlers and name == "finalbody"
        if [type(s) for s in body] == [ast.Pass] and needed:
            raise_unchanged()
        setattr(node, name, left or ([ast.Pass()] if needed else []))

    return _safe(edit)


class Unchanged(Exception):
    """An edit that does nothing."""


def raise_unchanged() -> None:
    raise Unchanged


def _safe(edit: Edit) -> Edit:
    """An edit that does nothing leaves a program that cannot be compiled, and so is not taken."""

    def guarded(tree: ast.Module) -> None:
        try:
            edit(tree)
        except Unchanged:
            tree.body = [ast.Return()]

    return guarded


def unwrappings(tree: ast.Module) -> list[Edit]:
    """Replace a compound statement by one of its blocks, and drop handlers and `with` items."""
    edits: list[Edit] = []
    for node, name, body in _bodies(tree):
        for k, statement in enumerate(body):
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                continue
            inner = [getattr(statement, b, None) for b in BODIES]
            inner += [h.body for h in getattr(statement, "handlers", [])]
            inner += [c.body for c in getattr(statement, "cases", [])]
            edits += [_setting(node, name, [*body[:k], *block, *body[k + 1 :]]) for block in inner if block]
            for field in ("handlers", "items", "cases"):
                parts = getattr(statement, field, [])
                if len(parts) > 1 or parts and field == "handlers" and statement.finalbody:  # type: ignore[attr-defined]
                    edits += [_setting(statement, field, parts[:j] + parts[j + 1 :]) for j in range(len(parts))]
    return edits


def parameters(tree: ast.Module) -> list[Edit]:
    """Drop a parameter of `program` and the argument for it; decorators, defaults and keyword-only parameters of all."""
    edits: list[Edit] = []
    main = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "program"), None)
    factory = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "arguments"), None)
    if main is not None and factory is not None:
        edits += [_parameter(main, factory, k) for k in range(len(main.args.args))]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.decorator_list:
            edits.append(_setting(node, "decorator_list", []))
    return edits


def _parameter(main: ast.FunctionDef, factory: ast.FunctionDef, k: int) -> Edit:
    def edit(tree: ast.Module) -> None:
        last = factory.body[-1]
        if not (isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple) and len(last.value.elts) == 2):
            raise Unchanged
        positional, keywords = last.value.elts
        name = main.args.args.pop(k).arg
        if isinstance(positional, ast.Tuple) and k < len(positional.elts):
            positional.elts.pop(k)
        elif isinstance(keywords, ast.Dict):
            at = [ast.literal_eval(key) for key in keywords.keys if key is not None].index(name)
            keywords.keys.pop(at)
            keywords.values.pop(at)

    return _safe(edit)


def elements(tree: ast.Module) -> list[Edit]:
    """Drop an element of a display, an argument of a call, an operand, a condition of a comprehension."""
    edits: list[Edit] = []
    for node in _inside_functions(tree):
        for field in ("elts", "args", "keywords", "values", "ifs", "generators", "targets", "names"):
            parts = getattr(node, field, None)
            if not isinstance(parts, list) or isinstance(node, ast.Dict | ast.arguments):
                continue
            shortest = 1 if field in ("values", "generators", "targets", "names") else 0
            if len(parts) > shortest:
                edits += [_setting(node, field, parts[:j] + parts[j + 1 :]) for j in range(len(parts))]
        if isinstance(node, ast.Dict):
            for j in range(len(node.keys)):
                edits.append(_pair(node, j))
        if isinstance(node, ast.Return) and node.value is not None or isinstance(node, ast.Raise) and node.cause:
            edits.append(_setting(node, "value" if isinstance(node, ast.Return) else "cause", None))
    return edits


def _pair(node: ast.Dict, j: int) -> Edit:
    def edit(tree: ast.Module) -> None:
        node.keys.pop(j)
        node.values.pop(j)

    return edit


def expressions(tree: ast.Module) -> list[Edit]:
    """Replace an expression by one of its parts, by a parameter, or by a constant."""
    edits: list[Edit] = []
    for node in _inside_functions(tree):
        for field, value in ast.iter_fields(node):
            places = enumerate(value) if isinstance(value, list) else [(None, value)]
            for at, child in places:
                if not isinstance(child, ast.expr) or isinstance(getattr(child, "ctx", ast.Load()), ast.Store | ast.Del):
                    continue
                parts = [n for n in ast.walk(child) if isinstance(n, ast.expr) and n is not child]
                smaller = parts[:8] if not isinstance(child, ast.Constant) else []
                if not isinstance(child, ast.Constant | ast.Name) and field != "func":
                    smaller += [ast.parse(text, mode="eval").body for text in CONSTANTS]
                edits += [_replacement(node, field, at, part) for part in smaller]
    return edits


def _inside_functions(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes of statements, without the return statement of the argument factory."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "arguments":
            for inner in statement.body[:-1]:
                yield from ast.walk(inner)
        else:
            yield from ast.walk(statement)


def _replacement(node: ast.AST, field: str, at: int | None, part: ast.expr) -> Edit:
    def edit(tree: ast.Module) -> None:
        if at is None:
            setattr(node, field, part)
        else:
            getattr(node, field)[at] = part

    return edit


def _setting(node: ast.AST, field: str, value: Any) -> Edit:
    def edit(tree: ast.Module) -> None:
        setattr(node, field, value)

    return edit
