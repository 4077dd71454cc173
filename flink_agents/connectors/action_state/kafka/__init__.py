"""The store ``kafka``: journals in a topic, for jobs whose subtasks run on many machines.

``layout`` defines the format, ``topics`` the two topics, ``claims`` who may append, ``markers`` the offset
from which a key is read, ``scan`` reads partitions into ``index``, ``writer`` appends, ``garbage`` finds what
can be removed, ``remembered`` chooses the removals to keep, and ``store`` puts them together.
``docs/design/kafka.md`` has the reasons.
"""

from flink_agents.foreign_imports import import_quietly

import_quietly("kafka")
