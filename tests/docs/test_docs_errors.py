"""``docs/errors.md`` has one section for each exception, where the error's own text points."""

from __future__ import annotations

import re
from typing import Any

from docs_pages import anchors, prose

from flink_agents.api import errors
from flink_agents.api.errors import AgentsError
from tests.suite.tables import each

PAGE = "docs/errors.md"
CLASSES: list[type[AgentsError]] = sorted(
    (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, AgentsError)),
    key=lambda cls: cls.code,
)
FAILED_ACTION = {
    "agent": "Shop",
    "action": "check",
    "key": 1,
    "sequence_number": 0,
    "event": "_input_event",
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "ActionFailedError": FAILED_ACTION,
    "RetriesExhaustedError": FAILED_ACTION,
    "ActionInterruptedError": FAILED_ACTION,
}


def sections() -> dict[str, str]:
    """Text below each heading that is a code."""
    parts = re.split(r"^### (FA\d{4})$", prose(PAGE), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_sections_are_the_classes() -> None:
    assert len(CLASSES) > 30
    assert list(sections()) == [cls.code for cls in CLASSES]


@each("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_section_describes_the_class(cls: type[AgentsError]) -> None:
    text = sections()[cls.code]
    parent = cls.__bases__[0].__name__
    assert text.lstrip().startswith(f"**{cls.__name__}** ({parent})")
    for label in ("Meaning", "Cause", "Fix"):
        assert re.search(rf"^- {label}: \S.{{20,}}", text, re.MULTILINE), f"{cls.code} has no {label}"


@each("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_link_in_the_text_leads_to_the_section(cls: type[AgentsError]) -> None:
    text = str(cls("it failed", **ARGUMENTS.get(cls.__name__, {})))
    found = re.search(rf"\[{cls.code}\] (?P<page>\S+)#(?P<anchor>\S+)$", text, re.MULTILINE)
    assert found is not None
    assert found["page"] == PAGE
    assert found["anchor"] in anchors(PAGE)
