"""Results that are kept for the next time, as long as there are not too many of them."""

from __future__ import annotations

from typing import Any

#: More than any program has kinds of calls. One that compiles for ever, with other constants each time, needs no more.
_MOST = 8192


class Memo(dict[Any, Any]):
    """A dictionary that begins anew when it is full."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self) >= _MOST:
            self.clear()
        super().__setitem__(key, value)
