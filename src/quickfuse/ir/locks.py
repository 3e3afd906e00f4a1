"""Which classes the locks of the standard library are of."""

from __future__ import annotations

import threading
from typing import Any

LOCKS: frozenset[Any] = frozenset({type(threading.Lock()), type(threading.RLock())})
