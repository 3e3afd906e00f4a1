"""All templates of statements."""

from __future__ import annotations

from programs.assignments import ASSIGNMENTS, MUTATIONS
from programs.call_statements import CALLS
from programs.control_flow import CONTROL
from programs.exception_statements import EXCEPTIONS

#: Groups of templates and how often one is taken from each, where blocks may nest no deeper and elsewhere.
GROUPS = [(6, 5, ASSIGNMENTS), (6, 5, MUTATIONS), (3, 8, CONTROL), (2, 5, EXCEPTIONS), (4, 5, CALLS)]
