"""`types.MappingProxyType`: a read-only view of a dictionary, read by the path to the view."""

from __future__ import annotations

import gc
from types import MappingProxyType
from typing import Any

from ...ir.source import Source
from .dictionary import ShadowDict
from .foreign import ForeignObject


class MappingProxy(ForeignObject):
    """A view of the user's; `behind` stands for the dictionary that it shows."""

    __slots__ = ("behind",)

    def __init__(self, real: MappingProxyType[Any, Any], source: Source, behind: ShadowDict) -> None:
        super().__init__(real, source)
        self.behind = behind


def dictionary_behind(proxy: MappingProxyType[Any, Any]) -> dict[Any, Any] | None:
    """The dictionary that a view shows, None if it shows another mapping."""
    behind = gc.get_referents(proxy)
    return behind[0] if len(behind) == 1 and type(behind[0]) is dict else None


def opened(value: Any) -> Any:
    """What stands for the dictionary behind a view; other values as they are."""
    return value.behind if type(value) is MappingProxy else value
