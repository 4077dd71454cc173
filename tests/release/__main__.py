"""The command."""

from __future__ import annotations

import sys

from tests.release.command import main

if __name__ == "__main__":
    sys.exit(main())
