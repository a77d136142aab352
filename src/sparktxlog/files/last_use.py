"""When files of each transaction were verified last: a submit that names them may be under way.

Upkeep removes files that no transaction names.  A submit verifies its files first and is in the
journal later, so for some time after that nothing else shows that they are needed.
"""

from __future__ import annotations

import math
import threading
from time import monotonic

#: Moments are kept so long, seconds; nobody asks for earlier ones.
KEPT_S = 3_600.0


class LastUse:
    """Directories at the top, by the moment of their last use; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The oldest is first, monotonic seconds.
        self._at: dict[str, float] = {}

    def note(self, top: str) -> None:
        """Note that a file below a directory was verified now."""
        now = monotonic()
        with self._lock:
            self._at.pop(top, None)
            self._at[top] = now
            while self._at[oldest := next(iter(self._at))] < now - KEPT_S:
                del self._at[oldest]

    def is_since(self, top: str, moment: float) -> bool:
        """Return whether a directory was used at or after a moment.

        Args:
            moment: Monotonic seconds, of the last `KEPT_S`.
        """
        with self._lock:
            return self._at.get(top, -math.inf) >= moment
