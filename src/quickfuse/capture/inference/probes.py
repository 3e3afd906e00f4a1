"""Finding out what an operator returns by running it on small tensors.

Most of PyTorch's rules for tensors without data are written in Python, and the first one that is used imports half of
PyTorch's compiler: one to three seconds. Running the operator itself takes microseconds, and gives the strides of the
very kernels that will run. It is done for the operators listed here, whose results' metadata does not depend on their
operands' contents. Long axes are shortened before, each length to another one: so the lengths of the result's axes tell
which axes of the operands they are.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.modes import DispatchMode
from ...ir.values import TensorMeta, contiguous_stride
from ..symbolic import TensorProxy, mapped, tensors_among
from .lengths import Axes, Lengths, no_axis
from .results import OperatorFailed, Result, map_structure
from .stand_ins import StandIns, call, reason_of, run_without_data

#: Every axis of the results is an axis of an operand, or as long as an argument says.
_ANY_AXIS = (
    "sum nansum mean nanmean prod amax amin aminmax max min argmax argmin any all var std var_mean std_mean norm median "
    "nanmedian mode logsumexp count_nonzero cumsum cumprod cummax cummin logcumsumexp softmax log_softmax softmin "
    "layer_norm native_layer_norm rms_norm batch_norm instance_norm normalize cosine_similarity pairwise_distance "
    "embedding cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss multilabel_margin_loss "
    "multilabel_soft_margin_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div soft_margin_loss "
    "hinge_embedding_loss margin_ranking_loss triplet_margin_loss cosine_embedding_loss multi_margin_loss poisson_nll_loss "
    "linear bilinear matmul mm bmm mv dot vdot inner outer ger addmm addmv addr addbmm baddbmm einsum gather scatter "
    "scatter_add scatter_reduce index_select index_add index_copy index_fill take_along_dim masked_fill masked_scatter "
    "sort msort argsort topk kthvalue flip fliplr flipud roll tril triu renorm one_hot adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d angle grid_sample "
    "nonzero_static lu_unpack frexp isreal linalg_svd svd linalg_svdvals linalg_qr qr linalg_eigh linalg_eigvalsh "
    "linalg_eig linalg_eigvals linalg_cholesky cholesky linalg_cholesky_ex cholesky_inverse cholesky_solve linalg_inv "
    "inverse linalg_inv_ex linalg_solve linalg_solve_ex linalg_solve_triangular triangular_solve linalg_lu "
    "linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve lu_solve linalg_ldl_factor linalg_ldl_factor_ex linalg_ldl_solve "
    "linalg_det det linalg_slogdet slogdet logdet linalg_pinv pinverse linalg_matrix_exp matrix_exp linalg_matrix_power "
    "linalg_householder_product geqrf ormqr orgqr linalg_vecdot linalg_cross prelu cross isclose linalg_vector_norm "
    "linalg_norm linalg_matrix_norm dist trace bucketize searchsorted scaled_dot_product_attention stack"
)
#: The same for axes 0 and 1 of images with this number of axes; the lengths of the others follow from their lengths.
_IMAGES = {
    "max_pool1d": 3, "avg_pool1d": 3, "max_pool2d": 4, "avg_pool2d": 4, "max_pool3d": 5, "avg_pool3d": 5, "interpolate": 4,
}  # fmt: skip
#: The lengths of the results' axes may be any function of the lengths of the operands', so that none is shortened.
_NO_AXIS = (
    "conv1d conv2d conv3d native_group_norm pixel_shuffle pixel_unshuffle channel_shuffle conv_transpose1d "
    "conv_transpose2d conv_transpose3d fold unfold max_unpool1d max_unpool2d max_unpool3d lstm gru rnn_tanh rnn_relu "
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell multi_head_attention_forward repeat tile repeat_interleave kron "
    "diff cdist block_diag cartesian_prod tensordot chain_matmul diag diag_embed vander hstack vstack dstack "
    "column_stack row_stack glu rot90 native_batch_norm _native_batch_norm_legit _batch_norm_with_update "
    "select_scatter slice_scatter diagonal_scatter as_strided_scatter "
    "trapezoid trapz cumulative_trapezoid quantile nanquantile gradient arange linspace logspace tril_indices "
    "triu_indices local_response_norm lp_pool1d lp_pool2d isin logsigmoid log_sigmoid "
    "_fused_sgd _fused_adam _fused_adamw _fused_adagrad"
)
#: The same, where PyTorch has no rule for tensors without data, or one with other results than the CPU's kernels.
_ALWAYS = (
    "cov corrcoef histogram histogramdd istft ctc_loss combinations fft_fft fft_ifft fft_rfft fft_irfft fft_hfft "
    "fft_ihfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_hfft2 fft_ihfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn "
    "fft_hfftn fft_ihfftn fft_fftshift fft_ifftshift"
)

#: What layers of attention call in evaluation. Without data these return results that the CPU's kernels leave out.
_FAST_PATHS = "_native_multi_head_attention _transformer_encoder_layer_fwd"

#: Layers that go through a sequence.
_RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu".split())

#: LAPACK counts from 1 in the integers that these get, and believes them.
_COUNT_FROM_ONE = frozenset("lu_unpack linalg_lu_solve lu_solve linalg_ldl_solve".split())

#: Arguments that are lengths of axes: position and name.
_LENGTHS = dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm"), (1, "normalized_shape"))

_CPU = torch.device("cpu")
#: Elements of all operands that a run is worth. Where PyTorch has no rule for tensors without data, and for other layouts
#: than the usual one, for which these rules often have other strides than the CPU's kernels, it is worth more. So it is on a
#: GPU, where it takes no time.
_LARGEST = 1 << 22
_LARGEST_ALWAYS = 1 << 26

_OWNERS: tuple[Any, ...] = (
    torch, torch.Tensor, torch.nn.functional, torch.masked,
    *(getattr(torch._C, name) for name in ("_nn", "_linalg", "_fft", "_special")),
)  # fmt: skip


#: (function, args, kwargs, tensors) -> which axes are shortened.
_Choice = Callable[[Callable[..., Any], Any, Any, list[TensorProxy]], Axes]


def _all(*_: Any) -> Axes:
    return range


def _none(*_: Any) -> Axes:
    return no_axis


def _batch_and_channels(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy]) -> Axes:
    has_batch = len(tensors) == 1 and tensors[0].meta.ndim == _IMAGES[function.__name__]
    return (lambda ndim: (0, 1)) if has_batch else no_axis


def _but_joined(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy]) -> Axes:
    """All but the axis along which `torch.cat` joins."""
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if type(dim) is not int or len({t.meta.ndim for t in tensors}) != 1:
        return no_axis
    return lambda ndim: [axis for axis in range(ndim) if axis != dim % ndim]


def _but_channels(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy]) -> Axes:
    """All axes of images but the channels, which are as long as the other operands."""
    images = tensors[0].meta.ndim if tensors else 0
    return lambda ndim: [0, *range(2, ndim)] if ndim == images > 1 else ()


def _unless_sliced(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy]) -> Axes:
    """All axes, but where an index takes a part of one."""
    index = args[1]
    sliced = (type(part) is slice and part != slice(None) for part in (index if type(index) is tuple else (index,)))
    return no_axis if any(sliced) else range


def _batch_and_sequence(*_: Any) -> Axes:
    """The axes of sequences of vectors but the vectors' own."""
    return lambda ndim: (0, 1) if ndim == 3 else ()


def _but_padded(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy]) -> Axes:
    """The axes that `F.pad` leaves alone."""
    padding = args[1] if len(args) > 1 else kwargs.get("pad")
    if type(padding) not in (list, tuple):
        return no_axis
    return lambda ndim: range(ndim - len(padding) // 2)


@dataclass(frozen=True)
class _Policy:
    axes: _Choice
    always: bool = False

    def largest(self, tensors: list[TensorProxy], device: torch.device) -> int:
        usual = all(t.meta.stride == contiguous_stride(t.meta.shape) for t in tensors)
        return _LARGEST if usual and not self.always and device.type == "cpu" else _LARGEST_ALWAYS


def _policies() -> Iterator[tuple[Any, _Policy]]:
    named = [
        *((name, _Policy(_all)) for name in _ANY_AXIS.split()),
        *((name, _Policy(_batch_and_channels)) for name in _IMAGES),
        *((name, _Policy(_but_joined)) for name in ("cat", "concat", "concatenate")),
        ("group_norm", _Policy(_but_channels)),
        ("pad", _Policy(_but_padded)),
        *((name, _Policy(_batch_and_sequence, always=True)) for name in _FAST_PATHS.split()),
        *((name, _Policy(_none)) for name in _NO_AXIS.split()),
        *((name, _Policy(_none, always=True)) for name in _ALWAYS.split()),
    ]
    for name, policy in named:
        for owner in _OWNERS:
            for form in (name, f"{name}_"):
                function = getattr(owner, form, None)
                if function is not None:
                    yield function, policy
    for function in (operator.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__):
        yield function, _Policy(_all)
    for function in (operator.getitem, torch.Tensor.__getitem__):
        yield function, _Policy(_unless_sliced)
    yield torch.ops.aten.native_dropout_backward.default, _Policy(_all)
    yield torch.ops.aten._batch_norm_with_update, _Policy(_none)


_POLICIES: dict[Any, _Policy] = dict(_policies())


def probe(
    function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool, device: torch.device
) -> Result | None:
    """What `function(*args, **kwargs)` returns, by a run on small tensors, or None where that cannot tell. Raises
    `OperatorFailed` where the operator refuses operands of these types, and `Unsupported` where the operator warns."""
    policy = _POLICIES.get(function)
    # With data on a GPU, a recurrent layer would warn of weights that do not lie together.
    recurrent = device.type == "cuda" and getattr(function, "__name__", "") in _RECURRENT
    if recurrent and torch._C._is_any_autocast_enabled():
        return _without_autocast(function, args, kwargs, grad, device)
    if policy is None or device.type not in ("cpu", "cuda") or _asks_for_data(function, args, kwargs, device):
        return None
    axes_of = policy.axes if not recurrent else _batch_and_sequence
    for axes in dict.fromkeys((axes_of(function, args, kwargs, tensors), no_axis)):
        lengths = Lengths(args, kwargs, [t.meta for t in tensors], axes, _CPU if recurrent else None)
        lengths.first_index = int(getattr(function, "__name__", "") in _COUNT_FROM_ONE)
        try:
            result = _run(function, args, kwargs, tensors, grad, device, lengths, policy.largest(tensors, device))
        except _Raised as raised:
            error = raised.__cause__
            if device.type == "cpu" and _ABOUT_TYPES.search(str(error)):
                raise OperatorFailed(f"{type(error).__name__}: {error}") from error
            continue
        if result is not None:
            return result
    return None


def _without_autocast(
    function: Callable[..., Any], args: Any, kwargs: Any, grad: bool, device: torch.device
) -> Result | None:
    """What a recurrent layer on a GPU returns. Autocast for GPUs converts its operands to float16, whichever its own type
    is, but for those in double precision."""
    converts = torch.is_autocast_enabled("cuda")

    def single(value: Any) -> Any:
        narrow = type(value) is TensorProxy and value.meta.dtype in (torch.float16, torch.bfloat16)
        return TensorProxy(replace(value.meta, dtype=torch.float32), value.node) if converts and narrow else value

    args, kwargs = mapped(single, args), mapped(single, kwargs)
    tensors = [*tensors_among([args, kwargs])]
    with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
        result = probe(function, args, kwargs, tensors, grad, device)
    if result is None or not converts:
        return result

    def half(leaf: Any, _: int) -> Any:
        is_single = isinstance(leaf, TensorMeta) and leaf.dtype is torch.float32
        return replace(leaf, dtype=torch.float16) if is_single else leaf

    return replace(result, structure=map_structure(half, result.structure))


#: What an exception says that is about the operands' types, whatever their lengths and contents. PyTorch's rules for tensors
#: without data often know nothing of it.
_ABOUT_TYPES = re.compile(
    "not implemented for '|does(n't| not) support (bool|complex)|with a bool tensor is not supported|only supports? floating"
    r"|\b(d|scalar )types?\b|same datatype|type .* should be the same|can't be cast to the desired output type"
)


def run_empty(
    function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool, device: torch.device
) -> Result | None:
    """The same for tensors without elements, some or all of them. Where none has any the operator's exceptions are eager's
    own: whether it refuses empty operands, PyTorch's rules for tensors without data often do not know. Raises
    `OperatorFailed` where the operator raises, and `Unsupported` where it warns."""
    if device.type not in ("cpu", "cuda"):
        return None
    lengths = Lengths(args, kwargs, [t.meta for t in tensors], no_axis)
    try:
        return _run(function, args, kwargs, tensors, grad, device, lengths, _LARGEST)
    except _Raised as raised:
        if any(t.meta.numel for t in tensors) or _asks_for_data(function, args, kwargs, device):
            return None
        error = raised.__cause__
        raise OperatorFailed(f"{type(error).__name__}: {error}") from error


def run_elementwise(
    function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool, device: torch.device,
    place: torch.device | None = _CPU,
) -> Result:  # fmt: skip
    """The same for an elementwise operator on any device: its results' shapes, types and layouts follow the same rules on
    the CPU, where it is run. `place`: None for its own device, which autocast goes by. Raises `OperatorFailed` where the
    operator raises, and `Unsupported` where it warns."""
    failed: BaseException | None = None
    for axes in (range, no_axis):
        lengths = Lengths(args, kwargs, [t.meta for t in tensors], axes, place)
        try:
            result = _run(function, args, kwargs, tensors, grad, device, lengths, _LARGEST)
        except _Raised as raised:
            failed = raised.__cause__
        else:
            if result is not None and function is torch.where and len(args) + len(kwargs) == 1:  # which looks at elements
                raise Unsupported(*reason_of(function, NotImplementedError()))
            if result is not None:
                return result
    if failed is not None:
        raise OperatorFailed(f"{type(failed).__name__}: {failed}") from failed
    return run_without_data(function, args, kwargs, tensors, grad, device)


class _Raised(Exception):
    """The operator raised, perhaps because of the lengths or the contents of the tensors that it was given."""


def _run(
    function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool, device: torch.device,
    lengths: Lengths, largest: int,
) -> Result | None:  # fmt: skip
    if sum(math.prod(lengths.shorten(t.meta.shape)) for t in tensors) > largest:
        return None
    operands = StandIns(lengths.make, lengths.place or device)
    threads = torch.get_num_threads()
    # Which convolution is best depends on the number of threads. For others, waking them takes longer than the work.
    one_thread = lengths.place is None and "conv" not in function.__name__
    if one_thread:
        torch.set_num_threads(1)
    try:
        short_args, short_kwargs = _short_arguments(function, lengths, operands, args, kwargs)
        # An index that is a tensor selects one element, whatever it holds; nor is what elements are computed from a length.
        any_number = lengths.place is not None or _is_index(function)
        numbers = [] if any_number else [operands.made_for(t) for t in tensors if t.meta.numel == 1]
        with _Unread(function, numbers) if numbers else contextlib.nullcontext():
            returned = call(function, short_args, short_kwargs, grad)
        return lengths.original(operands.result(returned, tensors, device))
    except Unsupported:
        raise
    except Exception as error:
        raise _Raised from error
    finally:
        if one_thread:
            torch.set_num_threads(threads)


class _Unread(DispatchMode):
    """Within it, the operator does not take these tensors for numbers: a length, an axis, a limit is not what the operand
    happens to hold here."""

    def __init__(self, function: Callable[..., Any], numbers: list[torch.Tensor | None]) -> None:
        super().__init__()
        self.function = function
        self.numbers = {id(number) for number in numbers}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and id(args[0]) in self.numbers:
            raise Unsupported(*reason_of(self.function, ValueError()))
        return func(*args, **(kwargs or {}))


def _asks_for_data(function: Callable[..., Any], args: Any, kwargs: Any, device: torch.device) -> bool:
    """Forms of the operators above whose results do depend on the contents, or that draw random numbers.

    So do those that refuse contents, which on a CPU is an exception, and on a GPU the end of the process's use of it.
    """
    name = str(getattr(function, "__name__", ""))
    if name == "one_hot":
        return max([-1, *(a for a in (*args[1:], kwargs.get("num_classes")) if type(a) is int)]) < 0
    if name == "repeat_interleave":
        counts = any(type(a) is TensorProxy for a in (*args[1:], kwargs.get("repeats")))
        return counts and ("output_size" not in kwargs or device.type != "cpu")
    if name == "scaled_dot_product_attention":
        return device.type != "cpu" or bool(kwargs.get("dropout_p") or (len(args) > 4 and args[4]))
    if _is_index(function):
        return not _is_index_of_integers(args[1])
    if name in _RECURRENT or name == "multi_head_attention_forward":
        return any(type(a) is float and a > 0 for a in (*args, *kwargs.values()))
    return False


def _is_index(function: Callable[..., Any]) -> bool:
    return getattr(function, "__name__", "") in ("getitem", "__getitem__")


def _is_index_of_integers(index: Any) -> bool:
    """Whether an index takes what integers in tensors or lists select; masks ask for data, and other indices make views."""
    selects = []
    for part in index if type(index) is tuple else (index,):
        if type(part) is TensorProxy:
            selects.append(part.meta.dtype in (torch.int64, torch.int32))
        elif type(part) is list:
            selects.append(bool(part) and all(type(element) is int for element in part))
        elif not (part is None or part is Ellipsis or type(part) in (int, slice)):
            return False
    return bool(selects) and all(selects)


def _short_arguments(
    function: Callable[..., Any], lengths: Lengths, operands: StandIns, args: Any, kwargs: Any
) -> tuple[Any, Any]:
    position, name = _LENGTHS.get(str(getattr(function, "__name__", "")), (None, None))
    if position is not None:
        args = tuple([lengths.shorten(a) if k == position else a for k, a in enumerate(args)])
        kwargs = {key: lengths.shorten(a) if key == name else a for key, a in kwargs.items()}
    if lengths.place is not None and kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": lengths.place}
    return operands.of(args), operands.of(kwargs)
