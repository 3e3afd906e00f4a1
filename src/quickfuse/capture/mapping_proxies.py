"""`types.MappingProxyType`: a read-only view of a dictionary, read by the path to the view."""

from __future__ import annotations

import gc
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .values import ShadowDict

if TYPE_CHECKING:
    from .outside import Outside


def opened(outside: Outside, proxy: Any) -> Any:
    """What stands for the dictionary behind a view from outside; other values as they are."""
    if type(proxy) is not MappingProxyType or (source := outside.source_of(proxy)) is None:
        return proxy
    behind = gc.get_referents(proxy)
    if len(behind) != 1 or type(behind[0]) is not dict:
        return proxy
    found = outside.proxied.get(id(proxy))
    if found is None:
        found = outside.proxied[id(proxy)] = ShadowDict(behind[0], source)
    return found
