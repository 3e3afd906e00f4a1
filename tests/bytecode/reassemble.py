"""Decode the functions of the standard library, write them again, and run some of what was written.

This runs on every interpreter that is found, also where there is no PyTorch: `python tests/bytecode/reassemble.py`.
"""

from __future__ import annotations

import importlib
import operator
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src" / "quickfuse"
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "encodings", "pydoc_data", "turtledemo",
            "tkinter", "ensurepip", "config-3"}  # fmt: skip
#: Modules that are run as they were written again.
RUN = ("textwrap", "difflib", "json.decoder", "json.encoder", "heapq", "fractions", "ast", "string", "contextlib", "copy",
       "argparse", "statistics", "shlex", "pprint", "dataclasses", "functools", "collections", "enum", "csv",
       "traceback")  # fmt: skip


def _package(name: str, folder: Path) -> None:
    """Make modules of the compiler importable, without what its packages import."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


if __name__ == "__main__":
    _package("quickfuse", SOURCE)
    _package("quickfuse.bytecode", SOURCE / "bytecode")
    _package("quickfuse.drive", SOURCE / "drive")

from quickfuse.bytecode.decoding import TABLE, Decoded, Instruction, decode  # noqa: E402
from quickfuse.drive.assemble import LocationWriter, Protected, Writer, exception_table  # noqa: E402


def reassembled(code: CodeType) -> CodeType:
    """The same function made of our instructions, each written on its own."""
    decoded = decode(code)
    starts = [0] * (len(decoded.instructions) + 1)
    while True:
        writer, found = _written(code, decoded, starts)
        if found == starts:
            break
        starts = found
    locations = LocationWriter(code.co_firstlineno)
    known = list(code.co_positions())
    for position, unit in enumerate(decoded.units):
        locations.add(starts[position + 1] - starts[position], known[unit])
    table = [
        Protected(starts[h.start], starts[h.end], starts[h.target], h.depth, h.push_lasti) for h in decoded.handlers
    ]
    return code.replace(
        co_code=bytes(writer.data),
        co_consts=tuple(writer.constants),
        co_linetable=bytes(locations.data),
        co_exceptiontable=exception_table(table),
        co_stacksize=code.co_stacksize + 2,
    )


def _written(code: CodeType, decoded: Decoded, starts: list[int]) -> tuple[Writer, list[int]]:
    """All instructions, with the jumps as they are if each instruction begins at one of `starts`; and where each begins."""
    writer = Writer(code.co_consts)
    found = []
    instructions = decoded.instructions
    for position, instruction in enumerate(instructions):
        found.append(writer.units)
        name, arg, value, _ = instruction
        if _is_part_of_with(instructions, position):
            continue
        if _is_jump(instruction):
            behind = TABLE.behind_for if name == "FOR_ITER" else 0
            arg = abs(starts[value - behind] - starts[position + 1])
        elif name == "LOAD_CONST" and not (arg < len(code.co_consts) and code.co_consts[arg] is value):
            arg = writer.constant(value)
        writer.emit(name, arg)
    return writer, [*found, writer.units]


def _is_part_of_with(instructions: list[Instruction], position: int) -> bool:
    """Whether this belongs to the `with` of Python 3.14, which is written as a whole."""
    following = [i.name for i in instructions[position : position + 3]]
    return TABLE.with_values == 2 and (
        following == ["LOAD_CONST", "SWAP", "BEFORE_WITH"] or following[:2] == ["SWAP", "BEFORE_WITH"]
    )


def _is_jump(instruction: Instruction) -> bool:
    return "JUMP" in instruction.name or instruction.name in ("FOR_ITER", "SEND") or (
        instruction.name == "END_ASYNC_FOR" and instruction.value is not None
    )


def check(code: CodeType) -> CodeType:
    """Write a function again; what was written must say the same."""
    before = decode(code)
    written = reassembled(code)
    after = decode(written)
    assert [_said(i) for i in before.instructions] == [_said(i) for i in after.instructions], code
    assert before.handlers == after.handlers, code
    known, written_positions = list(code.co_positions()), list(written.co_positions())
    for position, unit in enumerate(before.units):
        assert known[unit] == written_positions[after.units[position]], code
    return written


def _said(instruction: Instruction) -> tuple[Any, ...]:
    name, arg, value, line = instruction
    constant = name in ("LOAD_CONST", "RETURN_CONST", "KW_NAMES")
    return name, 0 if constant or _is_jump(instruction) else arg, type(value), repr(value), line


def whole(code: CodeType) -> CodeType:
    """A code object with all those in it, written again."""
    inner = tuple([whole(c) if isinstance(c, CodeType) else c for c in code.co_consts])
    return check(code.replace(co_consts=inner))


def standard_library() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not any(part in LEFT_OUT or part.startswith("config-3") for part in path.relative_to(root).parts):
            yield path


def compiled(path: Path) -> CodeType | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return None


def functions_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from functions_of(constant)


def run_again(name: str) -> types.ModuleType:
    """A module of the standard library, made anew of its functions as they were written again."""
    original = importlib.import_module(name)
    assert original.__file__ is not None
    code = compiled(Path(original.__file__))
    assert code is not None
    module = types.ModuleType(name)
    module.__dict__.update(__file__=original.__file__, __package__=original.__package__, __spec__=original.__spec__)
    sys.modules[name] = module
    try:
        exec(whole(code), module.__dict__)
    finally:
        sys.modules[name] = original
    return module


def use(modules: dict[str, Any]) -> list[Any]:
    """What some functions of these modules give: they have loops, generators, `with`, `try`, closures and keywords."""
    m = types.SimpleNamespace(**{name.replace(".", "_"): module for name, module in modules.items()})
    text = "The quick brown fox jumps over the lazy dog. " * 7
    found: list[Any] = [m.textwrap.fill(text, 30, initial_indent="* "), m.textwrap.dedent("  a\n   b\n  c")]
    found += [list(m.difflib.unified_diff(text.split(), text.upper().split()[:30] + ["dog."], lineterm=""))]
    data = {"a": [1, 2.5, None, True], "b": {"c": "\u00e9\n"}}
    encoder = m.json_encoder.JSONEncoder(indent=1, sort_keys=True)
    encoder_text = "".join(encoder.iterencode(data))
    found += [encoder_text, m.json_decoder.JSONDecoder().decode(encoder_text) == data]
    found += [list(m.heapq.merge([1, 4, 9], [2, 3], reverse=False)), m.heapq.nsmallest(2, [5, 3, 8, 1], key=operator.neg)]
    found += [str(m.fractions.Fraction("3/7") ** 2 + 1), f"{m.fractions.Fraction(22, 7).limit_denominator(5)}"]
    tree = m.ast.parse(Path(__file__).read_text())
    found += [m.ast.unparse(tree), m.ast.dump(tree, indent=1)]
    found += [m.string.Template("$a ${b}").substitute(a=1, b=2), m.string.capwords("a bc  d")]
    found += [m.shlex.split("a 'b c' \"d\""), m.pprint.pformat({k: list(range(30)) for k in "abc"}, width=40)]
    found += [m.statistics.median_grouped([1, 2, 2, 3, 4]), m.statistics.quantiles(range(20), n=5), m.copy.deepcopy(data)]
    found += [_uses_contexts(m.contextlib), _uses_arguments(m.argparse), _uses_classes(m.dataclasses, m.enum)]
    found += [m.collections.Counter("abracadabra").most_common(2), m.collections.namedtuple("P", "x y")(1, 2)._asdict()]
    partial = m.functools.reduce(lambda f, g: lambda x: g(f(x)), [abs, str, len])
    found += [partial(-123), m.functools.cmp_to_key(lambda a, b: a - b)(3) < m.functools.cmp_to_key(lambda a, b: a - b)(4)]
    try:
        _ = {}["key"]
    except KeyError as error:
        found.append(m.traceback.format_exception_only(error))
    return found


def _uses_contexts(contextlib: Any) -> list[str]:
    log: list[str] = []

    @contextlib.contextmanager
    def context(name: str) -> Iterator[str]:
        log.append(f"enter {name}")
        try:
            yield name
        except ValueError as error:
            log.append(f"caught {error}")
        finally:
            log.append(f"exit {name}")

    with contextlib.ExitStack() as stack:
        for name in "ab":
            stack.enter_context(context(name))
        stack.callback(log.append, "callback")
        raise ValueError("no")
    return log


def _uses_arguments(argparse: Any) -> Any:
    parser = argparse.ArgumentParser(prog="x", description="What it does")
    parser.add_argument("--number", type=int, default=3, choices=range(9))
    parser.add_argument("names", nargs="*")
    return sorted(vars(parser.parse_args(["--number", "4", "a", "b"])).items()), parser.format_help()


def _uses_classes(dataclasses: Any, enum: Any) -> Any:
    @dataclasses.dataclass(order=True)
    class Point:
        x: int
        y: list[int] = dataclasses.field(default_factory=list)

    colors = enum.Enum("Colors", "red green")
    return repr(Point(1, [2])), Point(1) < Point(2), dataclasses.asdict(Point(3)), [str(c) for c in colors]


def main() -> None:
    """Every tenth file, or all of them with the argument `--all`."""
    count = 0
    for path in list(standard_library())[:: 1 if "--all" in sys.argv else 10]:
        code = compiled(path)
        for function in functions_of(code) if code is not None else ():
            check(function)
            count += 1
    originals = {name: importlib.import_module(name) for name in RUN}
    again = {name: run_again(name) for name in RUN}
    for ours, real in zip(use(again), use(originals), strict=True):
        assert ours == real, (ours, real)
    print(f"{sys.version_info[0]}.{sys.version_info[1]}: {count} functions")


if __name__ == "__main__":
    main()
