"""Classes of keys in a module that a job's worker has not loaded when the first signal comes."""

from __future__ import annotations

from enum import Enum


class Region(Enum):
    NORTH = "north"
