"""Statements put into a drawn program, at random places of what is compiled: what ends graphs, and what is around others.

A break in a block of autocast, in a module's `forward`, in front of `backward()` or in a `try` statement is a program that
no scenario draws by itself.
"""

from __future__ import annotations

import ast
import random

#: Statements by how often they are drawn. `<X>` stands for a variable, which may hold a tensor.
STATEMENTS = {
    "print(end='')": 3.0,
    "os.getpid()": 2.0,
    "torch.manual_seed(torch.initial_seed() % 1000 + 1)": 0.5,
    "noted.append('here')": 1.0,
    "last_seen['seen'] = looked_at(<X>)": 2.0,
    "noted.append('+' if total(<X>) > 0.01 else '-')": 2.0,
    "if total(<X>) != total(<X>): raise ArithmeticError('no number')": 1.0,
    "assert total(<X>) == total(<X>), 'no number'": 1.0,
    "<X> = <X>": 0.3,
    "gc.collect(0)": 0.5,
    "last_seen['<X>'] = <X>.detach() if isinstance(<X>, torch.Tensor) else None": 1.0,
    "if isinstance(<X>, torch.Tensor) and <X>.requires_grad and not <X>.is_leaf: <X>.retain_grad()": 0.7,
    "if isinstance(<X>, torch.Tensor) and <X>.requires_grad: <X>.register_hook(lambda g: noted.append('hook'))": 0.7,
}
#: What a statement is put into.
BLOCKS = {
    "with torch.no_grad():": 0.4,
    "with torch.enable_grad():": 1.0,
    "with torch.autocast('cpu', dtype=torch.bfloat16, enabled=False):": 1.0,
    "with torch.autocast('cpu', dtype=torch.bfloat16, enabled=torch.is_grad_enabled()):": 0.6,
    "with torch.random.fork_rng():": 0.5,
    "with warnings.catch_warnings():": 0.5,
    "with torch.profiler.record_function('block'):": 0.5,
    "with contextlib.suppress(KeyError):": 1.0,
    "with noting(noted):": 2.0,
    "for _ in range(1):": 1.0,
    "while True:": 0.7,
    "try:": 2.0,
}
#: What ends such a block.
ENDS = {
    "try:": [
        ["finally:", "    noted.append('finally')"],
        ["except ValueError:", "    noted.append('refused')", "    raise"],
        ["except (RuntimeError, IndexError) as error:", "    noted.append(type(error).__name__)", "    raise"],
        ["except RuntimeError as error:", "    raise ValueError('wrapped') from error"],
    ],
    "while True:": [["    break"]],
}


def interrupted(source: str, rng: random.Random) -> str:
    """The program with one to three statements more, or with blocks around its own."""
    for _ in range(rng.randint(1, 3)):
        places = [*_places(ast.parse(source))]
        if not places:
            return source
        statement, names = rng.choice(places)
        lines = source.split("\n")
        first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
        indent = lines[first][: statement.col_offset]
        if indent.strip() or lines[first].lstrip().startswith("elif"):  # it stands on one line with its `if`
            continue
        if rng.random() < 0.6:
            drawn = rng.choices([*STATEMENTS], [*STATEMENTS.values()])[0].replace("<X>", rng.choice(names))
            lines.insert(first, indent + drawn)
        else:
            block = rng.choices([*BLOCKS], [*BLOCKS.values()])[0]
            inside = ["    " + line for line in lines[first:last]]
            end = [indent + line for line in rng.choice(ENDS[block])] if block in ENDS else []
            lines[first:last] = [indent + block, *inside, *end]
        source = "\n".join(lines)
    return source


def _places(tree: ast.Module) -> list[tuple[ast.stmt, list[str]]]:
    """The statements of what is compiled, each with the names that have values before it."""
    found: list[tuple[ast.stmt, list[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.name.startswith("plain_") or node.name == "forward"):
            names = [a.arg for a in node.args.args if a.arg not in ("self", "ctx")]
            _collect(node.body, names, found)
    return [(statement, names) for statement, names in found if names]


def _collect(body: list[ast.stmt], names: list[str], found: list[tuple[ast.stmt, list[str]]]) -> None:
    names = [*names]
    for statement in body:
        if isinstance(statement, ast.Global | ast.Nonlocal | ast.Pass | ast.FunctionDef):
            continue
        if statement.lineno > 1 and not isinstance(statement, ast.Break | ast.Continue):
            found.append((statement, [*names]))
        for inner in ("body", "orelse", "finalbody"):
            _collect(getattr(statement, inner, []), names, found)
        if isinstance(statement, ast.Assign):
            names += [target.id for target in statement.targets if isinstance(target, ast.Name)]
