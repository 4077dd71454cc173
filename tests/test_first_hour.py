"""How ``scripts/first-hour`` reads its page and judges what is printed; CI executes it as a whole."""

from __future__ import annotations

import pytest

from tests import first_hour
from tests.first_hour import PAGE, DifferentOutput, Step, check, steps, with_free_ports

TEXT = """# A page

```shell
cd there
```

```text
... lines
```

prose

```py
# job.py
print(1)
```

```shell
flink-agents version
```

prose

```text
not what it prints
```
"""


def test_blocks_of_a_page() -> None:
    assert list(steps(TEXT)) == [
        Step("cd there\n", expected=("... lines",)),
        Step("# job.py\nprint(1)\n", file="job.py"),
        Step("flink-agents version\n"),
    ]


def test_lines_are_expected_in_order_with_others_between() -> None:
    check(["a ...", "c"], "noise\na 1\nb\nc\n")
    for expected in (["c", "a ..."], ["a"], ["a 1", "a 1"]):
        with pytest.raises(DifferentOutput, match="no line like"):
            check(expected, "noise\na 1\nb\nc\n")


def test_ports_are_replaced_everywhere() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(page.count(port) > 2 for port in first_hour.PORTS)
    assert not any(port in with_free_ports(page) for port in first_hour.PORTS)


def test_the_page_does_the_whole_way() -> None:
    page_steps = list(steps(PAGE.read_text(encoding="utf-8")))
    commands = "".join(step.text for step in page_steps if step.file is None)
    for words in (
        "flink-agents new",
        "python -m pytest",
        "python job.py",
        "kafka start",
        "cluster start",
        "flink-agents run",
        "kill -9",
        "flink-agents stop orders > ",
        '--savepoint "$(cat',
        "cluster stop",
        "kafka stop",
    ):
        assert words in commands
    assert len([step for step in page_steps if step.file is None and not step.expected]) <= 1
