"""Load LLVM IR into this process and call it.

    load             IR -> addresses of its functions
    load_kernels     IR -> kernels, several at a time, that are unloaded when nobody has them any more
    bind             address -> a Python callable
    threads_for      how many threads a launch is worth
    assembly         IR -> the machine code, to read
    host_description what was found on this machine, for `quickfuse doctor`

Kernels come with explicit vectors, so LLVM's middle end has little to do: one pass that folds constants, then code
generation. That takes some 10 ms a kernel, and what was generated once is kept on disk: see `object_cache.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.target import CPU
from quickfuse.launch import builtin, object_cache
from quickfuse.launch.cpu_driver import DRIVER_IR
from quickfuse.launch.object_cache import CompiledObject
from quickfuse.signals import handlers_wait

if TYPE_CHECKING:
    import llvmlite.binding as llvm

#: A kernel on the address of its arguments: 64-bit words, see `emit.llvm`.
Kernel = Callable[[int], None]


# --- compiling ---

#: How machine code is generated, for any processor.
_ALWAYS: Any = {"opt": 2, "reloc": "pic", "codemodel": "small", "jit": True}

#: An address in IR.
_ADDRESS = re.compile(r"inttoptr \(i64 (\d+) to ptr\)")


class _Engine:
    """LLVM for this machine: created once a process, on the first use."""

    def __init__(self) -> None:
        import llvmlite
        import llvmlite.binding as llvm  # 20 ms when in the disk cache, 200 ms when not

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        self.context = _opaque_context(llvm)
        self.target_machine = self._create_target_machine()
        self.pass_builder = llvm.create_pass_builder(self.target_machine, llvm.create_pipeline_tuning_options())
        # The older of LLVM's two linkers puts a kernel's parts where there is room, and aborts if that is 2 GB apart.
        # It takes ownership of the target machine.
        self.jit = llvm.create_lljit_compiler(self._create_target_machine(), use_jit_link=True)
        self.lock = threading.Lock()
        self.serial = itertools.count()
        #: All that machine code depends on beside the IR.
        versions = (llvmlite.__version__, *llvm.llvm_version_info)
        self._generator = repr((*versions, _ALWAYS, self.cpu, sorted(llvm.get_host_cpu_features().items())))
        self.driver: dict[str, int] = {}
        addresses, self._driver_library = self.load(DRIVER_IR, ["quickfuse_run", "quickfuse_launch"])
        self.driver.update(addresses)

    @property
    def cpu(self) -> str:
        return str(self.llvm.get_host_cpu_name())

    def _create_target_machine(self) -> llvm.TargetMachine:
        features = self.llvm.get_host_cpu_features().flatten()
        return self.llvm.Target.from_default_triple().create_target_machine(cpu=self.cpu, features=features, **_ALWAYS)

    def parse(self, *sources: str) -> llvm.ModuleRef:
        modules = []
        for source in sources:
            module = self.llvm.parse_assembly(source, self.context)
            module.triple = self.target_machine.triple
            module.data_layout = str(self.target_machine.target_data)
            modules.append(module)
        for other in modules[1:]:
            modules[0].link_in(other)
        passes = self.llvm.create_new_module_pass_manager()
        passes.add_instruction_combine_pass()
        passes.run(modules[0], self.pass_builder)
        return modules[0]

    def load(self, source: str, names: Sequence[str]) -> tuple[dict[str, int], Any]:
        """The addresses of functions, and what keeps them loaded: LLVM unloads a library when its tracker is collected.

        Addresses in the source become names that get these addresses when they are linked: in the next process, Python and
        PyTorch lie elsewhere.
        """
        known: dict[str, str] = {}
        portable = _ADDRESS.sub(lambda found: "@" + known.setdefault(found[1], f"address.{len(known)}"), source)
        portable += "".join(f"\n@{name} = external global i8" for name in known.values())
        key = self._key("functions", portable)
        compiled = object_cache.find(key)
        if compiled is None:
            compiled = self._compile([portable])
            object_cache.keep([key], compiled)
        return self._link(compiled, names, {name: int(address) for address, name in known.items()})

    def load_kernels(self, sources: Sequence[str]) -> list[LoadedKernel]:
        """The function `kernel` of each source. What is compiled together is one object, and stays loaded together."""
        keys = [self._key("kernel", source) for source in sources]
        found = {key: object_cache.find(key) for key in keys}
        new = {key: source for key, source in zip(keys, sources, strict=True) if found[key] is None}
        if new:
            made = self._compile([source.replace("@kernel", f"@kernel.{key}") for key, source in new.items()])
            object_cache.keep([*new], made)
            found |= dict.fromkeys(new, made)
        held: dict[CompiledObject, list[str]] = {}
        for key, compiled in found.items():
            assert compiled is not None
            held.setdefault(compiled, []).append(key)
        loaded: dict[str, LoadedKernel] = {}
        for one, some in held.items():
            addresses, library = self._link(one, [f"kernel.{key}" for key in some], {})
            loaded |= {key: LoadedKernel(addresses[f"kernel.{key}"], library) for key in some}
        return [loaded[key] for key in keys]

    def _key(self, kind: str, source: str) -> str:
        """`kind` tells how names in the source become those in the object."""
        return object_cache.key_of(self._generator, kind, source)

    def _compile(self, sources: Sequence[str]) -> CompiledObject:
        module = self.parse(*sources)
        image = self.target_machine.emit_object(module)
        declared = [function.name for function in module.functions if function.is_declaration]
        return CompiledObject(image, tuple([name for name in declared if not name.startswith("llvm.")]))

    def _link(
        self, compiled: CompiledObject, names: Sequence[str], addresses: Mapping[str, int]
    ) -> tuple[dict[str, int], Any]:
        library = self.llvm.JITLibraryBuilder().add_object_img(compiled.image)
        for name in compiled.imports:
            library.import_symbol(name, self._address_of(name))
        for name, address in addresses.items():
            library.import_symbol(name, address)
        for name in names:
            library.export_symbol(name)
        try:
            tracker = library.add_current_process().link(self.jit, f"quickfuse.{next(self.serial)}")
        except RuntimeError as error:  # code generation needed a run-time function, say float16 without F16C
            raise Unsupported(f"LLVM cannot link a kernel on this machine: {error}") from error
        return {name: int(tracker[name]) for name in names}, tracker

    def _address_of(self, symbol: str) -> int:
        if symbol in self.driver:
            return self.driver[symbol]
        for library in _libraries():
            if hasattr(library, symbol):
                return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
        raise Unsupported(f"no library on this machine has the function {symbol}")


def _opaque_context(llvm: Any) -> Any:
    """A context of our own. LLVM 15 (llvmlite 0.44) has to be asked to read `ptr` types."""
    if llvm.llvm_version_info[0] > 15:
        return llvm.create_context()
    from llvmlite.binding import context, ffi

    return context.ContextRef(ffi.lib.LLVMPY_ContextCreate(True))


_engine_lock = threading.Lock()


@functools.cache
def _engine_once() -> _Engine:
    return _Engine()


def _engine() -> _Engine:
    with handlers_wait(), _engine_lock:
        return _engine_once()


_stays: list[Any] = []


def load(ir: str, names: Sequence[str]) -> dict[str, int]:
    """Compile LLVM IR for this machine and return the addresses of the functions `names`. They stay loaded.

    The IR may call `quickfuse_run` and `quickfuse_launch` (see `cpu_driver.py`), libm, libmvec and OpenMP.
    """
    engine = _engine()
    with handlers_wait(), engine.lock:
        addresses, library = engine.load(ir, names)
    _stays.append(library)
    return addresses


class LoadedKernel:
    """A kernel's function. It is loaded as long as this object lives, or what `bound` gave."""

    __slots__ = ("__weakref__", "_address", "_library")

    def __init__(self, address: int, library: Any) -> None:
        self._address = address
        self._library = library

    def bound(self, block: int, *, releases_gil: bool, kept: Any) -> Callable[[], None]:
        """The function for Python, with the address of its arguments, which lie in `kept`: see `bind` and `launcher`."""
        if not releases_gil:
            return launcher(self._address, block, (self, kept))
        function: Any = bind(self._address, releases_gil=True)
        function.kernel = self
        return functools.partial(function, block)


def load_kernels(sources: Sequence[str]) -> list[LoadedKernel]:
    """Compile several modules of LLVM IR, each of which defines `kernel`, and nothing else that others see. Each call takes
    LLVM 1 ms, however little there is to compile."""
    engine = _engine()
    with handlers_wait(), engine.lock:
        return engine.load_kernels(sources)


def assembly(ir: str) -> str:
    """The machine code that `load` would produce, as text."""
    engine = _engine()
    with handlers_wait(), engine.lock:
        text: str = engine.target_machine.emit_assembly(engine.parse(ir))
    return text


def preload() -> None:
    """Load LLVM in the background, so that the first kernel need not wait for it."""
    threading.Thread(target=_engine, name="quickfuse-preload", daemon=True).start()


# --- libraries ---


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """Where the functions that kernels call are looked up: libm, libmvec, and OpenMP."""
    found = [ctypes.CDLL("libm.so.6")]
    with contextlib.suppress(OSError):  # not a glibc with vector functions; the code generator looked for them, too
        found.append(ctypes.CDLL("libmvec.so.1"))
    return (*found, ctypes.CDLL(openmp_library()))


@functools.cache
def openmp_library() -> str:
    """The path of the OpenMP library that PyTorch runs on: a second one would mean a second pool of threads."""
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if bundled:
        return str(bundled[0])
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if any(name in path for name in ("libgomp", "libiomp5", "libomp")):
            return path
    raise Unsupported("PyTorch has loaded no OpenMP library")


# --- calling ---


def bind(address: int, *, releases_gil: bool = False) -> Kernel:
    """A kernel's function as a Python callable of the address of its arguments.

    Keeping the lock (the default) is cheaper for short kernels; a long one should let other Python threads run.
    """
    prototype: Any = ctypes.CFUNCTYPE if releases_gil else ctypes.PYFUNCTYPE
    kernel: Kernel = prototype(None, ctypes.c_void_p)(address)
    return kernel


def launcher(address: int, block: int, kept: Any) -> Callable[[], None]:
    """A kernel's function as a Python callable without arguments, with the address of its own, which lie in `kept`. A call
    takes 40 ns, where one of `bind` takes 200. It keeps Python's lock."""
    if not builtin.layout_holds():
        function: Any = bind(address)
        function.kept = kept
        return functools.partial(function, block)
    own = address.to_bytes(8, "little") + block.to_bytes(8, "little")
    return builtin.with_own(_LAUNCH, _launch_function(), own, kept)


@functools.cache
def _launch_function() -> int:
    return load(builtin.launching(_LAUNCH), [_LAUNCH])[_LAUNCH]


_LAUNCH = "quickfuse_launch_block"


@functools.cache
def vector_bytes() -> int:
    """How wide vectors are on this machine."""
    features = _engine().llvm.get_host_cpu_features()
    return 64 if features.get("avx512f") else 32 if features.get("avx2") else 16


def threads_for(units: int, cost: int) -> int:
    """How many threads to launch with, for `units` of work that each cost as much as `cost` cheap elements.

    Either one or PyTorch's number: the OpenMP library would rebuild its pool for each number in between.
    """
    return torch.get_num_threads() if worth_threads(units, cost) else 1


def worth_threads(units: int, cost: int) -> bool:
    """Whether several threads are faster than one. How many there are may be set at any time, also after compiling."""
    return units >= 2 and units * cost >= CPU.parallel_work


# --- telling ---


def host_description() -> dict[str, Any]:
    """What kernels are compiled for and linked with on this machine."""
    llvm = _engine().llvm
    return {
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "triple": _engine().target_machine.triple,
        "cpu": llvm.get_host_cpu_name(),
        "vector_bits": 8 * vector_bytes(),
        "libmvec": any("libmvec" in str(library._name) for library in _libraries()),
        "openmp": openmp_library(),
        "threads": torch.get_num_threads(),
    }
