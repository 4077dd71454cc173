"""The store ``kafka``: journals in a topic, for jobs whose subtasks run on many machines.

``layout`` is the format, ``topics`` the two topics, ``claims`` who may append, ``markers`` from where on a
key is read, ``scan`` reads partitions into ``index``, ``writer`` appends, ``garbage`` finds what can be
removed, ``remembered`` says which removals stay, and ``store`` puts them together.
``docs/design/kafka.md`` says why it is built so.
"""
