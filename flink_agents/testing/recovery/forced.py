"""``FLINK_AGENTS_TEST_MODE``: harder conditions for every harness of a process.

The variable holds words, separated by commas: ``replay``, ``restart`` and ``crash``. They are defaults for
the arguments ``forced_replay``, ``forced_restart`` and ``crash`` of ``OperatorHarness``; a test's own
arguments take precedence.
"""

from __future__ import annotations

import os

from flink_agents.api.errors import OptionError
from flink_agents.api.settings.options import TEST_MODE_VARIABLE

REPLAY = "replay"
RESTART = "restart"
CRASH = "crash"
WORDS = (REPLAY, RESTART, CRASH)


def forced_conditions() -> frozenset[str]:
    """Return the words in the variable ``FLINK_AGENTS_TEST_MODE``.

    Raises:
        OptionError: A word is unknown.
    """
    words = frozenset(word.strip() for word in os.environ.get(TEST_MODE_VARIABLE, "").split(",")) - {""}
    unknown = sorted(words.difference(WORDS))
    if unknown:
        raise OptionError(
            f"the environment variable {TEST_MODE_VARIABLE} has an unknown word",
            expected=f"words out of {', '.join(WORDS)}, with commas between them",
            found=", ".join(unknown),
            fix=f"write {TEST_MODE_VARIABLE}={','.join(WORDS)}, or remove it",
        )
    return words
