"""Java matches the topics that a Python pattern matches, with its flags, or it is refused by name."""

from __future__ import annotations

import random
import re
import sys
from typing import Any

import pytest

from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka.subscription.patterns import java_pattern
from tests.suite.tables import each_case

TOPICS = [
    "orders",
    "ORDERS",
    "Orders-1",
    "orders-eu",
    "orders.dead",
    "a",
    "b",
    "ab",
    "aab",
    "aa",
    "abab",
    "a-b",
]
TOPICS += ["a&b", "_x", "x_1", "1", "42", "orders-1-1", "z.z", "&", "A", "orders-dead", "x", "aaa", "a.b-c_d"]

PATTERNS: list[Any] = [
    *(
        "orders",
        "orders-.*",
        r"orders-\d+",
        "(?i)orders-.*",
        "(?i:ORDERS)-eu",
        "[a-c]+",
        "[^a-c]+",
        r"[\w.]+",
    ),
    *(
        "a|b",
        "(a|b)+",
        "(?:ab)+",
        "a{2}",
        "a{,2}b?",
        "a{1,}",
        "a+?b*?",
        "(?P<x>a)(?P=x)",
        r"(ab)\1",
        r"(a)\g" * 0,
    ),
    *(
        "orders(?!.*dead).*",
        "(?!orders).*",
        "(?=a)ab",
        ".*(?<=eu)",
        ".*(?<!dead)",
        "^a$",
        r"\Aa\Z",
        r"\ba\b-.*",
    ),
    *(
        "[a&&b]+",
        "[[ab]+",
        "[]a]",
        "[^]a]",
        "[-a]+",
        "[a-]+",
        r"[\]\-a]+",
        "a.b",
        r"a\.b.*",
        "(?s:.)+",
        "(?-i:a)b",
    ),
    *(
        r"\x61+",
        r"\u0061",
        "a++",
        "(?>a+)b",
        "a*+b",
        "",
        "()",
        "(|a)",
        "(?#comment)a",
        r"\D+",
        r"\W",
        r"\S+",
        "é|a",
    ),
    *(
        "{a",
        "a{b",
        "}",
        "a{1",
        r"\Borders",
        r"\&",
        "#",
        "(?x) a b # both",
        "[ a]b",
        "(?m)^orders$",
        "[!-~]+",
        "😀|a",
    ),
]
OPTIONAL = "(?:{})?+" if sys.version_info >= (3, 11, 5) else "(?:{})?"
"""Before 3.11.5, Python forgets matches inside of possessive quantifiers (gh-101955 and gh-106052)."""

FLAGS = [0, re.IGNORECASE, re.VERBOSE, re.IGNORECASE | re.VERBOSE, re.MULTILINE | re.DOTALL, re.ASCII]


def compiled() -> list[re.Pattern[str]]:
    patterns: list[re.Pattern[str]] = []
    for pattern in PATTERNS:
        for flags in FLAGS:
            try:
                patterns.append(re.compile(pattern, flags))
            except re.error:
                # Comments of VERBOSE may leave a group open.
                continue
    return patterns


def drawn(rng: random.Random, depth: int = 0) -> str:
    """Return a pattern of random parts."""
    parts = [
        "a",
        "b",
        "A",
        "-",
        r"\.",
        ".",
        "[ab]",
        "[^a]",
        r"\w",
        r"\d",
        "[a&&b]",
        "1",
        r"\b",
        "^",
        "$",
        r"\x61",
    ]
    if depth < 3 and rng.random() < 0.7:
        inner = "".join(drawn(rng, depth + 1) for _ in range(rng.randint(1, 3)))
        kind = rng.choice(
            ["({})", "(?:{})", "(?i:{})", "(?:{}|a)", "(?={})", "(?!{})", "(?:{})*", "(?:{})+?", "{}"]
        )
        kind = rng.choice([kind, "(?:{}){{1,2}}", OPTIONAL, "(?>{})", "(?-i:{})"])
        return kind.format(inner)
    return rng.choice(parts)


@pytest.mark.own_conditions
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_the_translation_matches_the_same_topics() -> None:
    """It is a pattern of Python as well."""
    for pattern in compiled():
        translated = re.compile(java_pattern(pattern))
        for topic in TOPICS:
            assert bool(translated.fullmatch(topic)) == bool(pattern.fullmatch(topic)), (
                pattern,
                translated,
                topic,
            )


@pytest.mark.own_conditions
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_random_patterns_match_the_same_topics() -> None:
    rng = random.Random(40)
    for _ in range(1500):
        pattern = re.compile("".join(drawn(rng) for _ in range(rng.randint(1, 4))), rng.choice(FLAGS))
        translated = re.compile(java_pattern(pattern))
        for topic in TOPICS:
            assert bool(translated.fullmatch(topic)) == bool(pattern.fullmatch(topic)), (
                pattern,
                translated,
                topic,
            )


@pytest.mark.minicluster
@pytest.mark.own_conditions
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_java_matches_the_same_topics() -> None:
    from pyflink.java_gateway import get_gateway

    jvm: Any = get_gateway().jvm
    matching = jvm.java.util.regex.Pattern
    rng = random.Random(41)
    drawn_patterns = [re.compile("".join(drawn(rng) for _ in range(3)), rng.choice(FLAGS)) for _ in range(60)]
    for pattern in [*compiled(), *drawn_patterns]:
        translated = matching.compile(java_pattern(pattern))
        for topic in TOPICS:
            assert translated.matcher(topic).matches() == bool(pattern.fullmatch(topic)), (pattern, topic)


@pytest.mark.own_conditions
@each_case("pattern", ["(a)?(?(1)b|c)", "(?P<x>a)?(?(x)b)", "((a)?(?(2)b|c))+"])
def test_a_condition_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(KafkaStreamError, match="conditions") as raised:
        java_pattern(re.compile(pattern))
    assert raised.value.found == pattern
