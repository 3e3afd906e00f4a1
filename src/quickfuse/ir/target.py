"""What kernels run on, as far as their code and their order depend on it: one place for all numbers found by measuring.

Each says what it was measured on. "2 cores" is an AMD EPYC with AVX-512, 1 MB of cache a core and PyTorch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .cost_model import COSTS, GPU_COSTS, CostModel
from .expr import FLOAT_FUNCTIONS
from .kernel import KernelBody, StoreKind
from .philox import WIDTHS

#: The cost of operations on an element that are not simple, in additions: throughput of vectors of float32 on 2 cores.
OPERATION_COSTS: dict[str, int] = {
    "div": 6, "sqrt": 4, "rsqrt": 6, "fmod": 8, "trunc_div": 8,
    **dict.fromkeys((*FLOAT_FUNCTIONS, "pow", "atan2", "hypot", "nextafter"), 12),
    # A random number is some 60 instructions, or a quarter of them where four neighbours share them.
    **dict.fromkeys(WIDTHS, 40),
}  # fmt: skip
_SLOW = 8


def is_slow(operation: str) -> bool:
    """Whether an operation takes so long that its result is worth keeping."""
    return OPERATION_COSTS.get(operation, 1) >= _SLOW


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A CPU. `vector_bytes` is 16, 32 or 64; `libmvec` allows calls of glibc's vector functions."""

    vector_bytes: int = 16
    libmvec: bool = False
    costs: CostModel = COSTS

    #: A thread's share of a loop over elements is a multiple of this many, so that vectors are not cut in two.
    share_multiple: int = 64
    #: How many elements of the vectors' axis are one unit of work, where the elements of a vector belong to different rows;
    #: and how many where rows only scatter, for which longer runs of memory are all that counts. Column sums and
    #: `index_add` of 64 to 4096 columns, 2 cores.
    column_block: int = 64
    scatter_block: int = 128
    #: So many blocks of columns, at most, are gone through together. What is kept for each column has to stay in the cache
    #: of the first level. Sums over columns of 8192 x 1024, 2 cores.
    blocks_together: int = 16
    #: So many float32 values of a column are added up before they are added to its sum in float64, which takes two
    #: conversions. Column sums and batch norm statistics, 2 cores.
    added_in_float32: int = 8
    #: A loop that reduces, with at most this many values, goes through this many vectors at a time, with accumulators of
    #: their own: additions wait for each other. Row sums, softmax and layer norm of 512 x 768, 2 cores.
    unroll: tuple[tuple[int, int], ...] = ((12, 4), (30, 2))
    #: Rows shorter than this are not worth a vector each, where there are enough of them to lay vectors across. Softmax and
    #: sums of 20000 x 10, 2 cores.
    short_row: int = 16
    many_rows: int = 64
    #: Where operands lie along another axis than what is stored, blocks of vectors go along so many elements of it, at most.
    #: Images to and from channels last, transposes of 64 to 4096 columns, one core of a Xeon with AVX-512: 0.25 to 0.9 of
    #: the time of whole rows.
    most_turned: int = 64
    #: Words that a kernel without axes has for what the member before computed; the driver of kernels makes room for them.
    memo_words: int = 64
    #: Below this much work (in elements of a cheap operation), waking the other threads costs more than they save: 5 us.
    parallel_work: int = 1 << 15
    #: Above this many elements a kernel runs long enough (some 50 us) to let other Python threads run.
    long_running: int = 1 << 18

    @property
    def has_fma(self) -> bool:
        """Whether a multiply-add with one rounding is an instruction (processors with AVX2 have it)."""
        return self.vector_bytes >= 32

    def unrolled(self, values: int) -> int:
        """How many vectors at a time a loop that reduces and computes so many values goes through."""
        return next((copies for most, copies in self.unroll if values <= most), 1)

    def block(self, body: KernelBody) -> int:
        """How many elements of the vectors' axis are one unit of work, where vectors lie across rows."""
        scatters = all(store.kind in (StoreKind.ASSIGN, StoreKind.SCATTER) for store in body.stores)
        return self.scatter_block if body.ordered and scatters else self.column_block

    def together(self, body: KernelBody) -> int:
        """How many such units, at most, are gone through together."""
        lying = all(slot.strides[body.vector] in (0, 1) for slot in body.slots)
        return self.blocks_together if lying and not body.ordered else 1

    def units(self, body: KernelBody, sizes: Sequence[int]) -> int:
        """Units of work of a member, which threads share: elements (one axis), iterations of all axes but the last (more
        axes), or members (no axes); with axes that are not parallel rows, or blocks of rows that vectors lie across."""
        if not body.inner:
            return sizes[0] if len(sizes) == 1 else math.prod(sizes[:-1])
        rows = sizes[: len(body.parallel)]
        return math.prod(rows[:-1]) * -(-rows[-1] // self.block(body)) if body.across else math.prod(rows)


@dataclass(frozen=True, slots=True)
class CudaTarget:
    """A GPU of NVIDIA. Blocks are numbers of elements, or of members for bodies without axes, and of warps."""

    #: 1024 elements and 4 warps give each thread two 128-bit loads of a 4-byte type, enough in flight to reach copy
    #: bandwidth. Short members and small totals get smaller blocks, with one such load for each thread. Adam and copies,
    #: H200.
    blocks: tuple[tuple[int, int], ...] = ((1024, 4), (512, 4), (256, 2))
    least_block: tuple[int, int] = (128, 1)
    #: Elements that move at most so many bytes are handled in larger blocks: a program waits for its row of the table first.
    blocks_of_light: tuple[tuple[int, int], ...] = ((2048, 4),)
    light_element: int = 8
    #: Shorter rows of loops without reductions are gone through as if there were no rows.
    least_long_row: int = 64
    block_of_members: tuple[int, int] = (128, 4)
    #: Programs for each multiprocessor that keep the memory system busy; below it, smaller blocks make more of them. H200.
    programs_per_multiprocessor: int = 8

    #: Rows of at most so many elements are in registers as a whole; and of so many, where a program has many operands.
    whole_row: int = 8192
    whole_row_of_many: int = 4096
    many_operands: int = 6
    #: Longer rows that are not aligned are not in registers as a whole, but gone through in tiles of so many elements, which
    #: a cache still has: 111 us beside 187 (softmax of 16380 x 4097, bfloat16, H200).
    longest_narrow_row: int = 4096
    shifted_tile: int = 512
    #: Nor are those that fill no more than three quarters of their power of two, of 16 bits or of two operands; each thread
    #: has 8 elements then. Of 5120, layer norm reaches 85% of a copy's bandwidth so, for 50, softmax 82 for 51 (bfloat16).
    tile_of_unfilled_rows: int = 1024
    #: Of longer rows, mean and variance are those of parts of them, so that each element is read once for both.
    least_row_by_parts: int = 1 << 14
    least_part_for_moments: int = 16
    #: So much memory may be taken longer than it must be, so that equal loops are one launch: weights of ResNet-50 in
    #: bfloat16 are 51 MB.
    bytes_for_fewer_launches: int = 128 << 20
    bytes_for_later_launch: int = 16 << 20
    #: What takes no more with its operands may be computed at any time: as much as the values of some thousand channels.
    bytes_of_small_results: int = 1 << 16
    #: Elements of a tile of whole short rows, and of one of the tiles that longer rows are gone through in.
    tile: int = 2048
    #: The least and the most rows of a tile whose rows are neighbours in memory.
    least_across: int = 16
    most_across: int = 64
    #: Elements of such a tile, and of one whose operands have 16 bits, of one warp each. More warps have to wait for each
    #: other, and fewer programs are under way. Statistics of batch norms of ResNet-50 and their gradients, H200, us, tiles
    #: of 4 warps (2048 elements), and these: 32 x 64 x 112 x 112 in bfloat16 28, 21 and 49, 48; 32 x 256 x 56 x 56 in
    #: float32 33, 30 and 75, 73; 32 x 128 x 28 x 28 in bfloat16 14, 8 and 11, 6.
    tile_across: tuple[int, int] = (1024, 512)
    #: How many of such tiles of few operands of 16 bits are loaded at a time: statistics of 32 x 64 x 112 x 112 take 17 us
    #: in place of 21, and their gradients 41 in place of 48.
    unrolled_across: int = 4
    #: From so many tiles on, a few single warps for each multiprocessor do not have enough loads under way. Sums over axis 0
    #: of 16384 x 4096 take 45 us so in bfloat16, and 35 by 4 warps.
    many_tiles: int = 64
    #: Elements of the tiles of loops that do not reduce, with as many rows as columns, where both axes have so many.
    square: int = 64
    least_tiled: int = 16
    #: How many elements each thread has of such a tile, of few operands: half of a thread's instructions find out where its
    #: elements are. A transpose of bfloat16 is 160 for 8 elements, 152 for 16 and 184 for 32; of float32 160, 208 and 304.
    elements_of_square: int = 16
    #: A scan goes along a row in one program: fewer rows of so many elements are PyTorch's.
    long_scan: int = 1 << 16
    busy_scans: int = 128
    #: How many elements of a tile each thread has, and the most warps of a program.
    elements_a_thread: int = 8
    #: Bytes that each thread loads at a time where accesses of 128 bits are not possible.
    bytes_under_way: int = 16
    #: With at most so many operands of 16 bits each, threads have twice as many.
    few_operands: int = 4
    most_warps: int = 16
    #: The registers of a thread that has whole rows of few operands of at most four bytes, with 32 elements of each at the
    #: most: as many as accesses of 128 bits need, so that two programs of 16 warps are on a multiprocessor. Layer norm takes
    #: 62 in bfloat16 and 70 in float32; with the code for narrow accesses beside, 106 and 107. On an H200 its 8192 x 8192 in
    #: float32 reach 97% of a copy's bandwidth with the limit, and 67% with one of 80. With two operands code needs less.
    most_registers: int = 64
    #: Rows that would take more warps together are tiles of their own: all warps of a program wait for each other.
    usual_warps: int = 8
    #: The most warps of a program with rows of 32 bits that begin anywhere and are read twice: the fewer are under way, the
    #: more of them a cache still has. Softmax of 3354 x 20001 in float32 takes 173 us with 32 and 191 with 16 (H200).
    most_warps_of_shifted: int = 32
    #: Calls that move fewer bytes take about as long as a launch, whatever their tiles are, as long as no more than so many
    #: times their elements are in tiles. Others may have another call's tile where it makes so many programs for each
    #: multiprocessor. Accesses of 128 bits are worth a copy of the code from so many bytes on.
    bytes_of_small_call: int = 2 << 20
    most_idle_of_small_call: int = 8
    programs_of_shared_shape: int = 2
    bytes_for_wide_accesses: int = 2 << 20
    #: Of a graph, so many kernels that move so many bytes at least are measured, where that is asked for. Another shape than
    #: the one chosen by sizes has to be better by this part.
    most_tuned_kernels: int = 24
    bytes_worth_tuning: int = 4 << 20
    clearly_better: float = 0.03
    most_elements_a_thread: int = 32
    #: Programs for each multiprocessor below which tiles have fewer rows.
    tiles_per_multiprocessor: int = 4
    costs: CostModel = GPU_COSTS


#: What is decided for any machine.
CPU, CUDA = CpuTarget(), CudaTarget()


def costs_on(device: torch.device) -> CostModel:
    """The costs on a device."""
    return CPU.costs if device.type == "cpu" else CUDA.costs
