"""Makes the modules of ``examples`` importable, as running one of them does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
