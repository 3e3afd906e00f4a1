"""Branches on a tensor's value of which one side is hardly ever taken: `assert x.max() < n`, `if not valid.all(): raise`,
`if torch.isnan(x).any()`. A call of a function that only raises is as good as a `raise` statement, and so is the end of a
check of a distribution's parameters that found a failure, as it raises then.

The graph gets an operator that fails where that side would be taken, and goes on with the other. A graph that fails runs
again in Python, instruction by instruction, so that the program's own exception is raised, where it is raised, or its other
side taken. That is right where the graph changed nothing of the program's: kernels change it once it is known that nothing
fails. A graph that then has to run operator by operator is captured again, up to the branch.

Which side a check for numbers that are not finite takes is known beforehand, and so is whether a random number of
`torch.rand` is greater than zero: `if torch.rand(1) > skipped` with nothing to be skipped; that a global function raises is
expected. If it turns out otherwise several times, the branch is captured as a break (see `Compiled`).
"""

from __future__ import annotations

import functools
import operator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch.distributions import constraints, distribution

from ...bytecode.decoding import Instruction, decode
from ..graph.contents import plain_name
from ..graph.failing import is_handled, is_in_try
from ..inference.number_operators import is_on_gpu
from ..interpreter import Interpreter
from ..liveness import ALWAYS_JUMPS, JUMPS
from ..symbolic import Symbol, TensorProxy
from ..symbolic.frame import Frame

#: A side with more instructions than this is not looked at.
_MOST_INSTRUCTIONS = 300

_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
#: Whole numbers up to this one are also floating-point ones.
_EXACT = 1 << 53

#: What these say of finite numbers.
_TESTS = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}
#: Comparisons, and whether they hold for a number on the left that is the greater one; the same from the other side.
_BOUNDS = {"gt": True, "ge": True, "lt": False, "le": False}
_MIRRORED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
#: A random number between 0 and 1 is hardly ever less.
_NEARLY_NEVER = 1e-6
#: Operators that keep the truth value of elements that all have the same.
_KEEP = frozenset("all any view reshape flatten squeeze unsqueeze detach clone bool to cpu getitem item".split())
_TOGETHER: dict[str, Any] = {"or": any, "logical_or": any, "bitwise_or": any, "and": all, "logical_and": all,
                             "bitwise_and": all}  # fmt: skip
#: How many operators may come between a test and a branch.
_MOST_OPERATORS = 6
#: Among what keeps changing: the outcomes of branches that are known beforehand otherwise.
UNUSUAL = "branches on whether numbers are finite"
#: Where no graph may wait for a GPU: those that are replayed as CUDA graphs do not.
WAITING = "branches on what is on a GPU"

_LEAVES = frozenset("RETURN_VALUE RETURN_CONST YIELD_VALUE RETURN_GENERATOR SEND RERAISE".split())


def truth_of_branch(i: Interpreter, f: Frame, condition: Any, if_true: int, if_false: int) -> bool:
    """The outcome of a branch that goes to the instructions at `if_true` or `if_false`."""
    if type(condition) in (TensorProxy, Symbol) and is_unknown(i, condition):
        for outcome, other in ((True, if_false), (False, if_true)):
            if (only_raises(f.code, other) or _gives_up(i, f, other)) and holds(i, condition, outcome):
                return outcome
        usual = None if UNUSUAL in i.outside.volatile else _usual_side(i, f, condition, if_true, if_false)
        if usual is not None and holds(i, condition, usual):
            i.graph.expects = True
            return usual
    return i.truth(condition)


def _gives_up(i: Interpreter, f: Frame, position: int) -> bool:
    """Whether a check of a distribution's parameters ends at once there, with the failures that it has found so far."""
    if f.globals is not vars(constraints) or all(frame.globals is not vars(distribution) for frame in i.frames):
        return False
    loads, leaves = decode(f.code).instructions[position : position + 2]
    return loads.name.startswith("LOAD_FAST") and leaves.name == "RETURN_VALUE"


def _usual_side(i: Interpreter, f: Frame, condition: TensorProxy | Symbol, if_true: int, if_false: int) -> bool | None:
    """The outcome that is expected of a branch, if any: of what tells whether numbers are finite, where they are, of
    comparisons of random numbers that hardly ever have another one, and where the other side only raises."""
    node = condition.node
    if node is None and type(condition) is Symbol and condition.tensor is not None:
        node = condition.tensor.node
    usual = None if node is None else _usual(i, node, _MOST_OPERATORS)
    if usual is None and (calls := calls_that_raise(f.code, f.globals)):
        raising = [only_raises(f.code, position, calls) for position in (if_true, if_false)]
        return raising[1] if any(raising) and not all(raising) else None
    return usual


def _usual(i: Interpreter, node: torch.fx.Node, most: int) -> bool | None:
    if node.op not in ("call_function", "call_method") or not most:
        return None
    name = plain_name(node.target).rstrip("_")
    if name in _TESTS:
        return _TESTS[name]
    if name in _BOUNDS and len(node.args) == 2:
        return _of_random(i, name, *node.args)
    operands = [_usual(i, operand, most - 1) for operand in node.all_input_nodes]
    if not operands or any(operand is None for operand in operands):
        return None
    if name in _KEEP:
        return operands[0]
    if name in ("logical_not", "invert", "bitwise_not"):
        return not operands[0]
    return _TOGETHER[name](operands) if name in _TOGETHER else None


def _of_random(i: Interpreter, name: str, left: Any, right: Any) -> bool | None:
    """The outcome of a comparison of a number that is drawn from 0 to 1, without 1, with a number that is next to an end."""
    if _is_random(right):
        name, left, right = _MIRRORED[name], right, left
    if not _is_random(left):
        return None
    limit = i.graph.numbers.get(right) if isinstance(right, torch.fx.Node) else right
    if type(limit) is not Symbol and type(limit) not in (int, float):
        return None
    if type(limit) is Symbol and (limit.from_tensor or limit.kind not in (int, float)):
        return None
    greater = _BOUNDS[name]
    for function, end, outcome in ((operator.le, _NEARLY_NEVER, greater), (operator.ge, 1 - _NEARLY_NEVER, not greater)):
        if function(limit.hint if type(limit) is Symbol else limit, end):
            within = i.graph.number(function, limit, end) if type(limit) is Symbol else True
            return outcome if i.truth(within) else None
    return None


def _is_random(node: Any) -> bool:
    """Whether a node gives numbers of `torch.rand`, or one of them as a number."""
    while isinstance(node, torch.fx.Node) and node.op == "call_method" and node.target in ("item", "squeeze"):
        node = node.args[0]
    return isinstance(node, torch.fx.Node) and node.target in (torch.rand, torch.rand_like)


def is_unknown(i: Interpreter, condition: Any) -> bool:
    """Whether only running the graph tells whether a condition is true, and an operator may ask there."""
    if type(condition) is TensorProxy:
        meta = condition.meta
        if condition.cls is not torch.Tensor or type(meta.numel) is not int or meta.numel != 1:
            return False
        waits = meta.device.type != "cpu"
    elif type(condition) is not Symbol or not condition.from_tensor:
        return False
    else:
        waits = is_on_gpu((condition,))
    return not (waits and WAITING in i.outside.volatile) and i.graph.contents.of(condition) is None


def fails_unless(i: Interpreter, condition: Symbol) -> bool:
    """Let the graph fail where arithmetic raises an exception, which a condition says; False where that is not possible."""
    return is_unknown(i, condition) and holds(i, condition, True)


def holds(i: Interpreter, condition: TensorProxy | Symbol, outcome: bool) -> bool:
    """Let the graph fail where the condition has another outcome; False where that is not possible."""
    graph = i.graph
    frame = i.frames[-1]
    if is_in_try(frame.code, frame.lasti):  # it decides by exceptions: they may come often
        return False
    changed = bool(graph.mutated) and graph.contents.has_written_inputs()
    if graph.nested or (changed and not _recovers(i, condition)):
        return False
    graph.fails_after_changes |= changed
    if type(condition) is Symbol:
        condition = _as_tensor(i, condition)
    if not outcome:
        condition = graph.call("call_method", "logical_not", (condition,), {})
    if condition.meta.device.type != "cpu":  # there a failing kernel would end all work of the process
        condition = graph.call("call_method", "cpu", (condition,), {})
    graph.call("call_function", torch._assert_async, (condition,), {})
    return True


def _recovers(i: Interpreter, condition: TensorProxy | Symbol) -> bool:
    """Whether the program can go on in Python where the condition turns out to be another one, after changes: it is known
    then."""
    if type(condition) is TensorProxy or not i.graph.goes_on_after_changes():
        return i.graph.goes_on_after_changes()
    return condition.kind is bool and condition.tensor is not None and _is_as_read(i, condition)


def _as_tensor(i: Interpreter, number: Symbol) -> TensorProxy:
    """A number out of a tensor as a tensor. A comparison of a tensor's only element with a number is one of the tensor:
    gradients are not computed past truth values that change."""
    general = functools.partial(i.graph.call, "call_function", torch.full, ((), number), {"dtype": torch.bool})
    if number.kind is bool and number.tensor is not None and _is_as_read(i, number):
        return _in_place_of(number, number.tensor)
    function, operands = number.operation or (None, ())
    if function not in _COMPARISONS or len(operands) != 2:
        return general()
    tensors = [o.tensor if type(o) is Symbol and o.from_tensor and _is_as_read(i, o) else None for o in operands]
    others = [o for o, tensor in zip(operands, tensors, strict=True) if tensor is None]
    if len(others) > 1 or any(type(o) not in (int, float) or abs(o) > _EXACT for o in others):
        return general()
    wide = [o if t is None else _wide(i, t) for o, t in zip(operands, tensors, strict=True)]
    return _in_place_of(number, i.graph.call("call_function", function, tuple(wide), {}))


def _in_place_of(number: Symbol, tensor: TensorProxy) -> TensorProxy:
    """The tensor that is asked instead of a number, which is not read where nothing else uses it."""
    if number.node is not None and not number.node.users:  # it comes back where something uses it
        number.node.graph.erase_node(number.node)
        number.node = None
    return tensor


def _is_as_read(i: Interpreter, number: Symbol) -> bool:
    """Whether the tensor still holds the number that was read from it."""
    return number.tensor is not None and (not i.graph.mutated or i.graph.contents.still_holds(number))


def _wide(i: Interpreter, tensor: TensorProxy) -> TensorProxy:
    """As precise as numbers of Python are."""
    if not tensor.meta.dtype.is_floating_point or tensor.meta.dtype is torch.float64:
        return tensor
    return i.graph.call("call_method", "double", (i.graph.call("call_method", "detach", (tensor,), {}),), {})  # type: ignore[no-any-return]


def calls_that_raise(code: CodeType, variables: dict[str, Any]) -> frozenset[int]:
    """Where a function is loaded, for a call, that only raises with these global variables: `torch._assert` with False, and
    Python functions of which all ways end in a `raise` statement."""
    instructions = decode(code).instructions
    found = set()
    for position, instruction in enumerate(instructions):
        if instruction.name != "LOAD_GLOBAL":
            continue
        function, at = variables.get(instruction.value), position
        while instructions[at + 1].name == "LOAD_ATTR" and isinstance(function, ModuleType):
            at += 1
            function = vars(function).get(instructions[at].value)
        if not isinstance(function, FunctionType) or not _is_for_call(instructions, position, at):
            continue
        first = instructions[at + 1 + (instructions[at + 1].name == "PUSH_NULL")]
        fails = function is torch._assert and first.name == "LOAD_CONST" and first.value is False
        if fails or only_raises(function.__code__, 0):
            found.add(position)
    return frozenset(found)


def _is_for_call(instructions: list[Instruction], first: int, last: int) -> bool:
    """Whether what these instructions load is called: a NULL comes with it then."""
    with_null = any(instructions[k].arg & 1 for k in range(first, last + 1))
    return with_null or "PUSH_NULL" in (instructions[last + 1].name, instructions[first - 1].name)


@functools.lru_cache(maxsize=4096)
def only_raises(code: CodeType, position: int, calls: frozenset[int] = frozenset()) -> bool:
    """Whether all ways on from an instruction end in a `raise` statement, or in one of `calls` (or nowhere)."""
    instructions = decode(code).instructions
    seen: set[int] = set()
    waiting = [position]
    raises = False
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if at >= len(instructions) or len(seen) > _MOST_INSTRUCTIONS or instructions[at].name in _LEAVES:
            return False
        instruction = instructions[at]
        if instruction.name == "RAISE_VARARGS" or at in calls:
            if is_handled(code, at):  # the function goes on
                return False
            raises = True
            continue
        if instruction.name not in ALWAYS_JUMPS:
            waiting.append(at + 1)
        if instruction.name in JUMPS:
            waiting.append(instruction.value)
    return raises
