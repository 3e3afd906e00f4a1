"""Which class of Python, or of `capture/symbolic/`, is of which kind."""

from __future__ import annotations

import collections
import enum
import functools
import types
import weakref
from typing import Any

import numpy as np
import torch

from ..library.in_python import CatchWarnings, InferenceMode
from ..objects.iterators import ITERATORS
from ..objects.variables import PeerModule
from ..outside.changes import ContextToken
from ..symbolic.containers import MappingProxy, ShadowContainer, ShadowDict
from ..symbolic.frame import GeneratorValue
from ..symbolic.graph_values import (
    DynamicSize,
    DynamicTensor,
    Either,
    FormedText,
    LateNumber,
    Selection,
    Symbol,
    TensorProxy,
)
from ..symbolic.kinds import NUMPY_METHOD, VIEW_TYPES
from ..symbolic.made import BuiltinMethod, HeldArray, NativeHandler, SuperProxy
from ..symbolic.outside import PLAIN_TYPES, ForeignArray, ForeignObject, ForeignProxy, ForeignScalar, ForeignTensor, Unread
from . import code, constant, dictionary, frame_values, module, number, outside, sequence, sets, tensor
from .kind import Kind
from .object import ObjectKind, UnreadKind

_CODE, _DESCRIPTOR, _CONSTANT = code.CodeKind(), code.DescriptorKind(), constant.ConstantKind()

#: A class of the user's is of the kind of the first of its base classes that is here.
KINDS: dict[type, Kind] = {
    object: ObjectKind(),
    # what the symbolic stack holds in place of real values
    TensorProxy: tensor.TensorKind(), DynamicTensor: tensor.DynamicTensorKind(), Selection: tensor.SelectionKind(),
    Symbol: number.NumberKind(), LateNumber: number.LateNumberKind(), Either: number.EitherKind(),
    FormedText: sequence.FormedTextKind(),
    ForeignObject: outside.ForeignKind(), ForeignScalar: number.ScalarKind(), ForeignArray: number.ForeignArrayKind(),
    ForeignTensor: tensor.ForeignTensorKind(), ForeignProxy: outside.WeakProxyKind(),
    ShadowContainer: outside.ShadowContainerKind(), ShadowDict: dictionary.ShadowDictKind(),
    MappingProxy: dictionary.MappingProxyKind(), Unread: UnreadKind(), GeneratorValue: frame_values.GeneratorKind(),
    BuiltinMethod: code.BuiltinMethodKind(), NativeHandler: code.HandlerKind(), SuperProxy: code.SuperKind(),
    PeerModule: module.PeerKind(), ContextToken: frame_values.TokenKind(), HeldArray: number.ArrayKind(),
    # constants
    **dict.fromkeys(PLAIN_TYPES, _CONSTANT), np.generic: _CONSTANT, enum.Enum: constant.EnumKind(),
    slice: constant.SliceKind(), **{cls: sequence.TextKind(cls) for cls in (str, bytes, range)},
    **dict.fromkeys((types.GenericAlias, types.UnionType, types.CodeType), constant.AliasKind()),
    # containers
    list: sequence.ListKind(), tuple: sequence.TupleKind(), torch.Size: sequence.SizeKind(),
    DynamicSize: sequence.DynamicSizeKind(), collections.deque: sequence.DequeKind(), dict: dictionary.DictKind(),
    **{cls: sets.SetKind(cls) for cls in (set, frozenset)}, **dict.fromkeys(VIEW_TYPES, dictionary.ViewKind()),
    **dict.fromkeys(ITERATORS, frame_values.IteratorKind()),
    # code
    types.FunctionType: code.FunctionKind(), types.BuiltinFunctionType: code.BuiltinKind(), type: code.ClassKind(),
    types.ModuleType: module.ModuleKind(), types.MethodType: code.MethodKind(),
    **dict.fromkeys((types.MethodDescriptorType, types.WrapperDescriptorType, NUMPY_METHOD), _DESCRIPTOR),
    **dict.fromkeys((types.GetSetDescriptorType, classmethod, staticmethod, property), _CODE),
    types.MethodWrapperType: code.WrapperKind(),
    **dict.fromkeys((torch._ops.OpOverload, torch._ops.OpOverloadPacket), code.OperatorKind()),
    functools.partial: code.PartialKind(), **dict.fromkeys(code.GETTERS, code.GetterKind()),
    # the rest
    BaseException: frame_values.ExceptionKind(), types.TracebackType: frame_values.TracebackKind(),
    types.CellType: frame_values.CellKind(), CatchWarnings: frame_values.FiltersKind(),
    InferenceMode: frame_values.InferenceKind(), weakref.ref: frame_values.ReferenceKind(), **frame_values.MADE_KINDS,
}  # fmt: skip


def kind_of(value: Any) -> Kind:
    """The kind of a value on the symbolic stack."""
    cls = type(value)
    found = KINDS.get(cls)
    if found is not None:
        return found
    if issubclass(cls, enum.Enum):  # which may derive from a builtin class first
        return KINDS[enum.Enum]
    return next(KINDS[base] for base in cls.__mro__ if base in KINDS)
