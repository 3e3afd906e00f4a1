"""One function for each bytecode instruction of CPython 3.11 and 3.12: `op_NAME(interpreter, frame, arg, value)`."""

from __future__ import annotations

import operator
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from ..ir.bytecode import PY312
from ..ir.frame import NULL
from . import attributes, builtin_calls, calls, containers, imports
from .frame import UNBOUND, Frame, GeneratorValue, new_cell
from .torch_function import call_torch
from .values import ShadowContainer, ShadowDict, Symbol, TensorProxy, Unread, is_constant

if TYPE_CHECKING:
    from .interpreter import Interpreter


def raise_in_program(exception: BaseException) -> None:
    from .interpreter import Raised

    raise Raised(exception)


# nothing to do, and the stack -----------------------------------------------------------------------------------


def op_NOP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    pass


op_RESUME = op_CACHE = op_PRECALL = op_EXTENDED_ARG = op_COPY_FREE_VARS = op_NOP


def op_POP_TOP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    gone = f.stack.pop()
    if i.ending:
        i.let_go(gone)


def op_END_FOR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    op_POP_TOP(i, f, arg, value)
    op_POP_TOP(i, f, arg, value)


def op_COPY(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(f.stack[-arg])


def op_SWAP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack[-1], f.stack[-arg] = f.stack[-arg], f.stack[-1]


def op_PUSH_NULL(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(NULL)


# names ----------------------------------------------------------------------------------------------------------


def op_LOAD_CONST(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(value)


def op_LOAD_FAST(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    local = f.locals[arg]
    if local is UNBOUND:
        name = f.names[arg]
        raise_in_program(
            UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
        )
    if type(local) is Unread:
        local = f.locals[arg] = i.outside.read(local)
    f.stack.append(local)


op_LOAD_FAST_CHECK = op_LOAD_FAST


def op_LOAD_FAST_AND_CLEAR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(f.locals[arg])
    f.locals[arg] = UNBOUND


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
    if hasattr(type(old.value if type(old) is Unread else old), "__del__"):
        raise Unsupported("deleting an object that has a finalizer")
    f.locals[arg] = UNBOUND
    if i.ending:
        i.let_go(old)


def op_LOAD_GLOBAL(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if arg & 1:
        f.stack.append(NULL)
    f.stack.append(attributes.load_global(i, f.globals, value))


def op_LOAD_NAME(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    raise Unsupported("code at the level of a class or module body")


def op_STORE_GLOBAL(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    attributes.store_global(i, f.globals, value, f.stack.pop())


def op_DELETE_GLOBAL(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    attributes.delete_global(i, f.globals, value)


def op_MAKE_CELL(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.locals[arg] = i.mark_created(new_cell(i.outside.read(f.locals[arg])))


def op_LOAD_CLOSURE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(f.locals[arg])


def op_LOAD_DEREF(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(attributes.load_cell(i, f, arg))


def op_STORE_DEREF(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    value = f.stack.pop()
    if type(value) is TensorProxy:
        i.graph.note_variable(value, f.names[arg], f)
    attributes.store_cell(i, f.locals[arg], value)


def op_DELETE_DEREF(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    cell: CellType = f.locals[arg]
    if id(cell) not in i.created:
        raise Unsupported("deleting a variable of an enclosing function")
    del cell.cell_contents


# attributes and items -------------------------------------------------------------------------------------------


def op_LOAD_ATTR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    base = f.stack.pop()
    if PY312 and arg & 1:
        f.stack.append(NULL)
    attributes.load(i, base, value, f.stack.append)


def op_LOAD_METHOD(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    base = f.stack.pop()
    f.stack.append(NULL)
    attributes.load(i, base, value, f.stack.append)


def op_LOAD_SUPER_ATTR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    instance = f.stack.pop()
    cls = f.stack.pop()
    f.stack.pop()
    if arg & 1:
        f.stack.append(NULL)
    attributes.load_super(i, cls, instance, value, f.stack.append)


def op_STORE_ATTR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    base = f.stack.pop()
    attributes.store(i, base, value, f.stack.pop())


def op_DELETE_ATTR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    attributes.delete(i, f.stack.pop(), value)


def op_BINARY_SUBSCR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    key = f.stack.pop()
    containers.get_item(i, f.stack.pop(), key, f.stack.append)


def op_STORE_SUBSCR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    key = f.stack.pop()
    base = f.stack.pop()
    containers.set_item(i, base, key, f.stack.pop())


def op_DELETE_SUBSCR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    key = f.stack.pop()
    containers.delete_item(i, f.stack.pop(), key)


def op_BINARY_SLICE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    stop, start = f.stack.pop(), f.stack.pop()
    containers.get_item(i, f.stack.pop(), slice(start, stop), f.stack.append)


def op_STORE_SLICE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    stop, start, base = f.stack.pop(), f.stack.pop(), f.stack.pop()
    containers.set_item(i, base, slice(start, stop), f.stack.pop())


# operators ------------------------------------------------------------------------------------------------------

_BINARY = (
    operator.add, operator.and_, operator.floordiv, operator.lshift, operator.matmul, operator.mul, operator.mod,
    operator.or_, operator.pow, operator.rshift, operator.sub, operator.truediv, operator.xor,
    operator.iadd, operator.iand, operator.ifloordiv, operator.ilshift, operator.imatmul, operator.imul, operator.imod,
    operator.ior, operator.ipow, operator.irshift, operator.isub, operator.itruediv, operator.ixor,
)  # fmt: skip

_COMPARE = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def op_BINARY_OP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    right = f.stack.pop()
    calls.binary_operator(i, _BINARY[arg], f.stack.pop(), right, f.stack.append)


def op_COMPARE_OP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    right = f.stack.pop()
    calls.binary_operator(i, _COMPARE[value], f.stack.pop(), right, f.stack.append)


def op_IS_OP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    right, left = f.stack.pop(), f.stack.pop()
    f.stack.append(calls.is_same(i, left, right) ^ bool(arg))


def op_CONTAINS_OP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    container, element = f.stack.pop(), f.stack.pop()
    f.stack.append(containers.contains(i, container, element) ^ bool(arg))


def op_UNARY_NOT(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(not i.truth(f.stack.pop()))


def _unary(i: Interpreter, f: Frame, function: Any, tensor_method: str) -> None:
    operand = f.stack.pop()
    if type(operand) is TensorProxy:
        f.stack.append(call_torch(i, "call_function", function, (operand,), {}))
    elif type(operand) is Symbol:
        f.stack.append(i.graph.number(function, operand))
    elif is_constant(operand):
        f.stack.append(i.native(function, operand))
    else:
        attributes.load(i, operand, tensor_method, lambda method: calls.call(i, method, (), {}, f.stack.append))


def op_UNARY_NEGATIVE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    _unary(i, f, operator.neg, "__neg__")


def op_UNARY_POSITIVE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    _unary(i, f, operator.pos, "__pos__")


def op_UNARY_INVERT(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    _unary(i, f, operator.invert, "__invert__")


# jumps ----------------------------------------------------------------------------------------------------------


def op_JUMP_FORWARD(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.position = value


op_JUMP_BACKWARD_NO_INTERRUPT = op_JUMP_FORWARD


def op_JUMP_BACKWARD(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.position = value
    i.note_loop(f, value)


def op_POP_JUMP_IF_TRUE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if i.truth(f.stack.pop()):
        f.position = value


def op_POP_JUMP_IF_FALSE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if not i.truth(f.stack.pop()):
        f.position = value


def op_POP_JUMP_IF_NONE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if f.stack.pop() is None:
        f.position = value


def op_POP_JUMP_IF_NOT_NONE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if f.stack.pop() is not None:
        f.position = value


op_POP_JUMP_FORWARD_IF_TRUE = op_POP_JUMP_IF_TRUE
op_POP_JUMP_FORWARD_IF_FALSE = op_POP_JUMP_IF_FALSE
op_POP_JUMP_FORWARD_IF_NONE = op_POP_JUMP_IF_NONE
op_POP_JUMP_FORWARD_IF_NOT_NONE = op_POP_JUMP_IF_NOT_NONE


def _backward(jump: Any) -> Any:
    """A conditional jump at the end of a loop."""

    def operation(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
        jump(i, f, arg, value)
        if f.position == value:
            i.note_loop(f, value)

    return operation


op_POP_JUMP_BACKWARD_IF_TRUE = _backward(op_POP_JUMP_IF_TRUE)
op_POP_JUMP_BACKWARD_IF_FALSE = _backward(op_POP_JUMP_IF_FALSE)
op_POP_JUMP_BACKWARD_IF_NONE = _backward(op_POP_JUMP_IF_NONE)
op_POP_JUMP_BACKWARD_IF_NOT_NONE = _backward(op_POP_JUMP_IF_NOT_NONE)


def op_JUMP_IF_TRUE_OR_POP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if i.truth(f.stack[-1]):
        f.position = value
    else:
        f.stack.pop()


def op_JUMP_IF_FALSE_OR_POP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if not i.truth(f.stack[-1]):
        f.position = value
    else:
        f.stack.pop()


# loops and generators -------------------------------------------------------------------------------------------


def op_GET_ITER(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(containers.make_iterator(i, f.stack.pop()))


def op_FOR_ITER(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    found, element = containers.next_of(i, f.stack[-1])
    if found:
        f.stack.append(element)
    else:
        f.stack.pop()
        f.position = value + 1 if PY312 else value


def op_RETURN_GENERATOR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(None)


def op_YIELD_VALUE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    i.frames.pop()
    f.on_result(f.stack.pop())


def op_GET_YIELD_FROM_ITER(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if type(f.stack[-1]) is not GeneratorValue:
        f.stack.append(containers.make_iterator(i, f.stack.pop()))


def op_SEND(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    sent = f.stack.pop()
    receiver = f.stack[-1]
    if type(receiver) is GeneratorValue:
        found, element = i.resume_generator(receiver, sent)
    elif sent is not None:
        raise Unsupported(f"sending a value into a {type(receiver).__name__}")
    else:
        found, element = containers.next_of(i, receiver)
    if found:
        f.stack.append(element)
        return
    if not PY312:
        f.stack.pop()
    f.stack.append(element)
    f.position = value


def op_END_SEND(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    del f.stack[-2]


# calls ----------------------------------------------------------------------------------------------------------


def op_KW_NAMES(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.keyword_names = value


def op_CALL(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    stack = f.stack
    values = stack[len(stack) - arg :]
    del stack[len(stack) - arg :]
    function = stack.pop()
    below = stack.pop()
    if below is not NULL:
        values.insert(0, function)
        function = below
    names = f.keyword_names
    f.keyword_names = ()
    if names:
        split = len(values) - len(names)
        calls.call(i, function, tuple(values[:split]), dict(zip(names, values[split:], strict=True)), stack.append)
    else:
        calls.call(i, function, tuple(values), {}, stack.append)


def op_CALL_FUNCTION_EX(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    kwargs = f.stack.pop() if arg & 1 else {}
    args = tuple(containers.iterate(i, f.stack.pop()))
    function = f.stack.pop()
    f.stack.pop()
    calls.call(i, function, args, containers.as_plain_dict(i, kwargs), f.stack.append)


def op_MAKE_FUNCTION(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    code = f.stack.pop()
    closure = f.stack.pop() if arg & 0x08 else None
    annotations = f.stack.pop() if arg & 0x04 else None
    keyword_defaults = f.stack.pop() if arg & 0x02 else None
    defaults = f.stack.pop() if arg & 0x01 else None
    function = FunctionType(code, f.globals, code.co_name, defaults, closure)
    if keyword_defaults is not None:  # from outside, where a segment begins between making it and here
        function.__kwdefaults__ = containers.as_plain_dict(i, keyword_defaults)
    function.__qualname__ = code.co_qualname
    if isinstance(annotations, tuple):
        function.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True))
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
    if arg == 3:  # an exception leaves a generator: `Interpreter._unwind` sees to it
        pass
    elif arg == 5:
        _unary(i, f, operator.pos, "__pos__")
    elif arg == 6:
        f.stack[-1] = tuple(i.outside.contents(f.stack[-1]))
    else:
        raise Unsupported(f"the intrinsic function {arg}")


# building containers --------------------------------------------------------------------------------------------


def _take(f: Frame, count: int) -> list[Any]:
    if not count:
        return []
    values = f.stack[-count:]
    del f.stack[-count:]
    return values


def op_BUILD_TUPLE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(tuple(_take(f, arg)))


def op_BUILD_LIST(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(i.mark_created(_take(f, arg)))


def op_BUILD_SET(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(i.mark_created(i.native(set, [containers.hashable(i, v) for v in _take(f, arg)])))


def op_BUILD_MAP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    values = _take(f, 2 * arg)
    pairs = [(containers.hashable(i, k), v) for k, v in zip(values[::2], values[1::2], strict=True)]
    f.stack.append(i.mark_created(i.native(dict, pairs)))


def op_BUILD_CONST_KEY_MAP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    keys = f.stack.pop()
    f.stack.append(i.mark_created(dict(zip(keys, _take(f, arg), strict=True))))


def op_BUILD_SLICE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(slice(*_take(f, arg)))


def op_GET_LEN(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(builtin_calls.HANDLERS[len](i, f.stack[-1]))


def op_MATCH_SEQUENCE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    kind = builtin_calls.type_of(f.stack[-1])
    f.stack.append(bool(kind.__flags__ & (1 << 5)))


def op_MATCH_MAPPING(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    kind = builtin_calls.type_of(f.stack[-1])
    f.stack.append(bool(kind.__flags__ & (1 << 6)))


def op_MATCH_KEYS(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    keys, subject = f.stack[-1], f.stack[-2]
    values = [builtin_calls.load_item_or(i, subject, key, NULL) for key in keys]
    f.stack.append(None if any(v is NULL for v in values) else tuple(values))


def op_MATCH_CLASS(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    names = f.stack.pop()
    cls = f.stack.pop()
    f.stack.append(builtin_calls.match_class(i, f.stack.pop(), cls, arg, names))


def op_BUILD_STRING(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append("".join(_take(f, arg)))


def op_FORMAT_VALUE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    spec = f.stack.pop() if arg & 0x04 else ""
    operand = builtin_calls.printable(i, f.stack.pop())
    convert = (None, str, repr, ascii)[arg & 0x03]
    text = i.native(convert, operand) if convert else operand
    f.stack.append(i.native(format, text, spec))


def op_LIST_TO_TUPLE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack[-1] = tuple(i.outside.contents(f.stack[-1]))


def op_LIST_APPEND(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    element = f.stack.pop()
    _add(i, f.stack[-arg], "append", element)


def op_SET_ADD(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    element = f.stack.pop()
    _add(i, f.stack[-arg], "add", element)


def op_MAP_ADD(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    element = f.stack.pop()
    key = f.stack.pop()
    containers.set_item(i, f.stack[-arg], key, element)


def op_LIST_EXTEND(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    elements = f.stack.pop()
    _add(i, f.stack[-arg], "extend", containers.iterate(i, elements))


def op_SET_UPDATE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    elements = f.stack.pop()
    _add(i, f.stack[-arg], "update", containers.iterate(i, elements))


def _add(i: Interpreter, target: Any, method: str, operand: Any) -> None:
    """Add to a list or set that is being built."""
    if type(target) is ShadowContainer:
        containers.call_container_method(i, target, method, (operand,), {})
    elif type(target) is set:
        operand = containers.hashable(i, operand) if method == "add" else [containers.hashable(i, v) for v in operand]
        i.native(getattr(target, method), operand)
    else:
        getattr(target, method)(operand)


def op_DICT_UPDATE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    elements = containers.as_plain_dict(i, f.stack.pop())
    target = f.stack[-arg]
    for key, element in elements.items():
        containers.set_item(i, target, key, element)


def op_DICT_MERGE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    merged = containers.as_plain_dict(i, f.stack.pop())
    target = f.stack[-arg]
    if type(target) is ShadowDict or any(key in target for key in merged):
        raise Unsupported("a call with one keyword twice")
    target.update(merged)


def _unpackable(i: Interpreter, value: Any) -> Any:
    kind = builtin_calls.type_of(value)
    if value is None or kind in (int, float, bool):
        raise_in_program(TypeError(f"cannot unpack non-iterable {kind.__name__} object"))
    return containers.iterate(i, value)


def op_UNPACK_SEQUENCE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    elements = _unpackable(i, f.stack.pop())
    if len(elements) != arg:
        problem = "too many" if len(elements) > arg else "not enough"
        detail = f"expected {arg}" if len(elements) > arg else f"expected {arg}, got {len(elements)}"
        raise_in_program(ValueError(f"{problem} values to unpack ({detail})"))
    f.stack.extend(reversed(elements))


def op_UNPACK_EX(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    before, after = arg & 0xFF, arg >> 8
    elements = _unpackable(i, f.stack.pop())
    if len(elements) < before + after:
        raise_in_program(
            ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(elements)})")
        )
    stop = len(elements) - after
    f.stack.extend(reversed(elements[stop:]))
    f.stack.append(i.mark_created(list(elements[before:stop])))
    f.stack.extend(reversed(elements[:before]))


# with and exceptions --------------------------------------------------------------------------------------------


def op_BEFORE_WITH(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    calls.enter_context(i, f, f.stack.pop())


def op_WITH_EXCEPT_START(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    exception = f.stack[-1]
    outside = i.outside.is_outside(exception)
    traceback = exception.__traceback__ if outside else i.traceback_of(exception)
    calls.call(i, f.stack[-4], (type(exception), exception, traceback), {}, f.stack.append)


def op_PUSH_EXC_INFO(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    exception = f.stack.pop()
    f.stack.append(f.exceptions[-1] if f.exceptions else None)
    f.exceptions.append(exception)
    f.stack.append(exception)


def op_POP_EXCEPT(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.pop()
    handled = f.exceptions.pop()
    if i.ending:
        i.let_go(handled)


def op_CHECK_EXC_MATCH(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    wanted = f.stack.pop()
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise_in_program(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    f.stack.append(i.native(isinstance, f.stack[-1], wanted))


def op_RERAISE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    raise_in_program(f.stack.pop())


def op_RAISE_VARARGS(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if arg == 0:
        if not f.exceptions or f.exceptions[-1] is None:
            raise_in_program(RuntimeError("No active exception to reraise"))
        raise_in_program(f.exceptions[-1])  # type: ignore[arg-type]
    cause = f.stack.pop() if arg == 2 else None
    exception = f.stack.pop()
    if isinstance(exception, type) and issubclass(exception, BaseException):
        exception = i.call_now(exception, ())
    if not isinstance(exception, BaseException):
        raise_in_program(TypeError("exceptions must derive from BaseException"))
    if arg == 2:
        if isinstance(cause, type) and issubclass(cause, BaseException):
            cause = i.call_now(cause, ())
        if i.outside.is_outside(exception) or not (cause is None or isinstance(cause, BaseException)):
            raise Unsupported("the cause of an exception from outside")
        exception.__cause__ = cause
    raise_in_program(exception)


def op_LOAD_ASSERTION_ERROR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(AssertionError)


# imports --------------------------------------------------------------------------------------------------------


def op_IMPORT_NAME(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    names, level = f.stack.pop(), f.stack.pop()
    f.stack.append(imports.import_name(i, f, value, names, level))


def op_IMPORT_FROM(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.append(imports.import_from(i, f.stack[-1], value))
