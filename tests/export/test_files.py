"""Files of exported programs: what is in them, programs that come back, and files that are wrong in one way."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from export.files import ARGUMENTS, Model, parts_of, write, x
from quickfuse import errors


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("files") / "model.qfx"
    quickfuse.export(Model(), ARGUMENTS).save(path)
    return path.read_bytes()


# what is in a file ----------------------------------------------------------------------------------------------


def test_a_file_is_json_and_safetensors(program: bytes, tmp_path: Path) -> None:
    from safetensors.torch import load

    parts = parts_of(program, tmp_path)
    assert {*parts} == {"program.json", "weights.safetensors", "checksums.json"}
    text = json.loads(parts["program.json"])
    assert text["schema"] == 1 and text["made_with"]["torch"] == torch.__version__
    assert "aten::linear" in [node.get("target") for node in text["graph"]["nodes"]]
    weights = load(parts["weights.safetensors"])
    torch.testing.assert_close(weights["one.weight"].shape, (4, 4))
    assert sum("table" in name or "rows" in name for name in weights) == 1  # which share memory
    assert text["state"]["rows"]["data"] == text["state"]["table"]["data"]


def test_what_shared_memory_shares_it_again(program: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.qfx").write_bytes(program)
    module = quickfuse.load(tmp_path / "model.qfx").module()
    table, rows = module.tensor("table"), module.tensor("rows")
    assert table.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
    assert rows.storage_offset() == 4


def test_tensors_of_any_kind_and_layout(tmp_path: Path) -> None:
    tensors = [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(6, 4).t()[1:3], torch.tensor(3),
        torch.zeros(0, 3), torch.tensor([True, False]), torch.randn(3).bfloat16(), torch.randn(3, dtype=torch.complex64),
        torch.randn(2).expand(3, 2), torch.arange(10)[::3], torch.tensor(2.5, dtype=torch.float16),
    ]  # fmt: skip
    exported = quickfuse.export(lambda: [t * 1 for t in tensors])
    exported.save(tmp_path / "t.qfx")
    loaded = quickfuse.load(tmp_path / "t.qfx")
    for ours, tensor in zip(loaded.module()(), tensors, strict=True):
        torch.testing.assert_close(ours, tensor * 1, rtol=0, atol=0)
    for name, tensor in exported.state_dict.items():
        again = loaded.state_dict[name]
        assert (again.dtype, again.shape, again.stride()) == (tensor.dtype, tensor.shape, tensor.stride())


def test_a_saved_program_says_the_same(program: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.qfx").write_bytes(program)
    torch.manual_seed(0)
    exported, loaded = quickfuse.export(Model(), ARGUMENTS), quickfuse.load(tmp_path / "model.qfx")
    assert str(exported) == str(loaded)
    assert exported.assumptions == loaded.assumptions
    assert exported.graph_signature == loaded.graph_signature
    loaded.save(tmp_path / "again.qfx")
    assert parts_of((tmp_path / "again.qfx").read_bytes(), tmp_path) == parts_of(program, tmp_path)
    with pytest.raises(errors.ExportedCallError, match="options\\['kind'\\] is 'sum' in the exported program, got 'max'"):
        loaded.module()(x, 2.0, {"kind": "max", "unused": None})


@pytest.mark.usefixtures("forked_interpreters")
def test_a_fresh_process_needs_no_source(tmp_path: Path) -> None:
    """The model is defined in a file that is gone when another process loads the program."""
    (tmp_path / "library.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.w = nn.Linear(4, 2)\n"
        "    def forward(self, x):\n        return torch.tanh(self.w(x))\n"
    )
    make = ("import sys; sys.path.insert(0, '.')\nimport torch, quickfuse, library\ntorch.manual_seed(0)\n"
            "net = library.Net()\nx = torch.ones(3, 4)\nquickfuse.export(net, (x,)).save('net.qfx')\n"
            "print(net(x).tolist())")  # fmt: skip
    use = ("import sys, torch, quickfuse\nmodule = quickfuse.load('net.qfx').module()\nresult = module(torch.ones(3, 4))\n"
           "result.sum().backward()\nassert module.get_parameter('w.weight').grad is not None\n"
           "assert 'library' not in sys.modules and 'torch._dynamo' not in sys.modules\nprint(result.tolist())")  # fmt: skip
    source = str(Path(quickfuse.__file__).parents[1])
    said = []
    for code in (make, use):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
            env={"PYTHONPATH": source, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        (tmp_path / "library.py").unlink(missing_ok=True)
    assert said[0] == said[1]


def test_operators_of_a_library_are_asked_for(tmp_path: Path) -> None:
    with torch.library._scoped_library("quickfuse_export_test", "DEF") as library:
        library.define("triple(Tensor x) -> Tensor")
        library.impl("triple", lambda x: x * 3, "CompositeExplicitAutograd")
        triple = torch.ops.quickfuse_export_test.triple.default
        exported = quickfuse.export(lambda x: triple(x) + 1, (x,))
        exported.save(tmp_path / "p.qfx")
        with pytest.raises(errors.ExportFileError, match="is not of ATen: import the library"):
            quickfuse.load(tmp_path / "p.qfx")
        loaded = quickfuse.load(tmp_path / "p.qfx", namespaces=["quickfuse_export_test"])
        torch.testing.assert_close(loaded.module()(x), x * 3 + 1)
        parts = parts_of((tmp_path / "p.qfx").read_bytes(), tmp_path)
    parts["program.json"] = parts["program.json"].replace(b"quickfuse_export_test::triple", b"quickfuse_no_library::triple")
    with pytest.raises(errors.ExportFileError, match="has no operator .*: import the library that registers it"):
        quickfuse.load(write(tmp_path / "q.qfx", parts), namespaces=["quickfuse_no_library"])


# files that are wrong -------------------------------------------------------------------------------------------


def refused(path: Path, message: str) -> None:
    with pytest.raises(errors.ExportFileError, match=message) as caught:
        quickfuse.load(path)
    assert str(caught.value).startswith(str(path))


def test_files_that_are_no_programs(program: bytes, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        quickfuse.load(tmp_path / "nothing.qfx")
    for content in (b"", b"PK", b"not a zip" * 99, program[: len(program) // 2], program[100:]):
        (tmp_path / "bad.qfx").write_bytes(content)
        refused(tmp_path / "bad.qfx", "no exported program|damaged")


def test_archives_that_are_wrong(program: bytes, tmp_path: Path) -> None:
    parts = parts_of(program, tmp_path)
    refused(write(tmp_path / "a.qfx", {**parts, "../../evil.py": b"import os"}), r"there is '\.\./\.\./evil\.py' in it")
    refused(write(tmp_path / "b.qfx", {"program.json": parts["program.json"]}), "weights.safetensors is missing")
    refused(write(tmp_path / "c.qfx", parts, zipfile.ZIP_DEFLATED), "is compressed")
    with zipfile.ZipFile(tmp_path / "d.qfx", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for name, part in [*parts.items(), ("program.json", b"{}")]:
            archive.writestr(name, part)
    refused(tmp_path / "d.qfx", "an entry is there twice")
    changed = bytearray(program)
    at = program.index(b'"aten::linear"')
    changed[at + 7 : at + 13] = b"matmul"
    (tmp_path / "e.qfx").write_bytes(bytes(changed))
    refused(tmp_path / "e.qfx", "damaged|CRC")
    with zipfile.ZipFile(tmp_path / "f.qfx", "w") as archive:
        for name, part in {**parts, "program.json": parts["program.json"] + b" "}.items():
            archive.writestr(name, part)
    refused(tmp_path / "f.qfx", "program.json is damaged: its checksum is another one")
    assert not (tmp_path.parent / "evil.py").exists()


def edited(program: bytes, folder: Path, edit: Any) -> Path:
    parts = parts_of(program, folder)
    text = json.loads(parts["program.json"])
    edit(text)
    parts["program.json"] = json.dumps(text).encode()
    return write(folder / "edited.qfx", parts)


def node(text: Any, target: str) -> Any:
    return next(n for n in text["graph"]["nodes"] if n.get("target") == target)


def set_target(target: str) -> Any:
    return lambda text: node(text, "aten::linear").update(target=target)


def cyclic(text: Any) -> None:
    node(text, "aten::linear")["args"][0] = {"node": text["graph"]["nodes"][-2]["name"]}


def set_shape(text: Any) -> None:
    node(text, "aten::linear")["value"]["shape"] = [3, 5]


def wrong_operand(text: Any) -> None:
    node(text, "aten::linear")["args"][1] = "weight"


def outside_of_memory(text: Any) -> None:
    text["state"]["one.weight"]["offset"] = 1


def huge(text: Any) -> None:
    for check in text["checks"]:
        if check["kind"] == "tensor":
            check["value"]["shape"] = [1 << 50, 4]


def deep(text: Any) -> None:
    tree: Any = {"returned": "constant", "value": 1}
    for _ in range(100):
        tree = {"container": "list", "name": "", "keys": [], "children": [tree]}
    text["result"] = tree


def renamed(name: str) -> Any:
    def edit(text: Any) -> None:
        state = text["state"]
        state[name] = state.pop("norm.num_batches_tracked")
        for spec in [*text["signature"]["inputs"], *text["signature"]["outputs"]]:
            if spec["target"] == "norm.num_batches_tracked":
                spec["target"] = name

    return edit


EDITS: dict[str, tuple[Any, str]] = {
    "newer": (lambda t: t.update(schema=2, made_with={"quickfuse": "9.0"}), "a newer quickfuse \\(9.0, layout 2\\)"),
    "no schema": (lambda t: t.pop("schema"), "has no 'schema'"),
    "unknown operator": (set_target("aten::frobnicate"), "has no operator aten::frobnicate"),
    "unknown overload": (set_target("aten::add.Nothing"), "has no operator"),
    "python": (set_target("os::system"), "is not of ATen"),
    "no name": (set_target("__import__('os')"), "is no name of an operator"),
    "builtin": (set_target("builtins::eval"), "is not of ATen"),
    "file operator": (set_target("aten::from_file"), "is not for graphs out of files"),
    "in place": (set_target("aten::relu_"), "changes its operands"),
    "no tensors": (set_target("aten::size.int"), "returns no tensors"),
    "cyclic": (cyclic, "the name of a node before this one"),
    "ill-typed": (set_shape, "is float32\\[3, 5\\].* in the file"),
    "wrong operand": (wrong_operand, "linear"),
    "too few operands": (lambda t: node(t, "aten::linear").update(args=[]), "linear"),
    "outside of memory": (outside_of_memory, "lies outside of its memory"),
    "huge": (huge, "a tensor that fits into memory"),
    "deep": (deep, "not so deeply nested"),
    "no output": (lambda t: t["graph"]["nodes"].pop(), "one output, at the end"),
    "no nodes": (lambda t: t["graph"].update(nodes=[]), "a list of nodes"),
    "names of methods": (renamed("norm.forward"), "modules have that attribute"),
    "names of dunders": (renamed("norm.__class__"), "modules have that attribute"),
    "name within a tensor": (renamed("one.weight.x"), "lies within another tensor"),
    "empty names": (renamed("norm..x"), "is no name of a tensor"),
    "unknown memory": (lambda t: t["state"]["one.weight"].update(data="nothing"), "the weights have no tensor 'nothing'"),
    "other dtype": (lambda t: t["state"]["one.weight"].update(dtype="float64"), "float64"),
    "negative strides": (lambda t: t["state"]["one.weight"].update(stride=[-4, 1]), "from 0 to"),
    "code in a name": (lambda t: t["graph"]["nodes"][0].update(name="x=__import__('os')"), "a new name"),
    "keyword as a name": (lambda t: t["graph"]["nodes"][0].update(name="lambda"), "variable|name"),
    "path of no argument": (lambda t: t["signature"]["inputs"][-1].update(target="z"), "the path of an argument"),
    "unknown parameter": (lambda t: t["signature"]["inputs"][0].update(target="z"), "the name of a tensor in the state"),
    "fewer inputs": (lambda t: t["signature"]["inputs"].pop(), "an entry for each input and output"),
    "a list": (lambda t: t.update(graph=[]), "has no 'stacks'|has no"),
    "unknown check": (lambda t: t["checks"][0].update(kind="exec"), "one of tensor"),
    "unknown arithmetic": (
        lambda t: t["conditions"][0].update(expression={"operation": "eval", "operands": []}), "one of add"
    ),
    "fields": (
        lambda t: t["result"].update(container="namedtuple", name="x y", keys=["a b", "c", "d", "e", "f"]), "names of fields"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_programs_that_are_wrong(name: str, program: bytes, tmp_path: Path) -> None:
    edit, message = EDITS[name]
    refused(edited(program, tmp_path, edit), message)


def test_names_that_modules_have_for_themselves(tmp_path: Path) -> None:
    """A tensor in a dictionary under a name that is also a method of modules."""

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache = {"cpu": torch.ones(3), "forward": torch.ones(3)}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.cache["cpu"] + self.cache["forward"]

    exported = quickfuse.export(Cached(), (torch.ones(3),))
    assert exported.graph_signature.constants == ["cache.cpu_", "cache.forward_"]
    exported.save(tmp_path / "m.qfx")
    for one in (exported, quickfuse.load(tmp_path / "m.qfx")):
        torch.testing.assert_close(one.module()(torch.ones(3)), torch.full((3,), 2.0))


def test_parameters_under_such_names() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.__dict__["_modules"]["half"] = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._modules["half"](x)

    with pytest.raises(errors.ExportError, match="half.weight: modules have an attribute of that name"):
        quickfuse.export(Model(), (torch.ones(3),))
