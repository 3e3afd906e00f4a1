"""One function for each bytecode instruction: `op_NAME(interpreter, frame, arg, value)`, or a line of a table, `TAKING` or
`PUSHED`.

Here are names, attributes and items, operators, calls and imports; `opcodes_building` makes containers and strings and takes
them apart, `opcodes_flow` decides where to go on.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from ...errors import Unsupported
from ...ir.frame import NULL, UNBOUND
from ..inference.mutation import IN_PLACE_OF
from ..interpreter import Interpreter
from ..library.number_calls import truth_as_number
from ..objects import binary_operators, containers, variables
from ..objects.class_attributes import load_super
from ..symbolic import Symbol, TensorProxy, Unread, type_of
from ..symbolic.frame import Frame, new_cell
from ..symbolic.raising import raise_in_program

# nothing to do, and the stack -----------------------------------------------------------------------------------


def op_NOP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    pass


op_RESUME = op_CACHE = op_COPY_FREE_VARS = op_NOP


def op_POP_TOP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    gone = f.stack.pop()
    if i.ending:
        i.let_go(gone)


def op_END_FOR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    op_POP_TOP(i, f, arg, value)
    op_POP_TOP(i, f, arg, value)


def op_SWAP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack[-1], f.stack[-arg] = f.stack[-arg], f.stack[-1]


# names ----------------------------------------------------------------------------------------------------------


def op_LOAD_CONST(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(value)


def op_LOAD_FAST(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    local = f.locals[arg]
    if local is UNBOUND:
        name = f.names[arg]
        raise_in_program(UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value"))
    if type(local) is Unread:
        if i.performed in i.only_moved and not i.nesting:
            f.stack.append(local)
            return
        plain = type(local.value) in _COMPARED and not i.nesting
        local = f.locals[arg] = i.outside.read(local)
        if plain:
            i.loads[id(local)] = (i.performed, f, len(f.stack), local)
    elif type(local) is CellType:
        variables.note_shared_cell(i, f, arg)
    elif i.loads:
        i.loads.pop(id(local), None)  # what is on the stack may be from here, and what was there before, gone
    f.stack.append(local)


#: What a guard compares as soon as it is read.
_COMPARED = (str, bytes, tuple)


op_LOAD_FAST_CHECK = op_LOAD_FAST
op_LOAD_CLOSURE = op_LOAD_FAST  # which CPython compiles it to from 3.13 on


def op_LOAD_FAST_AND_CLEAR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(f.locals[arg])
    f.locals[arg] = UNBOUND


def _copied(i: Interpreter, f: Frame, arg: int, value: Any) -> Any:
    """A value of the stack once more: one of the two will be looked at, perhaps while the other stays."""
    if type(f.stack[-arg]) is Unread:
        f.stack[-arg] = i.outside.read(f.stack[-arg])
    return f.stack[-arg]


def op_STORE_FAST(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    old = f.locals[arg]
    value = f.stack.pop()
    f.locals[arg] = UNBOUND if value is NULL else value  # a variable that a comprehension had put aside
    if type(value) is TensorProxy:
        i.graph.note_variable(value, f.names[arg], f)
    if i.ending:
        i.let_go(old)


def op_DELETE_FAST(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    old = f.locals[arg]
    if old is UNBOUND:
        op_LOAD_FAST(i, f, arg, value)
    if hasattr(type(old.value) if type(old) is Unread else type_of(old), "__del__"):
        raise Unsupported("deleting an object that has a finalizer")
    f.locals[arg] = UNBOUND
    if i.ending:
        i.let_go(old)


def op_LOAD_GLOBAL(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if arg & 1:
        f.stack.append(NULL)
    f.stack.append(variables.load_global(i, f.globals, value))


def _or_global(i: Interpreter, f: Frame, namespace: Any, name: str) -> Any:
    """A name in the namespace of a class: in its body, and in functions that compute its annotations."""
    if type(namespace) is not dict:
        raise Unsupported("a name in a namespace from outside")
    return namespace[name] if name in namespace else variables.load_global(i, f.globals, name)


def _or_cell(i: Interpreter, f: Frame, namespace: Any, index: int) -> Any:
    """The same of a variable of an enclosing function."""
    if type(namespace) is not dict:
        raise Unsupported("a name in a namespace from outside")
    return namespace[f.names[index]] if f.names[index] in namespace else variables.load_cell(i, f, index)


def _namespace(f: Frame) -> dict[str, Any]:
    """What the body of a class puts its names into."""
    if f.namespace is None:
        raise Unsupported("code at the level of a module")
    return f.namespace


def op_MAKE_CELL(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.locals[arg] = i.mark_created(new_cell(i.outside.read(f.locals[arg])))


def op_STORE_DEREF(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    value = f.stack.pop()
    if type(value) is TensorProxy:
        i.graph.note_variable(value, f.names[arg], f)
    variables.note_shared_cell(i, f, arg)
    variables.store_cell(i, f.locals[arg], value)


def op_DELETE_DEREF(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    cell: CellType = f.locals[arg]
    if not i.is_created(cell):
        raise Unsupported("deleting a variable of an enclosing function")
    del cell.cell_contents


# attributes and items -------------------------------------------------------------------------------------------


def op_LOAD_ATTR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    base = f.asked = f.stack.pop()
    if arg & 1:
        f.stack.append(NULL)
    i.attribute(base, value, f.stack.append)


def op_LOAD_SUPER_ATTR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    instance = f.stack.pop()
    cls = f.stack.pop()
    f.stack.pop()
    if arg & 1:
        f.stack.append(NULL)
    load_super(i, cls, instance, value, f.stack.append)


# operators ------------------------------------------------------------------------------------------------------

_BINARY = (*IN_PLACE_OF.values(), *IN_PLACE_OF)

_COMPARE = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def op_UNARY_NOT(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    truth = truth_as_number(i, f.stack.pop())
    f.stack.append(i.graph.number(operator.not_, truth) if type(truth) is Symbol else not truth)


# calls ----------------------------------------------------------------------------------------------------------


def op_KW_NAMES(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.keyword_names = value


def op_CALL(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    stack = f.stack
    values = stack[len(stack) - arg :]
    del stack[len(stack) - arg :]
    function = _called(stack, values)
    names = f.keyword_names
    f.keyword_names = ()
    if names:
        split = len(values) - len(names)
        i.call(function, tuple(values[:split]), dict(zip(names, values[split:], strict=True)), stack.append)
    else:
        i.call(function, tuple(values), {}, stack.append)


def _called(stack: list[Any], values: list[Any]) -> Any:
    """What a call calls. Beside it is a NULL, or an object that becomes the first argument."""
    above, below = stack.pop(), stack.pop()
    if below is NULL:
        return above
    if above is not NULL:
        values.insert(0, above)
    return values.pop(0) if below is operator.call and values else below  # see `bytecode.python_3_14`


def op_CALL_FUNCTION_EX(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    kwargs = f.stack.pop() if arg & 1 else {}
    if containers.is_no_iterable(f.stack[-1]):
        raise Unsupported("a call with arguments from what has no elements")
    args = list(containers.tupled(i, f.stack.pop()))
    function = _called(f.stack, args)
    keywords = containers.as_plain_dict(i, kwargs)
    if not all(type(name) is str for name in keywords):
        raise Unsupported("a call with a keyword that is no string")
    i.call(function, tuple(args), keywords, f.stack.append)


def op_MAKE_FUNCTION(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    code = f.stack.pop()
    closure = f.stack.pop() if arg & 0x08 else None
    annotations = f.stack.pop() if arg & 0x04 else None
    annotate = f.stack.pop() if arg & 0x10 else None
    keyword_defaults = f.stack.pop() if arg & 0x02 else None
    defaults = f.stack.pop() if arg & 0x01 else None
    function = FunctionType(code, f.globals, code.co_name, defaults, closure)
    if keyword_defaults is not None:  # from outside, where a segment begins between making it and here
        function.__kwdefaults__ = containers.as_plain_dict(i, keyword_defaults)
    function.__qualname__ = code.co_qualname
    if isinstance(annotations, tuple):
        function.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True))
    if annotate is not None:  # it computes them when they are asked for
        function.__annotate__ = annotate  # type: ignore[attr-defined]
    f.stack.append(i.mark_created(function))


def op_RETURN_VALUE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    i.frames.pop()
    result = f.stack.pop()
    if f.generator is not None:
        f.generator.done = True
    f.on_result(result)
    i.leave(f)


def op_RETURN_CONST(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(value)
    op_RETURN_VALUE(i, f, arg, value)


def op_CALL_INTRINSIC_1(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if arg == 3:  # an exception leaves a generator: `exceptions.unwind` sees to it
        pass
    elif arg == 5:
        operand = f.stack.pop()
        i.kind_of(operand).unary(i, operator.pos, operand, f.stack.append)
    elif arg == 6:
        f.stack[-1] = tuple(i.outside.contents(f.stack[-1]))
    else:
        raise Unsupported(f"the intrinsic function {arg}")


def _unary(function: Any) -> tuple[int, Callable[..., None]]:
    return 1, lambda i, f, arg, value, operand: i.kind_of(operand).unary(i, function, operand, f.stack.append)


#: Instructions that do one thing with values which they take off the stack: how many, and what.
TAKING: dict[str, tuple[int, Callable[..., Any]]] = {
    "STORE_NAME": (1, lambda i, f, arg, value, stored: _namespace(f).update({value: stored})),
    "SETUP_ANNOTATIONS": (0, lambda i, f, arg, value: _namespace(f).setdefault("__annotations__", i.mark_created({}))),
    "STORE_GLOBAL": (1, lambda i, f, arg, value, stored: variables.store_global(i, f.globals, value, stored)),
    "DELETE_GLOBAL": (0, lambda i, f, arg, value: variables.delete_global(i, f.globals, value)),
    "STORE_ATTR": (2, lambda i, f, arg, value, stored, base: i.kind_of(base).set_attribute(i, base, value, stored)),
    "DELETE_ATTR": (1, lambda i, f, arg, value, base: i.kind_of(base).delete_attribute(i, base, value)),
    "BINARY_SUBSCR": (2, lambda i, f, arg, value, base, key: i.item(base, key, f.stack.append)),
    "STORE_SUBSCR": (3, lambda i, f, arg, value, stored, base, key: containers.set_item(i, base, key, stored)),
    "DELETE_SUBSCR": (2, lambda i, f, arg, value, base, key: containers.delete_item(i, base, key)),
    "BINARY_SLICE": (3, lambda i, f, arg, value, base, *bounds: i.item(base, slice(*bounds), f.stack.append)),
    "STORE_SLICE": (4, lambda i, f, arg, value, stored, base, *bounds: containers.set_item(i, base, slice(*bounds), stored)),
    "BINARY_OP": (2, lambda i, f, arg, value, left, right: i.binary(_BINARY[arg], left, right, f.stack.append)),
    "COMPARE_OP": (2, lambda i, f, arg, value, left, right: i.binary(_COMPARE[value], left, right, f.stack.append)),
    "IS_OP": (2, lambda i, f, arg, value, *both: f.stack.append(binary_operators.is_same(i, *both) ^ bool(arg))),
    "UNARY_NEGATIVE": _unary(operator.neg), "UNARY_POSITIVE": _unary(operator.pos), "UNARY_INVERT": _unary(operator.invert),
}  # fmt: skip

#: Instructions that do no more than to put a value on the stack: what it is.
PUSHED: dict[str, Callable[[Interpreter, Frame, int, Any], Any]] = {
    "COPY": _copied,
    "PUSH_NULL": lambda i, f, arg, value: NULL,
    "LOAD_NAME": lambda i, f, arg, value: _or_global(i, f, _namespace(f), value),
    "LOAD_CLASSDEREF": lambda i, f, arg, value: _or_cell(i, f, _namespace(f), arg),
    "LOAD_FROM_DICT_OR_GLOBALS": lambda i, f, arg, value: _or_global(i, f, f.stack.pop(), value),
    "LOAD_FROM_DICT_OR_DEREF": lambda i, f, arg, value: _or_cell(i, f, f.stack.pop(), arg),
    "LOAD_LOCALS": lambda i, f, arg, value: _namespace(f),
    "LOAD_BUILD_CLASS": lambda i, f, arg, value: builtins.__build_class__,
    "LOAD_DEREF": lambda i, f, arg, value: variables.load_cell(i, f, arg),
    "CONTAINS_OP": lambda i, f, arg, value: containers.contains(i, f.stack.pop(), f.stack.pop()) ^ bool(arg),
    "TO_BOOL": lambda i, f, arg, value: truth_as_number(i, f.stack.pop()),
    "IMPORT_NAME": lambda i, f, arg, value: variables.import_name(i, f, value, f.stack.pop(), f.stack.pop()),
    "IMPORT_FROM": lambda i, f, arg, value: variables.import_from(i, f.stack[-1], value),
}
