"""Attributes of tensors: metadata is constant, `grad` is a tensor of its own, the rest are methods."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any, NoReturn

import torch

from ...errors import Unsupported
from ...ir.gradients import NodeAsked
from ...ir.sharing import changes, counter_of
from ...ir.values import TensorMeta
from ..graph.contents import may_be_wanted
from ..inference.results import View
from ..inference.stand_ins import is_leaf
from ..inference.tensor_subclasses import is_function_class, own_member
from ..interpreter import Args, Interpreter, Kwargs
from ..objects.class_attributes import bind, class_source, guard_class_attribute, lookup_class
from ..symbolic import ABSENT, TENSOR_TYPES, BuiltinMethod, TensorProxy, type_of
from ..symbolic.kinds import is_trusted_module
from ..symbolic.made import DELETED
from ..symbolic.raising import raise_in_program
from .torch_function import call_mode

#: Attributes that follow from the metadata that is guarded anyway.
FROM_META: dict[str, Callable[[TensorMeta], Any]] = {
    "shape": lambda m: torch.Size(m.shape), "ndim": lambda m: m.ndim, "dtype": lambda m: m.dtype,
    "device": lambda m: m.device, "requires_grad": lambda m: m.requires_grad, "layout": lambda m: torch.strided,
    "itemsize": lambda m: m.dtype.itemsize, "nbytes": lambda m: m.nbytes,
    **{f"is_{kind}": lambda m, kind=kind: m.device.type == kind for kind in ("cpu", "cuda", "mps", "xpu", "meta")},
    **dict.fromkeys(("is_sparse", "is_sparse_csr", "is_quantized", "is_mkldnn", "is_nested"), lambda m: False),
}  # fmt: skip

#: What a functional transform makes different of what it seems.
_OF_AUTOGRAD = frozenset({"requires_grad", "is_leaf", "grad", "grad_fn", "retains_grad"})


def load(i: Interpreter, proxy: TensorProxy, name: str, then: Callable[[Any], None]) -> None:
    """`tensor.name`, given to `then`."""
    if i.graph.user_modes and _is_seen_by_modes(name):
        then(call_mode(i, "call_function", getattr, (proxy, name), {}))
        return
    own = (proxy.real is not None and name in proxy.real.__dict__) or name == "__class__" or not hasattr(torch.Tensor, name)
    if name in proxy.attributes and name != "data":
        if proxy.attributes[name] is DELETED:
            raise_lacking(i, proxy, proxy.cls, name)
        then(proxy.attributes[name])
    elif proxy.cls not in TENSOR_TYPES and own_member(proxy.cls, name)[1] is not ABSENT:
        _member_of_subclass(i, proxy, name, then)
    elif is_function_class(proxy.cls) and not i.graph.without_torch_function and not own:
        if not callable(getattr(torch.Tensor, name, None)):  # attributes go through `__torch_function__` as well
            raise Unsupported(f"the attribute {name} of a tensor with a __torch_function__ of its own")
        then(BuiltinMethod(proxy, name))
    elif name in _OF_AUTOGRAD and proxy.source is None and any(nested.transforms for nested in i.graph.nested):
        raise Unsupported(f"the tensor attribute {name} inside of a functional transform")
    elif name in FROM_META:
        if name == "requires_grad":
            i.outside.guard_requires_grad(proxy)
            i.note_autograd_asked(proxy)
        then(FROM_META[name](proxy.meta))
    elif name == "__class__":
        then(proxy.cls)
    elif name == "grad":
        then(gradient(i, proxy))
    elif name == "is_leaf":
        then(is_leaf_of_autograd(i, proxy))
    elif name == "retains_grad" and proxy.source is None:
        hooks = i.tensor_hooks.get(id(proxy))
        then(hooks is not None and hooks.retains)
    elif name == "grad_fn":
        if not is_leaf_of_autograd(i, proxy):
            made_here = proxy.node is not None and proxy.node.op != "placeholder"
            raise (NodeAsked if made_here else Unsupported)("the autograd node that made a tensor")
        then(None)
    elif name == "data":
        then(_data(i, proxy))
    elif name == "_version":
        then(_version(i, proxy))
    elif name == "T" and proxy.meta.ndim == 2:
        then(i.graph.call("call_method", "t", (proxy,), {}))
    elif name == "mT":
        then(i.graph.call("call_method", "transpose", (proxy, -2, -1), {}))
    elif proxy.meta.ndim >= 2 and (name == "mH" or (name == "H" and proxy.meta.ndim == 2)):
        then(i.graph.call("call_method", "adjoint", (proxy,), {}))
    elif name == "real" and not proxy.meta.dtype.is_complex:
        then(proxy)
    elif name in ("real", "imag") and proxy.meta.dtype.is_complex:
        then(i.graph.call("call_function", getattr(torch, name), (proxy,), {}))
    elif name == "__dict__" or not hasattr(proxy.cls, name):
        _own_attribute(i, proxy, name, then)
    elif callable(getattr(torch.Tensor, name, None)):
        method(i, proxy, name, then)
    else:
        raise Unsupported(f"the tensor attribute {name}")


def _is_seen_by_modes(name: str) -> bool:
    """Whether a torch function mode sees that an attribute of a tensor is read."""
    return name not in ("__class__", "__dict__") and not callable(getattr(torch.Tensor, name, callable))


def method(i: Interpreter, proxy: Any, name: str, then: Callable[[Any], None]) -> None:
    """A method of tensors, guarded where the user's own code asks for it: who replaces one does it to be noticed."""
    owner, raw = lookup_class(torch.Tensor, name)
    if not i.in_library():
        source = class_source(i, torch.Tensor).attr("__dict__")
        if owner is torch.Tensor:
            i.outside.guard("is", source.item(name), raw)
        else:
            i.outside.guard("absent", source, (name,))
    if isinstance(raw, FunctionType) and not is_trusted_module(raw.__module__):
        then(MethodType(raw, proxy))
    else:
        then(MethodType(raw.__func__, proxy.cls) if isinstance(raw, classmethod) else BuiltinMethod(proxy, name))


def _member_of_subclass(i: Interpreter, proxy: TensorProxy, name: str, then: Callable[[Any], None]) -> None:
    """What the user's class defines, unless the object has an attribute of that name."""
    owner, raw = own_member(proxy.cls, name)
    if proxy.real is not None and name in proxy.real.__dict__:
        raise Unsupported(f"the tensor attribute {name}, which its class has too")
    guard_class_attribute(i, proxy.cls.__mro__, owner, name, raw)
    bind(i, owner, name, raw, proxy, proxy.cls, then)


def gradient(i: Interpreter, proxy: TensorProxy) -> Any:
    """`tensor.grad`."""
    if "grad" in proxy.attributes:
        return proxy.attributes["grad"]
    if proxy.source is None or proxy.real is None:
        hooks = i.tensor_hooks.get(id(proxy))
        if proxy.meta.requires_grad and not is_leaf(proxy) and not (hooks is not None and hooks.retains):
            raise Unsupported("the gradient of a tensor that is not a leaf")
        return None
    if not proxy.real.is_leaf and not proxy.real.retains_grad:
        raise Unsupported("the gradient of a tensor that is not a leaf")
    if proxy.cls is not torch.nn.Parameter:  # to read the gradient of a result is a warning: guards must not
        name = "is_leaf" if proxy.real.is_leaf else "retains_grad"
        i.outside.guard("is", proxy.source.attr(name), True)
    return i.outside.wrap(proxy.real.grad, proxy.source.attr("grad"))


def _data(i: Interpreter, proxy: TensorProxy) -> TensorProxy:
    """`tensor.data`, which shares the tensor's memory, and nothing that autograd knows of it."""
    real = proxy.real
    if real is not None and real.requires_grad and proxy.cls is not torch.nn.Parameter and not i.begins_call:
        i.outside.guard_requires_grad(proxy)
        raise Unsupported("the data of a tensor whose gradients a graph before may need")
    tensor = proxy if proxy.data is None else proxy.data
    detached = replace(tensor.meta, requires_grad=False)
    made = i.graph.call("call_function", getattr, (tensor, "data"), {}, View(detached, 0, tracked=False))
    return made  # type: ignore[no-any-return]


def _version(i: Interpreter, proxy: TensorProxy) -> Any:
    """`tensor._version`, how often it was changed in place."""
    counter, graph = counter_of(i.graph.node_of(proxy)), i.graph
    if counter.op != "placeholder":  # operators of PyTorch's may change what they have made
        raise Unsupported("the tensor attribute _version of a tensor that is made inside")
    source, example = graph.contents.example(counter)
    plain = isinstance(example, torch.Tensor) and not example.is_inference() and not torch.is_inference_mode_enabled()
    if not plain or graph.nested or graph.inference.on or graph.changed_elsewhere or proxy.data is not None:
        raise Unsupported("the tensor attribute _version")
    before, times = i.outside.wrap(example._version, source.attr("_version")), changes(graph.root)[counter]
    return graph.number(operator.add, before, times) if times else before


def _set_data(i: Interpreter, proxy: TensorProxy, value: Any) -> None:
    """`tensor.data = value`: from here on the tensor shares the value's memory. What autograd knows of it, the count of its
    changes among that, stays, and so does what was computed from it, or is a view of it. Raises `Unsupported` where PyTorch
    may refuse that, and where a later backward may want what was in the tensor before."""
    if value is proxy:
        return
    if proxy.cls not in TENSOR_TYPES or type(value) is not TensorProxy or value.cls not in TENSOR_TYPES:
        raise Unsupported("setting the data of a tensor to what is no plain tensor")
    old, new = proxy.meta, value.meta
    if type(old) is not TensorMeta or type(new) is not TensorMeta or (old.dtype, old.device) != (new.dtype, new.device):
        raise Unsupported("setting the data of a tensor to a tensor of another kind")
    if old.requires_grad and old.shape != new.shape:
        raise Unsupported("another shape for a tensor that gets gradients")
    if i.graph.nested or torch.is_inference_mode_enabled() or (proxy.real is not None and proxy.real.is_inference()):
        raise Unsupported("setting the data of a tensor inside of a functional transform, checkpoint or inference mode")
    if _is_own_data(proxy, value):
        return
    if proxy.real is None and old.requires_grad:
        if not is_leaf(proxy) or id(proxy) in i.tensor_hooks:
            raise Unsupported("setting the data of a tensor made inside that was computed with gradients, or has hooks")
        i.graph.leaves.move(proxy, _data(i, value))
        return
    if may_be_wanted(i.graph, proxy):
        raise Unsupported("setting the data of a tensor that a later backward may need")
    data = _data(i, value)
    proxy.data, proxy.node = data, data.node
    proxy.meta = replace(new, requires_grad=old.requires_grad)
    if proxy.source is not None:
        i.outside.set_attribute(proxy, "data", data)


def _is_own_data(proxy: TensorProxy, value: TensorProxy) -> bool:
    """Whether a value is what the tensor's `data` gave, maybe changed in place since: `x.data -= 1` sets it to that."""
    node = (proxy if proxy.data is None else proxy.data).node
    is_data = value.node is not None and value.node.target is getattr and value.node.args == (node, "data")
    return is_data and replace(value.meta, requires_grad=False) == replace(proxy.meta, requires_grad=False)


def can_be_seen_otherwise(i: Interpreter, proxy: TensorProxy) -> bool:
    """Whether `see_otherwise` takes a tensor: one from outside that autograd has nothing to do with."""
    if proxy.source is None or proxy.real is None or proxy.cls not in TENSOR_TYPES or proxy.data is not None:
        return False
    if i.graph.nested or torch.is_inference_mode_enabled() or i.graph.inference.on or proxy.real.is_inference():
        return False
    i.outside.guard_requires_grad(proxy)
    return not proxy.meta.requires_grad and "requires_grad" not in proxy.attributes


def see_otherwise(i: Interpreter, proxy: TensorProxy, name: str, args: Args, kwargs: Kwargs) -> TensorProxy:
    """`x.unsqueeze_(0)` and its like: from here on the graph uses a view, whose shape and strides the tensor itself gets
    after the graph. PyTorch counts that as a change, as it does the exchange of an axis with itself."""
    i.graph.call("call_method", "transpose_", (proxy, 0, 0), {})
    i.graph.operators -= 1  # the program has none here
    seen = i.graph.call("call_method", name.removesuffix("_"), (proxy, *args), kwargs)
    proxy.node, proxy.meta = seen.node, seen.meta
    i.outside.set_attribute(proxy, "data", seen)
    return proxy


def change_requires_grad(i: Interpreter, proxy: TensorProxy, wanted: bool) -> None:
    """A leaf from outside begins or ends to require gradients."""
    i.outside.guard_requires_grad(proxy)
    if proxy.cls is not torch.nn.Parameter:
        i.outside.guard("is", proxy.source.attr("is_leaf"), True)  # type: ignore[union-attr]
    i.graph.leaves.change(proxy, wanted)
    i.outside.set_attribute(proxy, "requires_grad", wanted)


def is_leaf_of_autograd(i: Interpreter, proxy: TensorProxy) -> bool:
    i.outside.guard_requires_grad(proxy)
    i.note_autograd_asked(proxy)
    if not proxy.meta.requires_grad:
        return True
    if proxy.source is None or proxy.real is None:
        return is_leaf(proxy)
    leaf = proxy.real.is_leaf
    i.outside.guard("is", proxy.source.attr("is_leaf"), leaf)
    return leaf


def _own_attribute(i: Interpreter, proxy: TensorProxy, name: str, then: Callable[[Any], None]) -> None:
    """An attribute that the user hung on the tensor."""
    if name == "__dict__":
        raise Unsupported(f"the tensor attribute {name}")
    if proxy.real is None or proxy.source is None:  # an operator's result, on which nobody hung anything
        raise_lacking(i, proxy, proxy.cls, name)
    own = proxy.real.__dict__
    if name not in own:
        i.outside.guard("absent", proxy.source.attr("__dict__"), (name,))
        raise_lacking(i, proxy, proxy.cls, name)
    _guard_class(i, proxy.cls, name)
    then(i.outside.wrap(own[name], proxy.source.attr(name)))


def _can_have(i: Interpreter, proxy: TensorProxy, name: str) -> bool:
    """Whether an attribute is one of those that programs hang on tensors, which PyTorch and the tensor's class know nothing
    about. Within a functional transform, the tensors are others than those of the program."""
    if hasattr(torch.Tensor, name) or i.graph.nested:
        return False
    if proxy.cls not in TENSOR_TYPES:
        return own_member(proxy.cls, name)[1] is ABSENT
    _guard_class(i, proxy.cls, name)
    return not hasattr(proxy.cls, name)


def _let_go_of(i: Interpreter, proxy: TensorProxy, name: str) -> None:
    """A tensor from outside will no longer have what it had by this name."""
    if proxy.real is not None and name in proxy.real.__dict__:
        i.overwritten(type(proxy.real.__dict__[name]))


def erase(i: Interpreter, proxy: TensorProxy, name: str) -> None:
    """`del tensor.name`, of what the program has hung on it."""
    if not _can_have(i, proxy, name):
        raise Unsupported(f"deleting the tensor attribute {name}")
    load(i, proxy, name, lambda value: None)
    _let_go_of(i, proxy, name)
    i.outside.set_attribute(proxy, name, DELETED)


def raise_lacking(i: Interpreter, tensor: Any, cls: type, name: str) -> NoReturn:
    """A tensor has no such attribute of its own, nor does its class."""
    _guard_class(i, cls, name)
    text = f"'{cls.__name__}' object has no attribute '{name}'"
    raise_in_program(i.mark_created(AttributeError(text, name=name, obj=tensor)))


def _guard_class(i: Interpreter, cls: type, name: str) -> None:
    """See to it that tensors' class still lacks what is looked for."""
    if cls in TENSOR_TYPES and not i.in_library():
        i.outside.guard("absent", class_source(i, torch.Tensor).attr("__dict__"), (name,))


def _takes_gradient(proxy: TensorProxy, value: TensorProxy) -> bool:
    """Whether PyTorch lets a tensor have this gradient: where it does not, what comes after must not have run."""
    dtype: torch.dtype | None = proxy.meta.dtype
    if proxy.real is not None and proxy.real.is_leaf:
        dtype = getattr(proxy.real, "grad_dtype", dtype)
    of_type = dtype is None or value.meta.dtype == dtype  # None: any type
    return value is not proxy and of_type and (value.meta.shape, value.meta.device) == (proxy.meta.shape, proxy.meta.device)


def store(i: Interpreter, proxy: TensorProxy, name: str, value: Any) -> None:
    """`tensor.grad = value` is a side effect, and so is an attribute that the program hangs on a tensor; others of PyTorch's
    are left to native Python."""
    if hasattr(torch.Tensor, name):
        i.graph.check_modes()
    if _can_have(i, proxy, name):
        _let_go_of(i, proxy, name)
        i.outside.set_attribute(proxy, name, value)
    elif name == "requires_grad":
        if type(value) is not bool:
            raise Unsupported(f"a {type_of(value).__name__} as requires_grad")
        if proxy.meta.requires_grad and not is_leaf(proxy):  # which `requires_grad_(True)` leaves alone, and this refuses
            raise Unsupported("setting requires_grad of a tensor that is no leaf")
        i.call_now(BuiltinMethod(proxy, "requires_grad_"), (value,))
    elif name == "data":
        _set_data(i, proxy, value)
    elif name != "grad":
        raise Unsupported(f"setting the tensor attribute {name}")
    elif value is not None and not (type(value) is TensorProxy and _takes_gradient(proxy, value)):
        raise Unsupported("a gradient that is no tensor, or that its tensor refuses")
    else:
        if not i.graph.operators and proxy.source is not None:
            i.outside.regraded_first.add(proxy.source)
        i.outside.set_attribute(proxy, "grad", value)
