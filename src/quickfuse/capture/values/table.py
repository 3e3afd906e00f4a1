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
from ..symbolic.graph_values import DynamicSize, DynamicTensor, FormedText, LateNumber, Selection, Symbol, TensorProxy
from ..symbolic.kinds import NUMPY_METHOD, VIEW_TYPES
from ..symbolic.made import BuiltinMethod, HeldArray, NativeHandler, SuperProxy
from ..symbolic.outside import PLAIN_TYPES, ForeignArray, ForeignObject, ForeignScalar, Unread
from .array import ArrayKind, ForeignArrayKind
from .builtin import BuiltinKind, CodeKind, DescriptorKind, OperatorKind
from .callable import GETTERS, GetterKind, HandlerKind, PartialKind, SuperKind
from .class_ import ClassKind
from .constant import AliasKind, ConstantKind, SliceKind
from .dictionary import DictKind, MappingProxyKind, ShadowDictKind, ViewKind
from .dynamic_tensor import DynamicTensorKind
from .enumeration import EnumKind
from .exception import ExceptionKind, TracebackKind
from .frame_values import MADE_KINDS, CellKind, FiltersKind, InferenceKind, ReferenceKind, TokenKind
from .function import FunctionKind
from .iterator import GeneratorKind, IteratorKind
from .kind import Kind
from .method import BuiltinMethodKind, MethodKind
from .module import ModuleKind, PeerKind
from .number import LateNumberKind, NumberKind, ScalarKind
from .object import ObjectKind, UnreadKind
from .outside import ForeignKind, ShadowContainerKind
from .selection import SelectionKind
from .sequence import DequeKind, DynamicSizeKind, FormedTextKind, ListKind, SizeKind, TextKind, TupleKind
from .sets import SetKind
from .tensor import TensorKind

_CODE, _DESCRIPTOR, _CONSTANT, _ITERATOR, _VIEW = CodeKind(), DescriptorKind(), ConstantKind(), IteratorKind(), ViewKind()

#: A class of the user's is of the kind of the first of its base classes that is here.
KINDS: dict[type, Kind] = {
    object: ObjectKind(),
    # what the symbolic stack holds in place of real values
    TensorProxy: TensorKind(), DynamicTensor: DynamicTensorKind(), Selection: SelectionKind(),
    Symbol: NumberKind(), ForeignScalar: ScalarKind(),
    ForeignObject: ForeignKind(), ForeignArray: ForeignArrayKind(), FormedText: FormedTextKind(),
    LateNumber: LateNumberKind(),
    ShadowContainer: ShadowContainerKind(), ShadowDict: ShadowDictKind(), MappingProxy: MappingProxyKind(),
    Unread: UnreadKind(), GeneratorValue: GeneratorKind(),
    BuiltinMethod: BuiltinMethodKind(), NativeHandler: HandlerKind(), SuperProxy: SuperKind(), PeerModule: PeerKind(),
    ContextToken: TokenKind(), HeldArray: ArrayKind(),
    # constants
    **dict.fromkeys(PLAIN_TYPES, _CONSTANT), np.generic: _CONSTANT, enum.Enum: EnumKind(), slice: SliceKind(),
    **dict.fromkeys((types.GenericAlias, types.UnionType, types.CodeType), AliasKind()),
    **{cls: TextKind(cls) for cls in (str, bytes, range)},
    # containers
    list: ListKind(), tuple: TupleKind(), torch.Size: SizeKind(), DynamicSize: DynamicSizeKind(),
    collections.deque: DequeKind(), dict: DictKind(),
    **{cls: SetKind(cls) for cls in (set, frozenset)}, **dict.fromkeys(VIEW_TYPES, _VIEW),
    **dict.fromkeys(ITERATORS, _ITERATOR),
    # code
    types.FunctionType: FunctionKind(), types.BuiltinFunctionType: BuiltinKind(), type: ClassKind(),
    types.ModuleType: ModuleKind(), types.MethodType: MethodKind(),
    **dict.fromkeys((types.MethodDescriptorType, types.WrapperDescriptorType, NUMPY_METHOD), _DESCRIPTOR),
    **dict.fromkeys((types.GetSetDescriptorType, classmethod, staticmethod, property), _CODE),
    **dict.fromkeys((torch._ops.OpOverload, torch._ops.OpOverloadPacket), OperatorKind()),
    functools.partial: PartialKind(), **dict.fromkeys(GETTERS, GetterKind()),
    # the rest
    BaseException: ExceptionKind(), types.TracebackType: TracebackKind(), types.CellType: CellKind(),
    CatchWarnings: FiltersKind(), InferenceMode: InferenceKind(), weakref.ref: ReferenceKind(), **MADE_KINDS,
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
