"""An event: lines of a program that change something between two calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lives.life import Life


@dataclass(frozen=True)
class Event:
    """Lines with `M`, `O`, `S`: a model, an optimizer, a scheduler of the program; `K`: some small number.

    `quiet`: nothing is compiled anew because of it.
    """

    name: str
    lines: tuple[str, ...]
    share: float = 1.0
    quiet: bool = False

    def of(self, life: Life) -> list[str]:
        """The lines for a program, or none where it has not what they need."""
        d, text = life.d, "\n".join(self.lines)
        for letter, names in (("M", life.models), ("O", life.optimizers), ("S", life.schedulers)):
            marker = f"<{letter}>"
            if marker in text:
                if not names:
                    return []
                text = text.replace(marker, d.pick(*names))
        return text.replace("<K>", str(d.pick(0, 0, 1, 2, 3))).replace("<F>", d.pick("0.5", "0.9", "1.25")).split("\n")


def event(name: str, *lines: str, share: float = 1.0, quiet: bool = False) -> Event:
    return Event(name, lines, share, quiet)
