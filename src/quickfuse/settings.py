"""What `compile()` was asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import backends, config, logs
from .errors import kind_of

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Option(NamedTuple):
    """An entry of `compile(options=...)`.

    `done` are the values that ask for what is done anyway, or that something here listens to; `otherwise` tells users of
    other values what happens instead. `mode` is the mode that the value True stands for.
    """

    kind: type
    done: tuple[Any, ...] | None = None
    otherwise: str = ""
    mode: str = ""


_OURS = {"raise_internal_errors": Option(bool)}

_TUNING = "kernels are chosen by rules, not by measuring; it has no effect"
_NO_SUCH_STEP = "there is no such step here; it has no effect"

#: Options of torch.compile, so that programs may keep them.
_OF_TORCH_COMPILE = {
    "triton.cudagraphs": Option(bool, mode="reduce-overhead"),
    "max_autotune": Option(bool, mode="max-autotune"),
    "max_autotune_gemm": Option(bool, (False,), _TUNING),
    "max_autotune_pointwise": Option(bool, (False,), _TUNING),
    "coordinate_descent_tuning": Option(bool, (False,), _TUNING),
    "epilogue_fusion": Option(bool, (True,), "operators are always fused where they can be"),
    "fallback_random": Option(bool, (True, False)),  # random numbers are always eager's
    "shape_padding": Option(bool, (False,), "the operands of matrix products are not padded; it has no effect"),
    "permute_fusion": Option(bool, (False,), _NO_SUCH_STEP),
    "freezing": Option(bool, (False,), "parameters are read at each call, since they may change; it has no effect"),
    "cpp_wrapper": Option(bool, (False,), "kernels are called from generated Python; it has no effect"),
    "dce": Option(bool, (True,), "results that nobody needs are never computed"),
    "emulate_precision_casts": Option(bool, (False,), _NO_SUCH_STEP),
    "split_reductions": Option(bool, (True,), "long reductions are split where that is faster"),
    "triton.unique_kernel_names": Option(bool, (False,), "kernels that are equal share one name and one compilation"),
    "triton.cudagraph_trees": Option(bool, (True,), _NO_SUCH_STEP),
    "trace.enabled": Option(bool, (False,), "see quickfuse.set_logs and quickfuse.explain for what was compiled"),
    "trace.graph_diagram": Option(bool, (False,), "see quickfuse.set_logs and quickfuse.explain for what was compiled"),
    "guard_filter_fn": Option(object, (None,), "no guard is ever left out, as results might be wrong; it has no effect"),
}
OPTIONS = (*_OURS, *_OF_TORCH_COMPILE)

_said: set[str] = set()


class Settings:
    """The arguments of `compile()`, checked.

    Raises:
        ValueError: for an unknown mode, option or backend; the message names the known ones.
        TypeError: for an argument or option of the wrong type.
    """

    def __init__(
        self, fullgraph: bool, dynamic: bool | None, backend: Any, mode: str | None, options: dict[str, Any] | None,
        disable: bool = False, name: str | None = None, recompile_limit: int | None = None,
    ) -> None:  # fmt: skip
        if type(fullgraph) is not bool:
            raise TypeError(f"fullgraph is True or False, not {fullgraph!r}")
        if type(disable) is not bool:
            raise TypeError(f"disable is True or False, not {disable!r}")
        if dynamic is not None and type(dynamic) is not bool:
            raise TypeError(f"dynamic is True, False or None, not {dynamic!r}")
        if mode is not None and mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; the modes are {', '.join(MODES)}")
        if name is not None and type(name) is not str:
            raise TypeError(f"name is a text, not {kind_of(name)}")
        if recompile_limit is not None and (type(recompile_limit) is not int or recompile_limit < 1):
            raise ValueError(f"recompile_limit is a whole number from 1 on, not {recompile_limit!r}")
        given = _checked(options)
        self.name = name
        #: How often a place in the function is compiled, in place of `config.recompile_limit`.
        self.recompile_limit = recompile_limit
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.mode = mode or next((_OF_TORCH_COMPILE[name].mode for name in given if _asks_for_mode(name, given)), "default")
        self.backend = backends.resolve(backend)
        #: Whether what runs on a GPU is recorded as CUDA graphs.
        self.recorded = self.mode in ("reduce-overhead", "max-autotune")
        #: Whether launch shapes of large kernels on a GPU are measured.
        self.tuned = self.mode.startswith("max-autotune")
        self.raise_internal_errors: bool = given.get("raise_internal_errors", False)


def _asks_for_mode(name: str, given: dict[str, Any]) -> bool:
    return name in _OF_TORCH_COMPILE and bool(_OF_TORCH_COMPILE[name].mode) and given[name] is True


def _checked(options: dict[str, Any] | None) -> dict[str, Any]:
    """The options, of known names and right types. What one of them does not do here is said once."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise TypeError(f"options are a dictionary, not {kind_of(options)}; the options are {', '.join(OPTIONS)}")
    unknown = [str(name) for name in options if name not in OPTIONS]
    if unknown and unknown[0] in config._KINDS:
        raise ValueError(f"{unknown[0]} is no option but a setting of the process: quickfuse.config.{unknown[0]} = ...")
    if unknown:
        raise ValueError(f"unknown options {', '.join(unknown)}; the options are {', '.join(OPTIONS)}")
    for name, value in options.items():
        option = _OURS.get(name) or _OF_TORCH_COMPILE[name]
        if option.kind is not object and type(value) is not option.kind:
            raise TypeError(f"the option {name!r} is of type {option.kind.__name__}, not {value!r}")
        if option.done is not None and value not in option.done and name not in _said:
            _said.add(name)
            logs.log.warning("the option %r of torch.compile, %r: %s", name, value, option.otherwise)
    return options
