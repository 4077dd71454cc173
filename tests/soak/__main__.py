"""Runs the command."""

import sys

from tests.soak.command import main

sys.exit(main(sys.argv[1:]))
