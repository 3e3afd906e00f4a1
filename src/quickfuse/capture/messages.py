"""Calls of `logging` that print nothing, since a level says so: guarded to stay silent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ..errors import Unsupported
from .class_attributes import lookup_class, python_method
from .interpreter import Interpreter
from .library import level_enables
from .symbolic import real_of, type_of


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


HANDLERS: dict[Any, Callable[..., Any]] = {
    logging.Logger.isEnabledFor: _is_enabled_for,
    logging.getLogger: _get_logger,
    **{
        function: _message(name, level)
        for cls in (logging.Logger, logging.LoggerAdapter)
        for name, level in _LEVELS.items()
        if isinstance(function := lookup_class(cls, name)[1], FunctionType)
    },
}
