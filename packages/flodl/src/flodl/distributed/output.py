"""What the ranks print: line by line, with the rank in front."""

from __future__ import annotations

import threading
from collections import deque
from typing import IO, Any

__all__ = ["Pump"]

_KEPT = 40  # lines of a rank that are known when it fails


class Pump(threading.Thread):
    """Copies a rank's stream to `out`, if there is one; the first rank's lines as they are. `last`: its newest lines."""

    def __init__(self, rank: int, stream: IO[bytes], out: Any) -> None:
        super().__init__(name=f"flodl output of rank {rank}", daemon=True)
        self.last: deque[str] = deque(maxlen=_KEPT)
        self._prefix = f"[rank {rank}] ".encode() if rank else b""
        self._torchs = f"[rank{rank}]: ".encode()  # in front of a traceback
        self._stream, self._out = stream, out
        self.start()

    def run(self) -> None:
        """Until the stream ends."""
        with self._stream:
            for raw in self._stream:
                line = raw.removeprefix(self._torchs)
                self.last.append(line.decode(errors="replace").rstrip("\n"))
                if self._out is None:
                    continue
                ended = line if line.endswith(b"\n") else line + b"\n"
                try:
                    self._out.write(self._prefix + ended)
                    self._out.flush()
                except (OSError, ValueError):  # nobody reads any more: the rank must not wait for that
                    continue
