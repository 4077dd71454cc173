"""Executes plans: an engine-free core, and its adapter to PyFlink's ``KeyedProcessFunction``.

``operator``, ``environment`` and the modules that they use import PyFlink; everything else is
the core, which ``flink_agents.testing`` drives without a JVM.
"""
