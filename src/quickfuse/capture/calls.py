"""Calls of functions. Those of Python are captured as a part of the program, but for some; native ones have rules."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable
from types import ClassMethodDescriptorType, CodeType, FunctionType
from typing import Any

import torch.fx
from torch.fx.graph_module import _WrappedCall
from torch.nn.utils import rnn

from ..errors import Unsupported
from ..ir.marks import Mark, compiled_by_peer, kept_from_peer, mark_of, others_marked
from ..ir.meta_kernels import KEPT_FROM_COMPILER
from ..ir.values import TensorMeta
from .inference.metadata import result_device
from .inference.mutation import name_of
from .inference.results import OperatorFailed, SameTensor, View, tensors_in
from .inference.stand_ins import outside_inference_mode, run_without_data
from .interpreter import Args, Interpreter, Kwargs, Then
from .library import builtin_calls, function_calls, higher_order
from .library import in_python as library
from .library.text import AROUND_REPR
from .objects.class_attributes import lookup_class
from .pytorch import function_modes, torch_function, transforms
from .pytorch import functions as torch_calls
from .pytorch.first_steps import prepare_step, without_asking
from .pytorch.operators import call_operator, is_operator, plain_operands
from .symbolic import TensorProxy, symbolic_leaves, type_of
from .symbolic.kinds import is_trusted_module
from .symbolic.raising import call_handler


def call(i: Interpreter, function: FunctionType, args: Args, kwargs: Kwargs, then: Then) -> None:
    kept_out = function.__code__ is KEPT_FROM_COMPILER and is_trusted_module(function.__module__)
    if (mark := user_mark(function)) is not None:
        then(call_marked(i, mark, function, args, kwargs))
    elif (made := transforms.made_outside(i, function)) is not None:
        then(made.run(i, *args, **kwargs))
    elif (original := compiled_by_peer(function) or _counted_by_peer(function)) is not None:
        i.call(original, args, kwargs, then)
    elif _calls_module_of_peer(function):  # whose `forward` is a function that torch.compile returned
        i.call(torch.nn.Module.__call__, args, kwargs, then)
    elif function.__qualname__ in _BLOCKS_OF_PEER and _is_of_peer(function):
        then(function_modes.block_of_peer(i, begins=function.__name__ == "__enter__"))
    elif _is_of_peer(function):
        then(torch_calls.call_peer(i, f"{function.__module__}.{function.__name__}", args, kwargs))
    elif function.__code__ is function_calls.DISPATCH:
        then(function_calls.dispatch_to(i, function, args, kwargs))
    elif function.__code__ is function_calls.GET_CACHED:
        function_calls.method(i, function, args, kwargs, then)
    elif kept_out or function.__code__ is AROUND_REPR:
        i.call(function.__wrapped__, args, kwargs, then)  # type: ignore[attr-defined]
    elif (kept := kept_from_peer(function)) is not None:
        if not is_trusted_module(function.__module__):  # the user's wish; PyTorch wraps its own for the sake of its compiler
            raise Unsupported(f"{function.__qualname__}, which torch.compiler.disable keeps out of graphs")
        i.call(kept, args, kwargs, then)
    else:
        _follow(i, function, args, kwargs, then)


def _follow(i: Interpreter, function: FunctionType, args: Args, kwargs: Kwargs, then: Then) -> None:
    """Capture what a function does as a part of the program, unless it is left to Python."""
    if function in _OVER_PACKED and any(type_of(v) is rnn.PackedSequence for v in (*args[1:], *kwargs.values())):
        raise Unsupported("a recurrent layer over a packed sequence")
    vectorised = function in _VECTORISED and i.truth(args[4] if len(args) > 4 else kwargs.get("vectorize", False))
    if vectorised or is_left_to_python(function):
        raise Unsupported(f"a call of {function.__module__}.{function.__qualname__}")
    if not i.graph.user_modes and (same := without_asking(i, function, args, kwargs)) is not None:
        i.call(same, args, kwargs, then)
    else:
        prepare_step(i, function, args)
        i.inline(function, args, kwargs, then)


#: The ends of blocks with other options of PyTorch's compiler.
_BLOCKS_OF_PEER = frozenset({"DynamoConfigPatchProxy.__enter__", "DynamoConfigPatchProxy.__exit__"})
#: What tells PyTorch's compiler that a break within a block is an error: for itself, in a setting of its own.
_ABOUT_BREAKS = frozenset({"error_on_graph_break", "ErrorOnGraphBreakDecoratorContextManager"})


def _is_of_peer(function: FunctionType) -> bool:
    """Whether a function is one of PyTorch's compiler, but no helper in Python that is there for captured programs."""
    module = function.__module__ or ""
    if not module.startswith(("torch._dynamo", "torch._inductor")):
        return False
    is_helper = module == "torch._dynamo.external_utils" and not function.__name__.endswith("is_compiling")
    return not (is_helper or function.__qualname__.partition(".")[0] in _ABOUT_BREAKS)


def _calls_module_of_peer(function: FunctionType) -> bool:
    is_call = function.__qualname__ == "OptimizedModule.__call__" and function.__module__ == "torch._dynamo.eval_frame"
    return is_call and not torch.nn.modules.module._has_any_global_hook()  # of which it warns


def _counted_by_peer(function: FunctionType) -> Any:
    """`nn.Module.__init__`, where PyTorch's compiler was used in the process and counts since then when modules are made."""
    names = ("patched_init", "patched_setstate")
    if function.__module__ != "torch._dynamo.mutation_guard" or function.__name__ not in names:
        return None
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    original = cells.get("init" if function.__name__ == "patched_init" else "setstate")
    return None if original is None else original.cell_contents


#: Modules whose functions do nothing with tensors of a graph, talk to the world, or look at the interpreter itself: a
#: call is one step in Python. A name covers its submodules.
_LEFT_TO_PYTHON = (
    "argparse ast asyncio atexit base64 builtins calendar code codecs concurrent configparser copy csv ctypes datetime "
    "decimal difflib dis email fileinput fnmatch ftplib genericpath getpass gettext glob gzip hashlib html http "
    "importlib inspect io ipaddress json linecache locale logging lzma mailbox mimetypes multiprocessing ntpath os "
    "pathlib pdb pickle pickletools pkgutil platform posixpath pprint profile queue random re secrets selectors shelve "
    "shlex shutil signal smtplib socket sqlite3 ssl statistics string struct subprocess sys sysconfig tarfile tempfile "
    "textwrap threading timeit token tokenize trace traceback tracemalloc unittest urllib uuid warnings wave webbrowser "
    "xml zipfile zlib numpy scipy pandas matplotlib PIL tqdm rich jinja2 yaml requests sklearn networkx sympy tabulate "
    "wandb tensorboard torch._functorch.apis torch._functorch.eager_transforms torch._functorch.vmap torch._tensor_str "
    "torch.autograd.graph torch.autograd.profiler torch.cuda torch.distributed torch.export torch.fx torch.hub "
    "torch.library torch.multiprocessing torch.package torch.profiler torch.random torch.serialization torch.testing "
    "torch.utils.benchmark torch.utils.data torch.utils.dlpack torch.utils.hooks quickfuse.backends quickfuse.compile "
    "quickfuse.control quickfuse.doctor quickfuse.explain quickfuse.logs torch.utils.tensorboard "
    "torch.autograd.gradcheck torch.autograd.anomaly_mode torch.autograd.forward_ad"
)
_PATTERN = re.compile(rf"(?:{'|'.join(re.escape(name) for name in _LEFT_TO_PYTHON.split())})(?:\..*)?")

#: Modules within those that are captured: `torch.cuda.amp.autocast` is `torch.autocast` by another name, and a module that
#: `torch.export` made flattens and checks its arguments. What is said of symbolic sizes there says nothing of plain ones.
_CAPTURED = frozenset(
    "torch.cuda.amp.autocast_mode torch.fx._pytree torch.export._unlift torch.export._tree_utils "
    "torch.fx.experimental.symbolic_shapes".split()
)

#: Functions of these modules that do no more than their Python says.
_PLAIN: frozenset[Any] = frozenset({
    inspect.isclass, inspect.isfunction, inspect.ismethod, inspect.ismodule, inspect.isbuiltin, inspect.Signature.bind,
    inspect.Signature.bind_partial, inspect.Signature._bind,  # type: ignore[attr-defined]
    inspect.BoundArguments.__init__, inspect.BoundArguments.apply_defaults,
    inspect.BoundArguments.args.fget, inspect.BoundArguments.kwargs.fget,  # type: ignore[attr-defined]
    os.getenv, os._Environ.__getitem__, os.environ.encodekey, os.environ.decodevalue,
    logging.Logger.getEffectiveLevel, logging.LoggerAdapter.isEnabledFor,
    _WrappedCall.__call__,
    *(getattr(cls, name) for cls in (logging.Logger, logging.LoggerAdapter)
      for name in "debug info warning warn error exception critical fatal log".split() if hasattr(cls, name)),
})  # fmt: skip

#: What PyTorch's data sets, samplers and loaders compute their lengths by: all else that they do is left to Python.
_LENGTHS = frozenset({"__len__", "num_samples", "_index_sampler", "_auto_collation"})

#: The code of the `__call__` that torch.fx gives to the class of each graph module.
_GRAPH_MODULE_CALL = next(
    code
    for code in torch.fx.GraphModule.recompile.__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == "call_wrapped"
)

#: What `dataclasses.dataclass` does with a class comes down to `exec`: one step for all of it.
_OF_CLASSES = frozenset({"dataclass", "dataclass.<locals>.wrap", "_process_class"})

#: Functions that make or take as many rows as sequences of several lengths have together, and the layers between them.
#: These are one step each: a graph with such rows would be compiled again for each number of them.
_OF_PACKED = frozenset({rnn.pack_padded_sequence, rnn.pad_packed_sequence, rnn.pack_sequence, rnn.unpack_sequence})
_OVER_PACKED = frozenset({torch.nn.RNN.forward, torch.nn.LSTM.forward, torch.nn.GRU.forward})

#: Classes whose methods hold state that only real objects have.
_LEFT_BY_NAME = frozenset(
    "Tensor.register_hook Tensor.__deepcopy__ Tensor.__reduce_ex__ DistributedDataParallel._pre_forward "
    "DistributedDataParallel._post_forward LazyModuleMixin._infer_parameters".split()
)


@functools.lru_cache(maxsize=4096)
def _is_left(module: str) -> bool:
    return module not in _CAPTURED and _PATTERN.fullmatch(module) is not None


def is_left_to_python(function: FunctionType) -> bool:
    """Whether a call of a Python function is performed as one step instead of being captured."""
    if function in _PLAIN or function.__code__ is _GRAPH_MODULE_CALL:
        return False
    if function in _OF_PACKED:
        return True
    module = function.__module__
    if module == "dataclasses" and function.__qualname__ in _OF_CLASSES:
        return True
    if type(module) is str and _is_left(module):
        return not (function.__name__ in _LENGTHS and module.startswith("torch.utils.data."))
    return function.__qualname__ in _LEFT_BY_NAME


#: Functions that run under another transform than those of `torch.func` if their fifth operand, `vectorize`, is true.
_VECTORISED = frozenset({torch.autograd.functional.jacobian, torch.autograd.functional.hessian})


# functions that the user said something about: see `ir.marks` ------------------------------------------------------


def user_mark(function: Any) -> Mark | None:
    """What the user said about a function, to us or, by `torch.compiler.allow_in_graph`, to PyTorch's compiler, which is
    loaded then."""
    if (mark := mark_of(function)) is not None:
        return mark
    rules = sys.modules.get("torch._dynamo.trace_rules")
    allowed: set[int] = getattr(getattr(rules, "_allowed_callable_ids", None), "function_ids", None) or set()
    by_peer = id(function) in allowed and not is_trusted_module(getattr(function, "__module__", None))
    return Mark("in graph") if by_peer else None


def call_marked(i: Interpreter, mark: Mark, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A call of a marked function. Raises `Unsupported` where the call is to happen in Python."""
    if mark.kind == "is compiling":
        return torch_calls.is_compiling(i)
    if mark.kind == "hint":
        return None
    if mark.kind == "in graph":
        return _call_in_graph(i, function, args, kwargs)
    if mark.kind == "graph break":
        raise Unsupported("quickfuse.graph_break()")
    note = f" ({mark.note})" if mark.note else ""
    if not isinstance(function, FunctionType) or function.__module__ == "quickfuse.control":
        raise Unsupported(f"quickfuse.disable(){note}")
    raise Unsupported(f"{function.__qualname__}, which quickfuse.disable keeps out of graphs{note}")


def _call_in_graph(i: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """One node of the graph. What it returns is found out by running it on tensors without data."""
    if i.is_created(function) or i.outside.is_by_code(function):
        raise Unsupported(f"{name_of(function)}, allowed in graphs, but made anew at each call")
    args, kwargs = plain_operands(i, args), plain_operands(i, kwargs)
    tensors = [leaf for leaf in symbolic_leaves((args, kwargs)) if type(leaf) is TensorProxy]
    what = f"{name_of(function)}, allowed in graphs,"
    try:
        with outside_inference_mode():
            result = run_without_data(function, args, kwargs, tensors, i.graph.keeps_history, result_device(tensors))
    except (OperatorFailed, Unsupported) as error:
        raise Unsupported(f"{what} does not run on tensors without data: {error}") from error
    if result.written or result.changed:
        raise Unsupported(f"{what} changes its arguments")
    if any(isinstance(leaf, View) for leaf in tensors_in(result.structure)):
        raise Unsupported(f"{what} returns a view of its arguments")
    if not _only_tensors(result.structure):
        raise Unsupported(f"{what} returns something else than tensors")
    return i.graph.call("call_function", function, args, kwargs, result.structure)


def _only_tensors(structure: Any) -> bool:
    if isinstance(structure, (tuple, list)):
        return bool(structure) and all(map(_only_tensors, structure))
    return isinstance(structure, (TensorMeta, SameTensor))


# what is written in C: functions, methods of builtin classes, and PyTorch's operators ------------------------------


def call_known(i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> bool:
    """Call a function that capture has a rule for, or a Python function in place of, or that becomes a node of the graph;
    False where it is none of these."""
    if i.graph.user_modes:
        has_rule = handler_of(function) is not None or equivalent_of(function) is not None
        made = torch_function.by_mode(i, function, has_rule, args, kwargs)
        if made is not NotImplemented:
            then(made)
            return True
    if i.graph.default_device is not None:
        kwargs = function_modes.on_device(i, function, args, kwargs)
    if (handler := handler_of(function)) is not None:
        then(call_handler(i, handler, name_of(function), args, kwargs))
    elif (equivalent := equivalent_of(function)) is not None:
        i.call(equivalent, args, kwargs, then)
    elif is_operator(function):
        then(call_operator(i, function, args, kwargs))
    else:
        return False
    return True


def handler_of(function: Any) -> Callable[..., Any] | None:
    """What capture does in place of a native function, if it has a rule for it."""
    return _found(builtin_calls.HANDLERS, function) or _found(torch_calls.HANDLERS, function)


def equivalent_of(function: Any) -> Callable[..., Any] | None:
    """The Python function that is captured in place of one, if there is one."""
    return _found(library.EQUIVALENTS, function) or _found(higher_order.EQUIVALENTS, function)


def _found(table: dict[Any, Callable[..., Any]], function: Any) -> Callable[..., Any] | None:
    try:
        return table.get(function)
    except Exception:  # it cannot be hashed: a memoryview of what may change says so by a ValueError
        return None


def call_builtin(i: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    if mark := others_marked().get(function):
        return call_marked(i, mark, function, args, kwargs)
    owner = function.__self__
    if isinstance(owner, type):  # a class method in C
        unbound = lookup_class(owner, function.__name__)[1]
        handler = handler_of(unbound) if type(unbound) is ClassMethodDescriptorType else None
        if handler is not None:
            return call_handler(i, handler, name_of(unbound), (owner, *args), kwargs)
    elif owner is not None and type(owner).__name__ != "module":
        unbound = getattr(type(owner), function.__name__, None)
        if unbound is None:
            raise Unsupported(f"the native function {name_of(function)}")
        return i.kind_of(owner).method(i, unbound, owner, args, kwargs)
    raise Unsupported(f"the native function {getattr(function, '__module__', '')}.{name_of(function)}")
