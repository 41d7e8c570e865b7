"""Entry of `python -m trainer`."""

from __future__ import annotations

import os
import sys

# libgomp reads this when torch loads it. Its threads spin at barriers by default: with anything else on the cores a
# step takes six times as long (measured); sleeping ones cost nothing that can be seen on an idle machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if __name__ == "__main__":
    from trainer.cli import main

    sys.exit(main())
