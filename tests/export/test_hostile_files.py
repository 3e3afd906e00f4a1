"""Random changes of valid files: loading one gives a program or the one error, in no long time, and executes nothing.

`make export-long` makes many more of them, and others each time: as many as the environment's MUTATIONS says.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import json
import os
import signal
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import quickfuse
from export.files import ARGUMENTS, Model, parts_of, write, x
from quickfuse import errors

#: `watched` slows down each `id()` of the process from then on.
pytestmark = pytest.mark.last

#: What a call of a program out of a changed file may raise: the errors of its checks, and of PyTorch's operators.
RAISED_BY_CALLS = (
    errors.ExportError, RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, NotImplementedError,
)  # fmt: skip
#: No file of these takes longer, in seconds.
PATIENCE = 60


def _step() -> tuple[Any, tuple[Any, ...]]:
    """A training step: gradients, optimizer state, parameters that are changed."""
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (x, torch.tensor([0, 1, 1]))


def _numbers() -> tuple[Any, tuple[Any, ...]]:
    """Conditions, arithmetic, an input that is changed, numbers that come out of tensors."""

    def program(x: torch.Tensor, n: int, s: float) -> Any:
        x.add_(1)
        made = torch.roll(x, 1, 0) * s if s * 2 > n else x
        return made, s**2 + n, made.sum().item(), torch.tensor([1.0, float("inf")]), (x.shape, None)

    return program, (x.clone(), 2, 3.5)


def _layers() -> tuple[Any, tuple[Any, ...]]:
    """Layers whose operators take lists, indices and several tensors, and return several."""
    embedding, attention, cells = nn.Embedding(9, 4), nn.MultiheadAttention(4, 2, batch_first=True), nn.LSTM(4, 3)
    kernel = nn.Conv2d(1, 2, 3, padding=1)

    def program(tokens: torch.Tensor) -> Any:
        rows = embedding(tokens)
        rows, _ = attention(rows, rows, rows)
        images = functional.max_pool2d(kernel(rows[:, None]), 2).flatten(1)
        made, (last, _) = cells(rows)
        best, places = made.topk(2, -1)
        chosen = best.gather(-1, places), made.where(tokens[..., None] > 3, 0), made[..., [2, 0]]
        return torch.cat([images, rows.mean(1)], 1), chosen, last

    return program, (torch.randint(9, (2, 4)),)


PROGRAMS: dict[str, Any] = {
    "model": lambda: (Model(), ARGUMENTS), "step": _step, "numbers": _numbers, "layers": _layers,
}  # fmt: skip


class Valid(tuple[Any, ...]):
    """A valid file's bytes, and the arguments of its program."""

    def __repr__(self) -> str:
        return "<a valid file>"


@pytest.fixture(scope="module", params=PROGRAMS)
def valid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Valid:
    importlib.import_module("torch._dynamo")  # which some of PyTorch's operators import when they are asked for shapes
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("files") / "program.qfx"
    function, args = PROGRAMS[request.param]()
    quickfuse.export(function, args).save(path)
    quickfuse.load(path).module()(*copy.deepcopy(args))  # whatever is imported by that is imported now
    return Valid((path.read_bytes(), args))


# nothing is executed --------------------------------------------------------------------------------------------

_events: list[tuple[str, Any]] = []
_watching = False
_FORBIDDEN = (
    "exec", "compile", "import", "open", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pickle.", "marshal.",
)  # fmt: skip


def _audit(event: str, args: Any) -> None:
    if _watching and event.startswith(_FORBIDDEN):
        _events.append((event, args))


@functools.cache
def _listen() -> None:
    """From now on, for good: an audit hook cannot be removed."""
    sys.addaudithook(_audit)


@contextlib.contextmanager
def watched(path: Path) -> Iterator[None]:
    """See to it that nothing is executed, imported or opened, but for the file, and that it ends in time."""
    global _watching

    def late(number: int, frame: Any) -> None:
        raise AssertionError(f"it takes longer than {PATIENCE} s")

    _listen()
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    _events.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert [event for event in _events if event[0] != "open" or Path(event[1][0]) != path] == []


def loads_or_refuses(path: Path, args: tuple[Any, ...]) -> bool:
    """Loading gives a program or the one error; a program that loads prints, and runs or raises. Whether it was loaded."""
    with watched(path):
        try:
            loaded = quickfuse.load(path)
        except errors.ExportFileError as error:
            assert str(error).startswith(str(path)) and len(str(error)) < 2000
            return False
    str(loaded)
    with contextlib.suppress(*RAISED_BY_CALLS):
        loaded.module()(*copy.deepcopy(args))
    return True


def test_the_watch_sees_what_is_executed(tmp_path: Path) -> None:
    for act in (lambda: exec("1"), lambda: open(__file__).close(), lambda: compile("1", "", "eval")):
        with pytest.raises(AssertionError), watched(tmp_path):
            act()


def test_a_valid_file_loads(valid: Any, tmp_path: Path) -> None:
    (tmp_path / "m.qfx").write_bytes(valid[0])
    assert loads_or_refuses(tmp_path / "m.qfx", valid[1])


# random changes -------------------------------------------------------------------------------------------------

#: How many changed files there are in all, if that is said; the tests below share them, and JSON gets three shares.
MUTATIONS = int(os.environ.get("MUTATIONS", 0))
SHARE = MUTATIONS // (7 * len(PROGRAMS)) or 40
SETTINGS = hypothesis.settings(
    max_examples=SHARE, deadline=None, derandomize=not MUTATIONS, database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)  # fmt: skip


@SETTINGS
@hypothesis.given(data=st.data())
def test_changed_bytes(data: st.DataObject, valid: Any, tmp_path: Path) -> None:
    changed = bytearray(valid[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "double", "insert"]))
        if kind == "flip":
            changed[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del changed[at : at + data.draw(st.integers(1, 2000))]
        elif kind == "double":
            changed[at:at] = changed[at : at + 50]
        else:
            changed[at:at] = data.draw(st.binary(max_size=20))
        if not changed:
            break
    (tmp_path / "m.qfx").write_bytes(bytes(changed))
    loads_or_refuses(tmp_path / "m.qfx", valid[1])


@SETTINGS
@hypothesis.given(data=st.data())
def test_changed_directory(data: st.DataObject, valid: Any, tmp_path: Path) -> None:
    """The archive's own records: sizes, offsets, names, flags."""
    changed = bytearray(valid[0])
    start = changed.rindex(b"PK\x01\x02", 0, changed.index(b"PK\x05\x06"))
    first = changed.index(b"PK\x01\x02")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(data.draw(st.sampled_from([0, first, start])), len(changed) - 4))
        changed[at : at + 4] = data.draw(st.one_of(st.binary(min_size=4, max_size=4), st.just(b"\xff\xff\xff\x7f")))
    (tmp_path / "m.qfx").write_bytes(bytes(changed))
    loads_or_refuses(tmp_path / "m.qfx", valid[1])


@SETTINGS
@hypothesis.given(data=st.data())
def test_changed_parts(data: st.DataObject, valid: Any, tmp_path: Path) -> None:
    """The checksums are right, so that what they protect is reached."""
    parts = parts_of(valid[0], tmp_path)
    name = data.draw(st.sampled_from(["program.json", "weights.safetensors"]))
    changed = bytearray(parts[name])
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    loads_or_refuses(write(tmp_path / "m.qfx", {**parts, name: bytes(changed)}), valid[1])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that is in some JSON."""
    found: list[tuple[Any, ...]] = []
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        found.append((*path, key))
        if isinstance(inner, (dict, list)):
            found += places(inner, found[-1])
    return found


def _at(text: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        text = text[key]
    return text


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([-1, 0, 1, 2, 1 << 31, 1 << 44, 1 << 63, 10**40]), st.floats(),
    st.text(max_size=8),
    st.sampled_from([
        "aten::add.Tensor", "aten::relu", "aten::unbind.int", "aten::set_", "aten::full", "aten::repeat_interleave.Tensor",
        "aten::nonzero", "number::pow", "tensor::of", "list::item", "prim::Print", "quantized::add", "x", "float64", "bool",
        "cuda:0", "meta", "__class__", "../x", "item", "number", "argument",
    ]),
    st.lists(st.integers(-2, 9), max_size=4), st.just({}), st.builds(lambda n: {"node": n}, st.text(max_size=6)),
    st.recursive(st.integers(0, 3), lambda inner: st.lists(inner, max_size=3), max_leaves=20),
)  # fmt: skip
KINDS = ("replace", "replace", "near", "near", "drop", "copy", "swap", "wrap", "rename", "repeat")


@hypothesis.settings(SETTINGS, max_examples=3 * SHARE)
@hypothesis.given(data=st.data())
def test_changed_json(data: st.DataObject, valid: Any, tmp_path: Path) -> None:
    parts = parts_of(valid[0], tmp_path)
    text = json.loads(parts["program.json"])
    for _ in range(data.draw(st.integers(1, 3))):
        change(data, text)
        if not text:
            break
    parts["program.json"] = json.dumps(text).encode()
    loads_or_refuses(write(tmp_path / "m.qfx", parts), valid[1])


@SETTINGS
@hypothesis.given(data=st.data())
def test_changed_headers_of_weights(data: st.DataObject, valid: Any, tmp_path: Path) -> None:
    """What safetensors says of each tensor: dtype, shape, and where its bytes are."""
    parts = parts_of(valid[0], tmp_path)
    weights = parts["weights.safetensors"]
    (size,) = struct.unpack("<Q", weights[:8])
    header = json.loads(weights[8 : 8 + size])
    for _ in range(data.draw(st.integers(1, 3))):
        if header:
            change(data, header)
    text = json.dumps(header).encode()
    parts["weights.safetensors"] = struct.pack("<Q", len(text)) + text + weights[8 + size :]
    loads_or_refuses(write(tmp_path / "m.qfx", parts), valid[1])


def _near(data: st.DataObject, value: Any, text: Any) -> Any:
    """A value like another one: another name of something, the next number, the same number as another type."""
    if type(value) in (bool, int):
        choices = [value + 1, value - 1, -value, float(value), bool(value), str(value), int(value) << 32, float("nan")]
        return data.draw(st.sampled_from(choices))
    if type(value) is str:
        return data.draw(st.sampled_from([t for path in places(text) if type(t := _at(text, path)) is str]))
    return value[::-1] if type(value) is list else data.draw(JUNK)


def change(data: st.DataObject, text: Any) -> None:
    """Change some JSON in one place."""
    *path, last = data.draw(st.sampled_from(places(text)))
    owner = _at(text, tuple(path))
    kind = data.draw(st.sampled_from(KINDS))
    if kind == "drop":
        del owner[last]
    elif kind == "replace":
        owner[last] = data.draw(JUNK)
    elif kind == "near":
        owner[last] = _near(data, owner[last], text)
    elif kind == "wrap":
        value = owner[last]
        owner[last] = data.draw(st.sampled_from([[value], {"tuple": [value]}, {"node": value}]))
    elif kind == "rename" and isinstance(owner, dict):
        name = data.draw(st.one_of(st.text(max_size=6), st.sampled_from(list(owner))))
        owner[name] = owner.pop(last)
    elif kind == "repeat" and isinstance(owner, list):
        owner.insert(data.draw(st.integers(0, len(owner))), copy.deepcopy(owner[last]))
    else:
        *other, end = data.draw(st.sampled_from(places(text)))
        source = _at(text, tuple(other))
        one, two = owner[last], source[end]
        owner[last] = copy.deepcopy(two)
        if kind == "swap" and (*other, end)[: len(path) + 1] != (*path, last):
            source[end] = copy.deepcopy(one)


# archives that ask for too much ---------------------------------------------------------------------------------


def _with_sizes(data: bytes, name: bytes, size: int) -> bytes:
    """A file whose directory says that an entry has another size."""
    changed = bytearray(data)
    at = changed.rindex(name, 0, changed.index(b"PK\x05\x06")) - 46
    assert changed[at : at + 4] == b"PK\x01\x02"
    changed[at + 20 : at + 28] = struct.pack("<II", size, size)
    return bytes(changed)


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 32) - 2])
@pytest.mark.parametrize("name", [b"program.json", b"weights.safetensors", b"checksums.json"])
def test_sizes_that_are_not_so(name: bytes, size: int, valid: Any, tmp_path: Path) -> None:
    (tmp_path / "m.qfx").write_bytes(_with_sizes(valid[0], name, size))
    assert not loads_or_refuses(tmp_path / "m.qfx", valid[1])


def test_archives_that_unpack_to_more(valid: Any, tmp_path: Path) -> None:
    parts = parts_of(valid[0], tmp_path)
    bomb = {**parts, "program.json": b" " * (1 << 22) + parts["program.json"]}
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path = write(tmp_path / "m.qfx", bomb, method)
        assert path.stat().st_size < 1 << 20 and not loads_or_refuses(path, valid[1])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../program.json", "a/../../b", "program.json/", "C:\\x", "program.json\0.py"]
)
def test_names_that_lead_elsewhere(name: str, valid: Any, tmp_path: Path) -> None:
    parts = parts_of(valid[0], tmp_path)
    assert not loads_or_refuses(write(tmp_path / "m.qfx", {**parts, name: b"import os"}), valid[1])
    moved = {name if part == "weights.safetensors" else part: data for part, data in parts.items()}
    assert not loads_or_refuses(write(tmp_path / "m.qfx", moved), valid[1])


@pytest.mark.parametrize(
    "text",
    [
        b"", b"null", b"[]", b"[" * 200_000, b'{"schema":' * 50_000, b"NaN", b'{"schema": 1e999}', b"9" * 10_000,
        b"\xff\xfe", b"1 2",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_json_that_is_none(text: bytes, valid: Any, tmp_path: Path) -> None:
    parts = parts_of(valid[0], tmp_path)
    assert not loads_or_refuses(write(tmp_path / "m.qfx", {**parts, "program.json": text}), valid[1])


@pytest.mark.parametrize("header", [b"", b"\xff" * 8, struct.pack("<Q", 1 << 40) + b"{}", struct.pack("<Q", 2) + b"{}"])
def test_weights_that_are_none(header: bytes, valid: Any, tmp_path: Path) -> None:
    parts = parts_of(valid[0], tmp_path)
    path = write(tmp_path / "m.qfx", {**parts, "weights.safetensors": header})
    assert not loads_or_refuses(path, valid[1]) or not json.loads(parts["program.json"])["state"]


@pytest.mark.parametrize("sums", [{}, [], {"program.json": "0" * 64}, {"program.json": None, "weights.safetensors": None}])
def test_checksums_that_are_wrong(sums: Any, valid: Any, tmp_path: Path) -> None:
    parts = parts_of(valid[0], tmp_path)
    with zipfile.ZipFile(tmp_path / "m.qfx", "w") as archive:
        for name, part in {**parts, "checksums.json": json.dumps(sums).encode()}.items():
            archive.writestr(name, part)
    assert not loads_or_refuses(tmp_path / "m.qfx", valid[1])


def test_operators_that_would_make_too_much(tmp_path: Path) -> None:
    """What an operator returns is worked out without data."""
    size = 1 << 20
    quickfuse.export(lambda: torch.full([2, 3], 1.0) * 2).save(tmp_path / "v.qfx")
    parts = parts_of((tmp_path / "v.qfx").read_bytes(), tmp_path)
    text = json.loads(parts["program.json"])
    for node in text["graph"]["nodes"]:
        if node["op"] == "call":
            node["value"]["shape"], node["value"]["stride"] = [size, size], [size, 1]
        if node.get("target") == "aten::full":
            node["args"][0] = [size, size]
    parts["program.json"] = json.dumps(text).encode()
    with watched(path := write(tmp_path / "m.qfx", parts)):
        assert quickfuse.load(path)  # a call would get the memory where machines promise more than they have


@pytest.mark.parametrize("operands", [[], [2.0], [2.0, 2.0, 2.0]])
def test_arithmetic_on_another_count_of_numbers(operands: list[float], tmp_path: Path) -> None:
    quickfuse.export(lambda x, s: x * (s + 1), (x, 2.0)).save(tmp_path / "v.qfx")
    parts = parts_of((tmp_path / "v.qfx").read_bytes(), tmp_path)
    text = json.loads(parts["program.json"])
    changed = [node for node in text["graph"]["nodes"] if node.get("target", "").startswith("number::")]
    assert changed
    changed[0]["args"] = operands
    parts["program.json"] = json.dumps(text).encode()
    assert not loads_or_refuses(write(tmp_path / "m.qfx", parts), (x, 2.0))


@pytest.mark.parametrize(
    "operands, options, message",
    [
        ([{"node": "x"}, 2.0, 3], {}, "takes 2 operands by position, and 3 are given"),
        ([{"node": "x"}], {}, "is not given the operand 'other'"),
        ([{"node": "x"}, "2"], {}, "takes no '2' as 'other', which is Tensor"),
        ([{"node": "x"}, 2.0], {"alpha": None}, "takes no None as 'alpha'"),
        ([{"node": "x"}, 2.0], {"other": 2.0}, "the operand 'other' twice"),
        ([{"node": "x"}, 2.0], {"out": {"node": "x"}}, "the operand 'out' twice, or does not take it"),
    ],
)
def test_operands_that_do_not_fit_the_schema(operands: Any, options: Any, message: str, tmp_path: Path) -> None:
    quickfuse.export(lambda x: torch.add(x, 2.0), (x,)).save(tmp_path / "v.qfx")
    parts = parts_of((tmp_path / "v.qfx").read_bytes(), tmp_path)
    text = json.loads(parts["program.json"])
    (call,) = [node for node in text["graph"]["nodes"] if node["op"] == "call"]
    call["args"], call["kwargs"] = operands, options
    parts["program.json"] = json.dumps(text).encode()
    with pytest.raises(errors.ExportFileError, match=message):
        quickfuse.load(write(tmp_path / "m.qfx", parts))


def _parts_of_program(program: Any, args: tuple[Any, ...], tmp_path: Path) -> tuple[dict[str, bytes], Any]:
    quickfuse.export(program, args).save(tmp_path / "v.qfx")
    parts = parts_of((tmp_path / "v.qfx").read_bytes(), tmp_path)
    return parts, json.loads(parts["program.json"])


def _refused(parts: dict[str, bytes], text: Any, tmp_path: Path, message: str) -> None:
    with pytest.raises(errors.ExportFileError, match=message):
        quickfuse.load(write(tmp_path / "m.qfx", {**parts, "program.json": json.dumps(text).encode()}))


def test_numbers_that_are_none(tmp_path: Path) -> None:
    """An expression refers to a tensor of several elements, or takes the contents of a number."""
    parts, text = _parts_of_program(lambda x, s: (x * s, s * 2), (x, 2.0), tmp_path)
    number = text["result"]["children"][1]["value"]["operands"]
    assert number[0] == {"path": "s", "contents": False}
    for wrong in ({"path": "s", "contents": True}, {"path": "x", "contents": True}, {"path": "output 0", "contents": True}):
        number[0] = wrong
        _refused(parts, text, tmp_path, "the path of a number, or that of a tensor of one element")
    text["result"]["children"][1] = {"returned": "item", "value": 0}
    _refused(parts, text, tmp_path, "an output that is a tensor of one element")


def test_sizes_that_are_no_numbers(tmp_path: Path) -> None:
    parts, text = _parts_of_program(lambda x: (x + 1, x.shape), (x,), tmp_path)
    text["result"]["children"][1] = {
        "container": "Size", "keys": [], "name": "", "children": [{"returned": "constant", "value": "3"}],
    }  # fmt: skip
    _refused(parts, text, tmp_path, "where a list of sizes is expected")


def test_gradients_of_integers(tmp_path: Path) -> None:
    parts, text = _parts_of_program(Model().forward, ARGUMENTS, tmp_path)
    next(iter(text["state"].values())).update(dtype="int32", requires_grad=True)
    _refused(parts, text, tmp_path, "a dtype that can need gradients")
