"""What computing, storing and loading cost, as far as lowering, gradients and the schedule decide by it.

Costs of values are in additions an element (`OPERATION_COSTS` in `target.py` has those of other operations). A number
was found with `quickfuse bench operators` and `models` on two cores of an AMD EPYC (AVX-512, 1 MB of second-level cache
a core) with PyTorch 2.13, and held on a 16-core Xeon with PyTorch 2.11, unless something else is said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class CostModel:
    """Numbers by which it is decided what is stored, computed again, fused, or called."""

    # --- what is stored before it is used: values of at least this cost ---

    #: Before it is read at another index, so that chains of transposed or broadcast uses do not multiply it.
    store_before_reindexing: int = 64
    #: Before it is broadcast to so many times its size.
    store_before_broadcasting: int = 8
    broadcast_factor: int = 8
    #: Before it becomes a part of a tensor, which may be read several times.
    store_before_joining: int = 64
    #: Before it is loaded from at computed indices.
    store_before_picking: int = 8
    #: Before windows read it: each element is in several of them, or in one.
    store_before_windows: int = 2
    store_before_tiles: int = 32
    #: Before its elements are used several times by a resizing.
    store_before_upsampling: int = 2

    # --- memory traffic (models with residual connections: GPT, ViT, DenseNet-121; chains of 20 softmaxes) ---

    #: What passing through memory once costs an element, in additions: a store, or a load in a later kernel. What an earlier
    #: pass of the same kernel has loaded comes from the cache, which costs a part of it.
    memory_access: int = 20
    cached_part: int = 8
    #: What a load at a computed index costs besides.
    computed_load: int = 4
    #: A value that reads more large temporaries is stored: its readers would be kernels unlike all others.
    most_read: int = 12
    #: The schedule decides about values with several users, and about those that take so many operations.
    longest_kept: int = 32
    #: Values of fewer bytes stay in the cache, and so does what they are made of.
    large_bytes: int = 1 << 16

    # --- parts of tensors ---

    #: A value of more parts is stored before it is used in anything but formulas on single elements.
    most_parts_of_value: int = 4
    #: A tensor of more parts is stored before another part of it is replaced.
    most_parts_of_tensor: int = 32
    #: A concatenation of more parts is stored at once.
    most_joined: int = 32
    #: No index space is cut into more parts; then each element makes its choices.
    most_parts_of_space: int = 64
    #: Smaller concatenations that begin as others do are as well copied.
    least_shared_concatenation: int = 1 << 16

    # --- reductions in two stages ---

    #: A reduction of at least so many elements to fewer rows than there may be threads is done in two stages.
    long_reduction: int = 1 << 18
    few_rows: int = 16
    columns_a_row: int = 64
    #: The number of parts is between these, and an axis cut up without a remainder, or else it is about the third.
    most_parts: int = 64
    least_parts: int = 8
    parts: int = 32
    #: A part should have so many elements.
    least_part: int = 1 << 15
    #: There are no more parts than make so many units of work of all rows; 0 where that is no matter.
    most_units: int = 0

    #: Fewer neighbours in memory than this are better reduced as parts of longer rows: each has a sum of its own, and these
    #: are added up. Group norm of images with channels last, 2 to 64 channels in a group.
    short_run: int = 64

    # --- loops or calls ---

    #: `isin` compares with each of so many elements; with more, PyTorch's way by sorting is faster.
    few_compared: int = 32
    #: In longer rows PyTorch searches: each turn is one more load that waits for the one before.
    longest_searched: int = 1 << 12
    #: A value of a class that costs so much is not computed once more for the target alone (cross entropy).
    compute_once_more: int = 200
    #: Windows of pooling of at most so many elements are written out.
    most_window_elements: int = 32
    #: On a GPU the gradient of a maximum looks at all windows that an element is in, if these are at most so many.
    most_gathered: int = 9
    #: From so many elements on, where the neighbours of a column are is computed once for all rows of a resizing.
    many_neighbours: int = 1 << 14

    # --- products and convolutions (oneDNN and BLAS; DenseNet-121, GPT, LSTM of cells) ---

    #: With more multiplications a product is worth the longer way to oneDNN, and the memory that it takes on the way; and
    #: with more than the second one with an activation after it, or where BLAS is slow (AMD EPYC with MKL: twice the time
    #: from 64 x 256 x 256 on).
    most_for_blas: int = 1 << 25
    most_before_activation: int = 1 << 21
    #: With at most so many a kernel of ours takes less than a call of BLAS (one core of a Xeon with AVX-512: 0.35 us for 3.8
    #: with 16 x 10 x 32 and a bias, 4.9 for 8.6 with 64 x 64 x 64). Eight rows, 16 columns and a depth of 8 count at least.
    most_for_own_product: int = 1 << 18
    #: One of at most so many elements with a vector is a loop: two vectors, or a matrix of 64 x 64 and one.
    most_for_product_in_loop: int = 1 << 12
    #: With at most so many it takes a third of a microsecond, less than to put the operands of several next to each other.
    most_for_tiny_product: int = 1 << 14
    #: A product that sums over so many rows is large enough not to be put together with others, and so is one that has as
    #: many as the second. No product of more than the third gains by it.
    enough_summed: int = 256
    enough_rows: int = 32
    most_rows: int = 64
    #: From so many elements on it matters in which order a convolution's weight lies.
    large_weight: int = 4096
    #: Kernels of one channel each that have more elements along an axis, and so many channels: the gradient of their weight
    #: is a loop (5 by 5 in MobileNetV3, 7 by 7 in ConvNeXt, 16 to 960 channels: 1.3 to 12 times as fast).
    small_kernel: int = 3
    least_depthwise: int = 8
    #: So many times larger than the images a weight must be for these to keep their layout.
    heavy_weight: int = 1

    # --- kernels ---

    #: So many kernels that differ by constants alone become one, if no more constants than the second differ (15 ms to
    #: compile each, on a GPU up to a second; an argument is a load before the loop).
    least_alike: int = 8
    most_constants_given: int = 16

    #: Rows of matrices should begin at multiples of so many bytes, 0 where that is no matter. How fast products of large
    #: matrices are otherwise, and if they do, in operations a microsecond; and copies, in bytes a microsecond; and what a
    #: launch takes, in microseconds. bfloat16, GPT's output layer with a vocabulary of 50257 and of 50264 on an H200.
    aligned_bytes: int = 0
    unaligned_operations: float = 1.4e8
    aligned_operations: float = 6.5e8
    copied_bytes: float = 4e6
    launch_time: float = 3.0

    #: Products with results of so many bytes, which only loops and other products read, are computed in as few chunks of
    #: rows as have at most so many bytes, and in no more than so many; 0 where none is. They are chosen for memory: 200 MB
    #: in place of 1.6 GB of GPT's training step.
    least_chunked: int = 0
    chunk: int = 1 << 27
    most_chunks: int = 32

    #: Products with results of so many bytes (0: none) leave their bias to the loops that read them (`lower/biases.py`).
    least_product_without_bias: int = 0

    #: Temporaries of at least so many bytes (0: none) are computed twice rather than kept, where those of a program take so
    #: much together, if that moves at most so many times their bytes. Operands so many times smaller may as well be kept.
    #: GELU of GPT-2's training step: 0.6 of 5 GB for 1% of the time.
    least_rematerialised: int = 0
    much_memory: int = 1 << 30
    rematerialised_traffic: float = 2.1
    smaller_operand: int = 64

    # --- gradients ---

    #: How many exponentials and the like may be computed again in backward for one value that is not kept.
    most_slow_again: int = 2
    #: Of rows of so many elements, two numbers for each may be kept in place of the elements. Where the scores are an input,
    #: a copy of them is kept, too: cross entropy of 1,000 to 5,000 classes takes 4 to 13% longer so on one AMD core, of
    #: 10,000 to 32,000 up to 3% less. Of scores that forward computes, all take 2 to 10% less.
    least_row_of_statistics: int = 256
    least_row_of_copied_scores: int = 8192
    #: How many large values, each made of the one before, may be computed again in a row; 0: any number.
    most_again_in_row: int = 0
    #: Larger constants, and those that take more operators, are not computed while compiling.
    most_constant_elements: int = 4096
    most_constant_nodes: int = 64

    # --- values that do not depend on all axes ---

    #: Loops of fewer elements are done before a launch more would pay.
    least_hoisted_from: int = 1 << 14
    #: So many times a part must be computed for each of its values, and so much it must cost, to be computed before.
    least_repeats: int = 16
    least_hoisted_repeats: int = 16
    least_hoisted_cost: int = 4

    #: Kernels that go along neighbours in memory in order, such as scans and scatters, handle one element at a time. Values
    #: of at least this cost are computed by vectors in other kernels, where there are so many elements.
    most_one_by_one: int = 12
    least_elements_one_by_one: int = 1 << 11

    # --- chains of reductions (20 softmaxes, layer norms of softmaxes) ---

    #: So many of the passes that are still to come count: after these there may be a better point.
    passes_ahead: int = 4
    #: The last pass of a kernel stores something, and its memory is used before to keep one slow value, of the second cost
    #: or more. So one is not stored of its own where no more passes are to come than the first.
    passes_kept: int = 2
    slow: int = 10
    #: What rounding to 16 bits costs.
    of_half: int = 4

    # --- fusion ---

    #: A formula of more operations in a row is cut: LLVM translates 1,280 in 0.33 s, 5,000 in 2.1 s.
    longest_formula: int = 1000
    #: As so many operations count a reduction that it reads, and any other element: LLVM translates a kernel of 40
    #: reductions in 0.1 s, one of 640 in 5 s. Triton takes 1.3 s for 32 operands, in tiles, and 7 s for 64.
    of_reduction: int = 30
    of_load: int = 0

    #: Groups are only merged for the sake of common loads as long as a loop has no more than so many stores, and one is
    #: tried with no more than so many others that load the same elements.
    most_fused_stores: int = 32
    most_tried: int = 4
    #: Unlike loops are only put into one kernel as long as it has no more than so many operands.
    most_operands: int = 32
    #: Groups are only fused as long as the kernel has no more than so many operands; 0 for no limit. Where results of a long
    #: recurrence share its formula, the pass of Triton that chooses layouts takes 2 s for 33 operands, 15 s for 68, and
    #: minutes for 130. The largest kernel of nine models has 42.
    most_fused_operands: int = 0
    #: Elementwise work is only put into a kernel with reductions where its rows are enough to keep all threads busy, or
    #: where one thread is enough.
    busy_rows: int = 16
    one_thread: int = 1 << 16
    #: Operands that die with a group must be so many times smaller than its results for it to wait for its users.
    smaller_operands: int = 4

    def padding_pays(self, operations: int, moved: int, launches: int) -> bool:
        """Whether a product of unaligned rows takes longer than one of aligned rows, with so many bytes moved before."""
        saved = operations / self.unaligned_operations - operations / self.aligned_operations
        return saved > moved / self.copied_bytes + launches * self.launch_time


COSTS = CostModel()

#: On a GPU, a reduction has enough programs for all multiprocessors (132 on an H200, a few on each), of 64 columns or a row.
#: What is the same for columns is only computed before where that is a small part of the work: it may be a launch more.
GPU_COSTS = replace(
    COSTS, few_rows=256, least_parts=2, most_parts=1024, parts=256, least_part=1 << 12, most_units=1056,
    aligned_bytes=16, least_chunked=1 << 28, least_product_without_bias=1 << 20, least_rematerialised=1 << 23,
    most_again_in_row=2, least_alike=2, of_load=30, least_hoisted_repeats=256, least_row_of_copied_scores=256,
    most_fused_operands=48,
)  # fmt: skip
