"""Globals, builtins, modules, settings, context variables, levels of loggers and filters of warnings change."""

import builtins
import contextlib
import contextvars
import logging
import os
import sys
import types
import warnings

import pytest
import torch

from case_registry import case, cases
from changes.programs import agrees

V = contextvars.ContextVar("V", default=2.0)
LG = logging.getLogger("changes")


class H(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), record.funcName, record.levelname)


@case
def module_global():
    m = types.ModuleType("m_x")
    m.k = 2
    return (lambda x: x * getattr(m, "k", 9)), [
        lambda: delattr(m, "k"),
        lambda: setattr(m, "k", 4),
        lambda: setattr(m, "__getattr__", lambda n: 33),
        lambda: delattr(m, "k"),
    ]


@case
def attribute_of_a_module_class():
    class Lazy(types.ModuleType):
        parts = {"k": 2}

        def __getattr__(self, name):
            return self.parts[name]

    lazy = Lazy("lazy")
    return (lambda x: x * lazy.k), [
        lambda: Lazy.parts.update(k=3),
        lambda: setattr(lazy, "k", 5),
        lambda: delattr(lazy, "k"),
        lambda: setattr(Lazy, "k", 7),
        lambda: delattr(Lazy, "k"),
        lambda: setattr(Lazy, "__getattr__", lambda s, n: 8),
        lambda: setattr(Lazy, "__getattribute__", lambda s, n: 9),
    ]


@case
def module_getattr():
    m = types.ModuleType("m_y")
    m.__getattr__ = lambda n: 3
    return (lambda x: x * m.zzz), [
        lambda: setattr(m, "zzz", 5),
        lambda: setattr(m, "__getattr__", lambda n: 8),
        lambda: delattr(m, "zzz"),
        lambda: delattr(m, "__getattr__"),
    ]


@case
def builtin_shadowed():
    ns = {"torch": torch, "__builtins__": builtins}
    exec("def f(x): return x * len([1,2])", ns)
    return ns["f"], [lambda: ns.__setitem__("len", lambda l: 9), lambda: ns.pop("len")]


@case
def builtin_patched():
    ns = {"torch": torch, "__builtins__": dict(vars(builtins))}
    exec("def f(x): return x * abs(-2)", ns)
    return ns["f"], [lambda: ns["__builtins__"].__setitem__("abs", lambda l: 9), lambda: ns["__builtins__"].pop("abs")]


@case
def builtin_patched_real():
    ns = {"torch": torch}
    exec("def f(x): return x * abs(-2)", ns)
    old = abs
    return ns["f"], [lambda: setattr(builtins, "abs", lambda l: 9), lambda: setattr(builtins, "abs", old)]


@case
def globals_():
    ns = {"torch": torch, "k": 2}
    exec("def f(x): return x * globals().get('k', 5) + ('zz' in globals())", ns)
    return ns["f"], [lambda: ns.__setitem__("k", 4), lambda: ns.pop("k"), lambda: ns.__setitem__("zz", 4)]


@case
def sys_modules():
    def f(x):
        return x * 2 if "changes_mod" in sys.modules else x

    return f, [
        lambda: sys.modules.__setitem__("changes_mod", types.ModuleType("changes_mod")),
        lambda: sys.modules.pop("changes_mod"),
    ]


@case
def import_inside():
    m = types.ModuleType("changes_mod2")
    m.k = 2
    sys.modules["changes_mod2"] = m

    def f(x):
        from changes_mod2 import k

        return x * k

    m2 = types.ModuleType("changes_mod2")
    m2.k = 12
    return f, [lambda: setattr(m, "k", 3), lambda: sys.modules.__setitem__("changes_mod2", m2), lambda: delattr(m2, "k")]


@case
def environ():
    os.environ.pop("QUICKFUSE_TEST_K", None)
    return (lambda x: x * int(os.environ.get("QUICKFUSE_TEST_K", "1"))), [
        lambda: os.environ.__setitem__("QUICKFUSE_TEST_K", "4"),
        lambda: os.putenv("QUICKFUSE_TEST_K", "9"),
        lambda: os.environ.pop("QUICKFUSE_TEST_K"),
    ]


@case
def getenv():
    os.environ.pop("QUICKFUSE_TEST_K", None)
    return (lambda x: x * int(os.getenv("QUICKFUSE_TEST_K", "1"))), [
        lambda: os.environ.__setitem__("QUICKFUSE_TEST_K", "4"),
        lambda: os.environ.pop("QUICKFUSE_TEST_K"),
    ]


@case
def contextvar():
    v = contextvars.ContextVar("v", default=2)
    return (lambda x: x * v.get()), [lambda: v.set(5), lambda: v.set(torch.ones(1))]


@case
def ctx_break_inside():
    V.set(2.0)

    def f(x):
        t = V.set(5.0)
        print("hi", V.get())
        y = x * V.get()
        V.reset(t)
        return y * V.get()

    return f, [lambda: V.set(3.0)]


@case
def ctx_cm_break():
    V.set(2.0)

    @contextlib.contextmanager
    def scope(v):
        t = V.set(v)
        try:
            yield
        finally:
            V.reset(t)

    def f(x):
        with scope(7.0):
            y = x * V.get()
            print("a", V.get())
            y = y + V.get()
            with scope(9.0):
                print("b", V.get())
                y = y * V.get()
        print(V.get())
        return y * V.get()

    return f, [lambda: V.set(3.0)]


@case
def ctx_leaves_set():
    U = contextvars.ContextVar("U")

    def f(x):
        try:
            k = U.get()
        except LookupError:
            k = 1.0
        U.set(k + 1)
        return x * k + U.get(0)

    return f, []


@case
def ctx_tensor():
    U = contextvars.ContextVar("U3", default=None)

    def f(x):
        t = U.get()
        U.set(x * 2)
        return x if t is None else x + t

    return f, []


@case
def ctx_raise():
    def f(x):
        t = V.set(11.0)
        try:
            raise ValueError("q")
        finally:
            V.reset(t)

    return f, []


@case
def ctx_return_token():
    U = contextvars.ContextVar("U4", default=1)

    def f(x):
        t = U.set(3)
        return x * 2, t.old_value is contextvars.Token.MISSING

    return f, []


@case
def logging_level():
    lg = logging.getLogger("changes_x")
    lg.setLevel(logging.ERROR)
    lg.propagate = True

    class H(logging.Handler):
        n = 0

        def emit(self, r):
            H.n += 1

    h = H()

    def f(x):
        lg.info("a %s", 3)
        return x * (1 + H.n)

    return f, [
        lambda: (lg.addHandler(h), lg.setLevel(logging.DEBUG)),
        lambda: lg.setLevel(logging.ERROR),
        lambda: logging.disable(logging.CRITICAL),
        lambda: logging.disable(logging.NOTSET),
        lambda: lg.removeHandler(h),
    ]


@case
def logging_enabled():
    lg = logging.getLogger("changes_y")
    lg.setLevel(logging.ERROR)
    return (lambda x: x * 2 if lg.isEnabledFor(logging.INFO) else x), [
        lambda: lg.setLevel(logging.INFO),
        lambda: logging.disable(logging.CRITICAL),
        lambda: logging.disable(logging.NOTSET),
    ]


@case
def logging_parent_level():
    p = logging.getLogger("changes_p")
    lg = logging.getLogger("changes_p.q")
    lg.parent = p
    p.setLevel(logging.ERROR)
    return (lambda x: x * lg.getEffectiveLevel() + (2 if lg.isEnabledFor(logging.INFO) else 1)), [
        lambda: p.setLevel(logging.INFO),
        lambda: lg.setLevel(logging.WARNING),
        lambda: setattr(lg, "parent", logging.getLogger()),
        lambda: lg.setLevel(0),
    ]


@case
def log_enabled_prints():
    LG.handlers[:] = [H()]
    LG.setLevel(logging.ERROR)
    LG.propagate = False
    logging.disable(0)

    def f(x):
        LG.debug("d %s", 1)
        LG.warning("w")
        LG.error("e %d", 3)
        x = x * 2
        LG.log(10, "z")
        return x

    return f, [
        lambda: LG.setLevel(logging.DEBUG),
        lambda: LG.setLevel(logging.ERROR),
        lambda: setattr(LG, "disabled", True),
        lambda: setattr(LG, "disabled", False),
        lambda: logging.disable(50),
        lambda: logging.disable(0),
    ]


@case
def log_adapter():
    LG.handlers[:] = [H()]
    LG.setLevel(logging.ERROR)
    LG.propagate = False

    class Ad(logging.LoggerAdapter):
        def process(self, m, k):
            return f"[{self.extra['a']}] {m}", k

    ad = Ad(LG, {"a": 1})

    def f(x):
        ad.info("i")
        x = x + 1
        ad.error("e")
        return x

    return f, [lambda: LG.setLevel(logging.DEBUG), lambda: ad.extra.update(a=5)]


@case
def warn_filter():
    def f(x):
        with warnings.catch_warnings(record=True) as w:
            warnings.simplefilter("always")
            warnings.warn("abc")
        return x * len(w)

    return f, []


@case
def warn_error():
    def f(x):
        try:
            warnings.warn("abc", UserWarning)
        except UserWarning:
            return x * 2
        return x

    def on():
        warnings.simplefilter("error")

    def off():
        warnings.simplefilter("ignore")

    return f, [on, off]


@case
def warn_kinds():
    def show(m, c, fn, ln, file=None, line=None):
        print(c.__name__, m)

    warnings.showwarning = show

    def f(x):
        warnings.warn("one")
        x = x * 2
        warnings.warn("two", DeprecationWarning)
        warnings.warn(FutureWarning("three"), stacklevel=2)
        return x

    def flt(*a, **k):
        return lambda: warnings.filterwarnings(*a, **k)

    warnings.resetwarnings()
    return f, [
        flt("ignore"),
        flt("always", "two", DeprecationWarning),
        flt("ignore", category=DeprecationWarning),
        flt("always", category=FutureWarning),
        flt("error", "one"),
        lambda: (warnings.resetwarnings(), warnings.simplefilter("ignore")),
    ]


@case
def torch_settings():
    return (lambda x: x * (2 if torch.get_default_dtype() == torch.float64 else 1) + torch.ones(2)), [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    ]


@case
def torch_det():
    return (lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 1)), [
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ]


@case
def torch_printopts():
    return (lambda x: x * (2 if torch.backends.cudnn.benchmark else 1)), [
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        lambda: setattr(torch.backends.cudnn, "benchmark", False),
    ]


@case
def matmul_prec():
    return (lambda x: x * (2 if torch.get_float32_matmul_precision() == "high" else 1)), [
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ]


@case
def default_device():
    return (lambda x: torch.ones(2).device.type), [
        lambda: torch.set_default_device("meta"),
        lambda: torch.set_default_device(None),
    ]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
