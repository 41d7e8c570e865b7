"""A job whose output holds what would clear, retitle or wreck a terminal that took it as it is."""

from __future__ import annotations

import sys
import time

STORM = (
    b"\x1b[2J\x1b[H\x1b[31mred\x1b]0;a title of my own\x07\x1b[?25l\x1b[?1049h\x9b2J\xc2\x9b2J\x1b[999;999Hfar away\n"
    b"\x0e\x0f\x1bcreset\x1b#8\xe2\x80\xaereversed\r\n\xff\xfe not UTF-8\n\x1b[5;10r\x1b[?7l" + b"long " * 400 + b"\n"
)

if __name__ == "__main__":
    sys.stdout.buffer.write(b"before the storm\n" + STORM + b"after the storm\n")
    sys.stdout.buffer.flush()
    time.sleep(600)
