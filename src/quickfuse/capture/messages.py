"""Calls of `logging` and `warnings` that print nothing, since a level or a filter says so: guarded to stay silent."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ..errors import Unsupported
from .class_attributes import lookup_class, python_method
from .frame import Frame
from .interpreter import Interpreter
from .library import level_enables
from .symbolic import is_constant, real_of, type_of

# logging --------------------------------------------------------------------------------------------------------


def _is_enabled_for(i: Interpreter, logger: Any, level: Any) -> bool:
    """`logger.isEnabledFor(level)`. A logger remembers its answers; they have to agree with what the levels say."""
    real = real_of(logger)
    if not isinstance(real, logging.Logger) or python_method(i, logger, "getEffectiveLevel") is not _EFFECTIVE_LEVEL:
        raise Unsupported(f"the level of a {type_of(logger).__name__}")
    enabled = i.truth(i.call_now(level_enables, (logger, level)))
    source = i.outside.source_of(logger)
    level = i.outside.concrete(level)
    if source is None or real._cache.get(level, enabled) is not enabled:  # type: ignore[attr-defined]
        raise Unsupported("a logger whose level was set without its noticing")
    if not real.disabled:
        i.outside.guard("cached", source.attr("_cache"), (level, enabled, None))
    return enabled


_EFFECTIVE_LEVEL = logging.Logger.getEffectiveLevel


def _message(name: str, level: int | None) -> Callable[..., None]:
    """A method of loggers and of adapters; `level` is None where it is the first argument."""

    def handler(i: Interpreter, logger: Any, *args: Any, **kwargs: Any) -> None:
        wanted = level if level is not None else args[0] if args else None
        inner = i.attribute_now(logger, "logger") if issubclass(type_of(logger), logging.LoggerAdapter) else logger
        if wanted is None or python_method(i, inner, "isEnabledFor") is not logging.Logger.isEnabledFor:
            raise Unsupported(f"a call of logging.Logger.{name}")
        if _is_enabled_for(i, inner, wanted):
            raise Unsupported(f"a call of logging.Logger.{name}")

    return handler


def _get_logger(i: Interpreter, name: Any = None) -> Any:
    """`logging.getLogger` of one that is there already."""
    name = i.outside.concrete(name)
    manager = i.outside.roots.constant("logging.Logger.manager", logging.Logger.manager)
    if not name or name == logging.root.name:
        return i.outside.wrap(logging.root, manager.attr("root"))
    found = logging.Logger.manager.loggerDict.get(name) if isinstance(name, str) else None
    if not isinstance(found, logging.Logger):
        raise Unsupported("the first call of logging.getLogger with this name")
    return i.outside.wrap(found, manager.attr("loggerDict").item(name))


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "warn": logging.WARNING,
           "error": logging.ERROR, "exception": logging.ERROR, "critical": logging.CRITICAL, "log": None}  # fmt: skip


# warnings -------------------------------------------------------------------------------------------------------


def _warn(
    i: Interpreter, message: Any, category: Any = None, stacklevel: Any = 1, source: Any = None, **options: Any
) -> None:
    """`warnings.warn`, where the first filter that speaks of this warning ignores it."""
    text, kind = i.outside.concrete(message), i.outside.concrete(category)
    kind = UserWarning if kind is None else kind
    if isinstance(text, Warning):
        text, kind = str(text) if is_constant(text.args) else None, type(text)
    known = isinstance(text, str) and isinstance(kind, type) and issubclass(kind, Warning) and not options
    if not known or source is not None or _action(i, text, kind, i.outside.concrete(stacklevel)) != "ignore":
        raise Unsupported("a warning")


def _action(i: Interpreter, text: str, kind: type, stacklevel: Any) -> str:
    """What the filters say is to be done with a warning."""
    if getattr(sys.flags, "context_aware_warnings", False) or warnings.warn is not _NATIVE_WARN:
        raise Unsupported("a warning")
    filters = i.outside.roots.constant("warnings", warnings).attr("filters")
    i.outside.guard("filters", filters, tuple(warnings.filters))
    frame = _caller(i, stacklevel)
    for action, pattern, category, module, line in warnings.filters:
        if (pattern is None or pattern.match(text)) and issubclass(kind, category):
            if module is None and not line:
                return action
            if frame is None:
                break
            name = frame.globals.get("__name__") or "<string>"
            if (module is None or module.match(name)) and (not line or str(frame.location).endswith(f":{line}")):
                return action
    return "default"


_NATIVE_WARN = warnings.warn


def _caller(i: Interpreter, stacklevel: Any) -> Frame | None:
    """The frame that a warning is about, None where it called the captured code."""
    if type(stacklevel) is not int or not 1 <= stacklevel <= len(i.frames):
        return None
    return i.frames[-stacklevel]


HANDLERS: dict[Any, Callable[..., Any]] = {
    logging.Logger.isEnabledFor: _is_enabled_for,
    logging.getLogger: _get_logger,
    **{
        function: _message(name, level)
        for cls in (logging.Logger, logging.LoggerAdapter)
        for name, level in _LEVELS.items()
        if isinstance(function := lookup_class(cls, name)[1], FunctionType)
    },
    warnings.warn: _warn,
}
