"""Messages of `logging` and `warnings`: those that nobody sees, since a level or a filter says so, are guarded to stay
silent, and warnings of texts are shown after the graph."""

from __future__ import annotations

import functools
import io
import logging
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from ...errors import Unsupported
from ...ir.warning_filters import forget_shown
from ..interpreter import Interpreter
from ..objects.class_attributes import python_method
from ..outside.changes import FilterScope
from ..symbolic import hooks, is_constant, real_of, type_of
from ..symbolic.frame import Frame
from .in_python import CatchWarnings, copy_filters, level_enables, restore_filters


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


_NATIVE_WARN = warnings.warn
_NATIVE_SHOW, _NATIVE_FORMAT = warnings.showwarning, warnings.formatwarning
#: What filters say of warnings that are shown, if they have not been.
_SHOWING = ("default", "always", "all", "module", "once")


def _warn(
    i: Interpreter, message: Any, category: Any = None, stacklevel: Any = 1, source: Any = None, **options: Any
) -> None:
    """`warnings.warn`: what no filter ignores is shown after the graph, as what is printed is."""
    text, kind = i.outside.concrete(message), i.outside.concrete(category)
    kind = UserWarning if kind is None else kind
    if isinstance(text, Warning):
        text, kind = str(text) if is_constant(text.args) else None, type(text)
    known = isinstance(text, str) and isinstance(kind, type) and issubclass(kind, Warning) and not options
    if not known or source is not None:
        raise Unsupported("a warning")
    stacklevel = i.outside.concrete(stacklevel)
    action = _action(i, text, kind, stacklevel)
    if action != "ignore":
        _show(i, message, kind, _caller(i, stacklevel), action)


def _show(i: Interpreter, message: Any, kind: type[Warning], frame: Frame | None, action: str) -> None:
    """Show a warning after the graph, where that runs no code of the program's and does not raise."""
    plain = isinstance(message, str) and kind.__module__ == "builtins" and not i.outside.filters
    if not plain or frame is None or action not in _SHOWING or not isinstance(sys.stderr, (io.TextIOWrapper, io.StringIO)):
        raise Unsupported("a warning")
    if warnings.showwarning is not _NATIVE_SHOW or warnings.formatwarning is not _NATIVE_FORMAT:
        raise Unsupported("a warning")
    module = i.outside.roots.constant("warnings", warnings)
    i.outside.guard("is", module.attr("showwarning"), _NATIVE_SHOW)
    i.outside.guard("is", module.attr("formatwarning"), _NATIVE_FORMAT)
    i.outside.guard("type", i.outside.roots.constant("sys", sys).attr("stderr"), type(sys.stderr))
    shown = functools.partial(_warn_at, frame.globals, frame.code.co_filename, frame.line, kind)
    i.outside.printed.append((shown, [message]))


def _warn_at(variables: dict[str, Any], file: str, line: int, kind: type[Warning], text: str) -> None:
    """`warnings.warn` about a line of a module with these global variables."""
    registry = variables.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, kind, file, line, variables.get("__name__") or "<string>", registry)


def _action(i: Interpreter, text: str, kind: type, stacklevel: Any) -> str:
    """What the filters say is to be done with a warning."""
    frame = _caller(i, stacklevel)
    for action, pattern, category, module, line in filters_now(i):
        if _matches(pattern, text) and issubclass(kind, category):
            if module is None and not line:
                return action
            if frame is None:
                break
            name = frame.globals.get("__name__") or "<string>"
            if _matches(module, name) and (not line or str(frame.location).endswith(f":{line}")):
                return action
    return "default"


def _matches(pattern: Any, text: str) -> bool:
    """Whether a filter speaks of a message or a module. In those that Python begins with, a name stands for itself."""
    return pattern is None or bool(pattern == text if isinstance(pattern, str) else pattern.match(text))


def _caller(i: Interpreter, stacklevel: Any) -> Frame | None:
    """The frame that a warning is about, None where it is not captured, such as that which called the captured code."""
    frame = i.frame_at(stacklevel) if type(stacklevel) is int else None
    return None if frame is None or frame.globals is vars(hooks) else frame  # which stands for one of PyTorch's


def filters_now(i: Interpreter) -> list[Any]:
    """The filters as they are now."""
    if getattr(sys.flags, "context_aware_warnings", False) or warnings.warn is not _NATIVE_WARN:
        raise Unsupported("a warning")
    if i.outside.filters:
        return i.outside.filters[-1].filters
    i.outside.guard("filters", i.outside.roots.constant("warnings", warnings).attr("filters"), tuple(warnings.filters))
    return list(warnings.filters)


# filters for a part of the captured code ------------------------------------------------------------------------


def _restore_filters(i: Interpreter, manager: CatchWarnings) -> None:
    if not i.outside.filters or i.outside.filters[-1].manager is not manager:
        raise Unsupported("leaving a warnings.catch_warnings that was not entered last")
    i.outside.filters.pop()
    if (forget_shown, []) not in i.outside.printed[-1:]:
        i.outside.printed.append((forget_shown, []))


def _simple_filter(i: Interpreter, action: Any, category: Any = Warning, lineno: Any = 0, append: Any = False) -> None:
    given = tuple([i.outside.concrete(a) for a in (action, category, lineno, append)])
    _add(i, warnings.simplefilter, given, (given[0], None, given[1], None, given[2]), given[3])


def _filter_warnings(
    i: Interpreter, action: Any, message: Any = "", category: Any = Warning, module: Any = "", lineno: Any = 0,
    append: Any = False,
) -> None:  # fmt: skip
    given = tuple([i.outside.concrete(a) for a in (action, message, category, module, lineno, append)])
    text, place = (i.native(re.compile, pattern, flags) if type(pattern) is str and pattern else None
                   for pattern, flags in ((given[1], re.IGNORECASE), (given[3], 0)))  # fmt: skip
    _add(i, warnings.filterwarnings, given, (given[0], text, given[2], place, given[4]), given[5])


def _add(i: Interpreter, function: Callable[..., None], given: tuple[Any, ...], added: tuple[Any, ...], last: Any) -> None:
    """Add a filter that ignores warnings, in front or as the last one."""
    plain = all(is_constant(value) or isinstance(value, type) for value in given)
    if not i.outside.filters or not plain or given[0] != "ignore":
        raise Unsupported(f"a call of warnings.{function.__name__}")
    if not (isinstance(added[2], type) and issubclass(added[2], Warning)) or type(added[4]) is not int or added[4] < 0:
        raise Unsupported(f"a call of warnings.{function.__name__} with these arguments")
    scope = i.outside.filters[-1]
    scope.calls.append((function, given))
    if not last:
        scope.filters[:] = [added, *(known for known in scope.filters if known != added)]
    elif added not in scope.filters:
        scope.filters.append(added)


HANDLERS: dict[Any, Callable[..., Any]] = {
    logging.Logger.isEnabledFor: _is_enabled_for,
    logging.getLogger: _get_logger,
    warnings.warn: _warn,
    copy_filters: lambda i, manager: i.outside.filters.append(FilterScope(manager, list(filters_now(i)))),
    restore_filters: _restore_filters,
    warnings.simplefilter: _simple_filter,
    warnings.filterwarnings: _filter_warnings,
}
