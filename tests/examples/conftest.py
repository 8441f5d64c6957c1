"""Makes the scripts of examples/ importable, as they are for one another when they are run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
