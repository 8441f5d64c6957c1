"""``python -m fenchel`` is the ``fenchel`` command."""

from __future__ import annotations

import sys

from fenchel.cli import main

if __name__ == "__main__":
    sys.exit(main())
