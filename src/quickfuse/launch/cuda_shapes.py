"""How the work of a kernel on a GPU is shared by its programs: blocks of elements, or tiles of rows, and the table that says
which program has which."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from quickfuse.errors import QuickfuseError
from quickfuse.ir.expr import PICK
from quickfuse.ir.kernel import Access, Axis, Form, KernelBody, KernelCall, Member, Op, Reduced, StoreKind, walk
from quickfuse.ir.target import CUDA

from .cuda_compile import LaunchShape

_INT32_MAX = 2**31 - 1
#: The limit of a grid's second dimension.
_MOST_GRID_ROWS = 65535


def launch_shape(call: KernelCall) -> LaunchShape:
    """How a call is launched on its device."""
    return choose(call.body, call.members, multiprocessors_of(call))


def multiprocessors_of(call: KernelCall) -> int:
    """How many multiprocessors the device has that a call is on."""
    torch.cuda.init()
    count: int = torch.cuda.get_device_properties(device_index(call)).multi_processor_count
    return count


def device_index(call: KernelCall) -> int:
    """The number of the device that a call is on."""
    return torch.cuda.current_device() if call.device.index is None else call.device.index


def choose(body: KernelBody, members: Sequence[Member], multiprocessors: int) -> LaunchShape:
    """How a kernel for these members is launched."""
    if body.tiled:
        return choose_tile(body, members, multiprocessors)
    shape = choose_shape(body, [member.numel for member in members], multiprocessors)
    return _rows_of_elements(body, members, shape) if body.ndim > 1 else shape


def choose_shape(body: KernelBody, sizes: list[int], multiprocessors: int) -> LaunchShape:
    """Block size and warps for members of these numbers of elements."""
    if body.ndim == 0:
        return LaunchShape(*CUDA.block_of_members)
    total, longest = sum(sizes), max(sizes, default=0)
    moving = body.moving
    light = sum(slot.dtype.itemsize * len(slot.access) for slot in moving) <= CUDA.light_element and _picks(body) < 2
    for block, warps in (*(CUDA.blocks_of_light if light else ()), *CUDA.blocks):
        if total >= block * multiprocessors * CUDA.programs_per_multiprocessor and longest > block // 2:
            return LaunchShape(block, max(warps, block // (32 * _elements_a_thread(body))))
    return LaunchShape(*CUDA.least_block)


def _picks(body: KernelBody) -> int:
    """How many loads at computed indices there are."""
    nodes = walk(*(root for store in body.stores for root in store.roots))
    return sum(isinstance(node, Op) and node.name == PICK for node in nodes)


def _elements_a_thread(body: KernelBody) -> int:
    """How many elements of a tile each thread has. Threads store at most 128 bits at a time, and load as many of the
    narrowest type: where these are not the same elements, values would go from thread to thread through shared memory. Of
    16-bit types alone, each thread has two such loads, if there are registers for them: one is too little under way."""
    slots = body.moving
    stored = max([slot.dtype.itemsize for slot in slots if "w" in slot.access], default=0)
    if any(slot.dtype.itemsize < stored for slot in slots):
        return min(16 // stored, CUDA.elements_a_thread)
    is_narrow = 0 < len(slots) <= CUDA.few_operands and body.is_narrow
    return 2 * CUDA.elements_a_thread if is_narrow else CUDA.elements_a_thread


def _rows_of_elements(body: KernelBody, members: Sequence[Member], shape: LaunchShape) -> LaunchShape:
    """Tiles for a body of several axes without reductions, so that no element needs a division for its index, and what is
    the same for a row is computed once for it; or `shape`, where rows are short."""
    sizes = [size for member in members if math.prod(size := _rows_and_length(body, member))]
    if not sizes or max(length for _, length in sizes) < CUDA.least_long_row:
        return shape

    def elements(columns: int) -> int:
        return sum(rows * -(-length // columns) * columns for rows, length in sizes)

    widths = [width for k in range(shape.block.bit_length()) if (width := shape.block >> k) >= min(32, shape.block)]
    least = min(map(elements, widths))
    columns = next(width for width in widths if 8 * elements(width) <= 9 * least)
    if 4 * elements(columns) > 5 * sum(rows * length for rows, length in sizes):
        return shape
    block, access = shape.block // columns, _access(body, members, Form.SPREAD, columns)
    # To find where shifted rows begin takes long: each thread has more of their elements.
    least = max(shape.block // (32 * 2 * CUDA.elements_a_thread), 1)
    warps = min(shape.num_warps, least) if access is Access.SHIFTED else shape.num_warps
    return LaunchShape(block, warps, columns, Form.SPREAD, access)


# --- tiles ---


def choose_tile(body: KernelBody, members: Sequence[Member], multiprocessors: int) -> LaunchShape:
    """The form of a body with rows, and its tile, for members of some sizes."""
    sizes = [_rows_and_length(body, member) for member in members]
    total, longest = sum(rows for rows, _ in sizes), max([length for _, length in sizes], default=1)
    columns = _power_of_two(longest)
    many = len(body.slots) > CUDA.many_operands
    scans = any(store.kind is StoreKind.SCAN for store in body.stores)
    if not body.inner:
        moving = body.moving
        each = CUDA.elements_of_square if len(moving) <= CUDA.few_operands else CUDA.elements_a_thread
        # Of 16 bits, as many bytes in a row of a tile as of 32, and as many in each thread.
        high = 2 if len(moving) <= 2 and body.is_narrow else 1
        rows, columns = (
            min(square, _power_of_two(max(n[k] for n in sizes))) for k, square in ((0, high * CUDA.square), (1, CUDA.square))
        )
        each *= high if rows * columns > CUDA.square**2 else 1
        warps = max(rows * columns // (32 * each), 1)
        access = _access(body, members, Form.SPREAD, columns)
        return LaunchShape(rows, min(warps, CUDA.most_warps), columns, Form.SPREAD, access)
    spread = Axis.SCAN in body.axes and not scans
    whole = not spread and columns <= (CUDA.whole_row_of_many if many else CUDA.whole_row)
    most_rows = max([_tile_rows(body, member, Form.WHOLE) for member in members], default=1)
    if body.lies_across:
        rows = min(CUDA.most_across, _power_of_two(most_rows))
        tile = CUDA.tile_across[body.is_narrow]
        whole = whole and columns * rows <= tile
        columns = columns if whole else min(columns, max(tile // rows, 1))
        least = CUDA.least_across
    else:
        few = total < multiprocessors * CUDA.tiles_per_multiprocessor  # each of them has to have more loads under way
        wide = max(_elements_of_rows(body) // CUDA.elements_a_thread, 1)
        columns = columns if whole else min(columns, CUDA.tile * max(wide, 2 if few else 1))
        tile = min(CUDA.tile, 32 * CUDA.usual_warps * _elements_of_rows(body))
        rows = min(max(tile // columns, 1), _power_of_two(most_rows))
        tile, least = CUDA.tile, 1
    programs = multiprocessors * CUDA.tiles_per_multiprocessor
    tiles_a_row = -(-longest // columns) if spread else 1
    while rows > least and -(-total // rows) * tiles_a_row < programs:
        rows //= 2
        if not whole and rows * columns < tile and columns < longest:
            columns *= 2
    is_odd = not _may_align(body, members, Form.WHOLE) and _may_shift(body, members)
    if whole and is_odd and columns > CUDA.longest_narrow_row:
        whole, columns = False, CUDA.shifted_tile
    idle = whole and total >= programs and not body.lies_across and _is_idle(body, longest, columns)
    if idle:
        whole, rows, columns = False, 1, CUDA.tile_of_unfilled_rows
    form = Form.SPREAD if spread else Form.WHOLE if whole else Form.LOOPED
    single = body.lies_across and _suits_single_warps(body, -(-total // rows) / multiprocessors, longest // columns)
    if body.lies_across and not single and not whole:  # few programs have to have more loads under way
        columns = min(max(CUDA.tile // rows, 1), _power_of_two(longest))
    access = _access(body, members, form, columns)
    if form is Form.LOOPED and access is Access.SHIFTED and not _reads_twice(body):
        columns = min(columns, 2 * CUDA.shifted_tile)  # rows that are stored are read twice: there fewer should be under way
    each = CUDA.elements_a_thread if idle else _elements_of_rows(body)
    if form is Form.WHOLE and access in (Access.FULL, Access.WIDE) and not body.lies_across and total >= programs:
        together, each = _of_one_operand(body, columns, each)
        rows = max(rows, min(together, _power_of_two(most_rows), total // programs))
    warps = 1 if single else _warps_of_rows(body, rows * columns, each, form, access)
    # Each thread has an element of its own: what several threads load, one of them might have stored before.
    rows = max(rows, 32 // columns)
    return LaunchShape(rows, warps, columns, form, access)


def _suits_single_warps(body: KernelBody, programs: float, tiles: int) -> bool:
    """Whether programs of one warp are best, with so many for each multiprocessor, which go through so many tiles: on long
    ways there have to be enough loads under way."""
    return programs >= 1 and (tiles < CUDA.many_tiles or programs * len(body.moving) >= CUDA.programs_per_multiprocessor)


def _is_idle(body: KernelBody, longest: int, columns: int) -> bool:
    """Whether too much of a tile of long rows would have no elements."""
    return columns > CUDA.longest_narrow_row and 4 * longest <= 3 * columns and (body.is_narrow or len(body.moving) == 2)


def _of_one_operand(body: KernelBody, columns: int, each: int) -> tuple[int, int]:
    """How many whole rows of one operand a program has at least, with vectors that rows share, such as weights, and how many
    of their elements each thread. More elements are less to be done once for each thread, and vectors are loaded once for
    several rows, as long as there are registers for them; of two operands there are not."""
    rows = [slot for slot in body.moving if any(slot.strides[axis] != 0 for axis in body.row_axes)]
    read, stored = (sum(how in slot.access for slot in rows) for how in "rw")
    if body.is_narrow and stored <= 1 and (read == 1 or not stored and read == 2):
        shared = len(body.moving) > len(rows)
        return 2 if stored and (shared or columns <= CUDA.longest_narrow_row) else 1, CUDA.most_elements_a_thread
    if len(rows) == len(body.moving) == 1 and not stored:
        return 1, CUDA.most_elements_a_thread
    if read == stored == 1 and columns > CUDA.longest_narrow_row and each > CUDA.elements_a_thread:
        return 1 if len(body.moving) == 2 else 2, CUDA.most_elements_a_thread
    return 1, each


def _warps_of_rows(body: KernelBody, elements: int, each: int, form: Form, access: Access) -> int:
    """The warps of a program with rows that are reduced, of which each thread has so many elements."""
    moving = body.moving
    reads = not any("w" in slot.access for slot in moving)
    if form is Form.LOOPED and access is Access.SHIFTED and _reads_twice(body) and not body.is_narrow:
        return min(max(elements // (32 * 4), 1), CUDA.most_warps_of_shifted)
    if form is Form.LOOPED and (access is Access.SHIFTED or (reads and len(moving) > 1 and elements >= 2 * CUDA.tile)):
        each = CUDA.elements_a_thread  # more threads have more loads under way, where each has several operands or passes
    return min(max(elements // (32 * each), 1), CUDA.most_warps)


def _reads_twice(body: KernelBody) -> bool:
    """Whether elements are stored that depend on what rows are reduced to."""
    stores = [store for store in body.stores if store.slot >= 0 and body.slots[store.slot] in body.moving]
    return any(isinstance(node, Reduced) for store in stores for node in walk(*store.roots))


def _elements_of_rows(body: KernelBody) -> int:
    """How many elements each thread has of rows that are reduced: as many of 32 bits as of 16, where operands are few. What
    a thread does once for its rows, to find them and to reduce with the others, is some 200 instructions."""
    slots, each = body.moving, _elements_a_thread(body)
    is_light = len(slots) <= CUDA.few_operands and all(slot.dtype.itemsize <= 4 for slot in slots)
    return 2 * CUDA.elements_a_thread if is_light and each == CUDA.elements_a_thread and not body.ordered else each


def _rows_and_length(body: KernelBody, member: Member) -> tuple[int, int]:
    rows, columns = ([member.sizes[axis] for axis in axes] for axes in (body.row_axes, body.column_axes))
    return math.prod(rows), math.prod(columns)


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def _access(body: KernelBody, members: Sequence[Member], form: Form, columns: int) -> Access:
    """Which accesses there is code for, in tiles of so many columns."""
    if _may_align(body, members, form):
        full = form is not Form.SPREAD and bool(body.inner) and has_full_tiles(body, members, columns)
        return Access.FULL if full else Access.WIDE
    return Access.SHIFTED if form is not Form.WHOLE and _may_shift(body, members) else Access.NARROW


def has_full_tiles(body: KernelBody, members: Sequence[Member], columns: int) -> bool:
    """Whether no tile of so many columns goes beyond the end of a row."""
    return all(_rows_and_length(body, member)[1] % columns == 0 for member in members)


def _may_shift(body: KernelBody, members: Sequence[Member]) -> bool:
    """Whether all operands with rows of a member may have as many elements before an address that is aligned."""
    slots = body.shifted_slots

    def differ(member: Member, k: int) -> bool:
        first, strides, count = member.strides[slots[0]], member.strides[k], 16 // body.slots[k].dtype.itemsize
        offsets = member.offsets or (0,) * len(body.slots)
        apart = [offsets[k] - offsets[slots[0]], *(strides[axis] - first[axis] for axis in body.row_axes)]
        return any(count_of % count for count_of in apart)

    return bool(slots) and any(not any(differ(member, k) for k in slots[1:]) for member in members)


def _may_align(body: KernelBody, members: Sequence[Member], form: Form) -> bool:
    """Whether all that must be a multiple of something for wide accesses is one for some member, but for addresses."""
    words = set(body.aligned_words(form))
    if not words:
        return False
    for member in members:
        held = dict(enumerate(member.sizes))
        offsets = member.offsets or (0,) * len(body.slots)
        for k, (slot, strides, offset) in enumerate(zip(body.slots, member.strides, offsets, strict=True)):
            if slot.by_value:
                continue
            held[body.slot_word(k)] = offset * slot.dtype.itemsize
            dynamic = [axis for axis, known in enumerate(slot.strides) if known is None]
            held.update((body.stride_word(k, axis), strides[axis]) for axis in dynamic)
        if all(held[word] % body.multiple_of(word) == 0 for word in words):
            return True
    return False


# --- programs ---


def longest_row(body: KernelBody, members: Sequence[Member]) -> int:
    """The elements of the longest row."""
    return max([_rows_and_length(body, member)[1] for member in members], default=0)


def covered_elements(body: KernelBody, members: Sequence[Member], shape: LaunchShape) -> int:
    """How many elements all tiles or blocks of a call have, with those that no member has."""
    if not shape.columns:
        return shape.block * program_count(body, members, shape)
    tiles = 0
    for member, count in zip(members, _programs_of_members(body, members, shape), strict=True):
        length = _rows_and_length(body, member)[1]
        tiles += count * (-(-length // shape.columns) if shape.form is Form.LOOPED else 1)
    return tiles * shape.block * shape.columns


def program_count(body: KernelBody, members: Sequence[Member], shape: LaunchShape) -> int:
    """How many programs a call has."""
    return sum(_programs_of_members(body, members, shape))


def program_grid(body: KernelBody, members: Sequence[Member], shape: LaunchShape) -> tuple[int, int] | None:
    """How many programs each member has, and how many members there are, where a grid of both says all that the table of
    programs would; None where members have different numbers of programs, or there are too many."""
    counts = set(_programs_of_members(body, members, shape))
    fits = len(counts) == 1 and len(members) <= _MOST_GRID_ROWS and max(counts) <= _INT32_MAX
    return (counts.pop(), len(members)) if fits else None


def program_table(body: KernelBody, members: Sequence[Member], shape: LaunchShape) -> npt.NDArray[np.int32]:
    """One row for each program: its member, and which of the member's blocks or tiles it handles."""
    if not shape.columns:
        return block_table([member.numel for member in members], shape.block)
    return block_table(_programs_of_members(body, members, shape), 1)


def _programs_of_members(body: KernelBody, members: Sequence[Member], shape: LaunchShape) -> list[int]:
    if not shape.columns:
        return [-(-member.numel // shape.block) for member in members]
    sizes = [_rows_and_length(body, member) for member in members]
    counts = [
        _outer_rows(body, member, shape.form) * -(-_tile_rows(body, member, shape.form) // shape.block) * bool(length)
        for member, (_, length) in zip(members, sizes, strict=True)
    ]
    if shape.form is Form.SPREAD:
        shifted = body.shifted_slots if shape.access is Access.SHIFTED else []
        more = 16 // body.slots[shifted[0]].dtype.itemsize - 1 if shifted else 0  # before the first one
        counts = [count * -(-(length + more) // shape.columns) for count, (_, length) in zip(counts, sizes, strict=True)]
    return counts


def _outer_rows(body: KernelBody, member: Member, form: Form) -> int:
    return math.prod(member.sizes[axis] for axis in body.outer_axes(form))


def _tile_rows(body: KernelBody, member: Member, form: Form) -> int:
    """How many rows follow each other in tiles."""
    return math.prod(member.sizes[axis] for axis in body.row_axes[len(body.outer_axes(form)) :])


def block_table(sizes: list[int], block: int) -> npt.NDArray[np.int32]:
    """One row for each program: its member, and which of the member's blocks it handles."""
    counts = -(-np.asarray(sizes, dtype=np.int64) // block)
    members = np.repeat(np.arange(len(sizes)), counts)
    first = np.cumsum(counts) - counts
    within = np.arange(len(members)) - first[members]
    if within.size and int(within.max()) > _INT32_MAX:
        raise QuickfuseError("a tensor has too many elements for one kernel launch")
    return np.stack([members, within], axis=1).astype(np.int32)


def needs_wide_index(body: KernelBody, members: Sequence[Member], block: int) -> bool:
    """Whether a position or an offset within some member does not fit 32 bits."""
    limit = _INT32_MAX - block
    return any(member.numel > limit or _largest_offset(body, member) > limit for member in members)


def _largest_offset(body: KernelBody, member: Member) -> int:
    """The distance of a slot's farthest element from its address, in elements; the largest of all slots."""
    return max(
        sum((size - 1) * abs(stride) for size, stride in zip(member.sizes, strides, strict=True))
        for slot, strides in zip(body.slots, member.strides, strict=True)
        if not slot.by_value
    )
