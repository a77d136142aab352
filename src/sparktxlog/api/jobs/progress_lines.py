"""Progress of long work on stderr: lines for a log, a bar on a terminal.

Workers log records with `done` and `total`.  Here they become a line at most every `LINES_S`
seconds, or on a terminal a bar that is redrawn.  All other records are lines.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from time import monotonic

#: Seconds between two lines of progress in a log.
LINES_S = 5.0
#: Names the pipe that `spark-submit.sh` copies to its stderr.
STDERR_VARIABLE = "SPARKTXLOG_STDERR"
_BAR_WIDTH = 30
_CLEAR = "\r\x1b[2K"


class ProgressHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes records and progress to the current stderr: lines, or a bar on a terminal."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        self._shown: dict[str, float] = {}
        self._drawn = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; progress only when it is due."""
        self.stream = sys.stderr
        part = _part_of(record)
        if part is None:
            self.end_bar()
            super().emit(record)
        elif self.stream.isatty():
            self._draw(part, record.getMessage())
        elif self._is_due(record, part):
            super().emit(record)

    def _is_due(self, record: logging.LogRecord, part: float) -> bool:
        now = monotonic()
        # Each kind of progress separately; its key is the text without the numbers.
        if part < 1.0 and now - self._shown.get(str(record.msg), -LINES_S) < LINES_S:
            return False
        self._shown[str(record.msg)] = now
        return True

    def _draw(self, part: float, text: str) -> None:
        filled = round(_BAR_WIDTH * part)
        bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
        line = f"{bar} {part:4.0%}  {text}"
        self.stream.write(_CLEAR + line[: shutil.get_terminal_size().columns - 1])
        self.stream.flush()
        self._drawn = True

    def end_bar(self) -> None:
        """Remove the bar, before other text is written."""
        if self._drawn:
            self.stream.write(_CLEAR)
            self.stream.flush()
            self._drawn = False


def _part_of(record: logging.LogRecord) -> float | None:
    done, total = getattr(record, "done", None), getattr(record, "total", None)
    if not isinstance(done, (int, float)) or not isinstance(total, (int, float)):
        return None
    return min(1.0, max(0.0, done / total)) if total > 0 else 1.0


def start_logging() -> None:
    """Log to stderr from now on, unless the process already logs."""
    _take_stderr()
    logging.basicConfig(level=logging.INFO, handlers=[_HANDLER])
    # It logs every connection that a session closes.
    logging.getLogger("py4j").setLevel(logging.WARNING)


def _take_stderr() -> None:
    """Write to the stderr of `spark-submit.sh`: Spark sends a driver's stderr to its stdout."""
    pipe = os.environ.pop(STDERR_VARIABLE, "")
    if not pipe:
        return
    try:
        to = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # fails at once if nobody reads
    except OSError:
        return
    os.set_blocking(to, True)
    sys.stderr.flush()
    os.dup2(to, 2)
    os.close(to)


def say(text: str) -> None:
    """Write a line to stderr, after removing the bar."""
    _HANDLER.end_bar()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


_HANDLER = ProgressHandler()
