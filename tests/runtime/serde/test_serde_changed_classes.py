"""Stored values whose class has changed: each fits, is upgraded, or is refused by class, field and fix."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from changing_classes import (
    CHANGES,
    HEADS,
    KINDS,
    MODULE,
    OLD,
    OTHER,
    UPGRADES,
    define,
    edit,
    new,
    plain,
    versions,
)

from flink_agents import upgrades
from flink_agents.api.errors import (
    DuplicateNameError,
    StateError,
    UnknownTypeNameError,
    UpgradeFailedError,
    ValueChangedError,
    WrongArgumentError,
)
from flink_agents.runtime.serde.codec import ValueCodec
from tests.suite.tables import each_case

CODEC = ValueCodec()

THING = {"name": "tea", "count": 3}

FITS: dict[tuple[str, str], Any] = {
    ("dataclass", "added with default"): {**THING, "price": 1.5},
    ("model", "added with default"): {**THING, "price": 1.5},
    ("named tuple", "added with default"): {**THING, "price": 1.5},
    # As pydantic drops what a model does not declare.
    ("model", "removed"): {"name": "tea"},
    **{(kind, "retyped so that it fits"): {"name": "tea", "count": 3.0} for kind in HEADS},
    **{
        ("enum", change): "TEA"
        for change in ("added required", "added with default", "retyped", "retyped so that it fits")
    },
    ("enum", "renamed with default"): "BLACK_TEA",  # the old name is an alias
}

WRONG_FIELD = {
    "added required": "price",
    "removed": "count",
    "renamed": "count",
    "renamed with default": "count",
    "retyped": "count",
}


@pytest.fixture(autouse=True)
def edited() -> Iterator[None]:
    with versions():
        yield


def stored(kind: str) -> bytes:
    return CODEC.encode({"nested": [define(MODULE, OLD[kind]).make()]})


def read(data: bytes) -> Any:
    return CODEC.decode(data)["nested"][0]


@each_case("kind", KINDS)
@each_case("change", CHANGES)
def test_a_changed_class_takes_its_old_values_or_says_what_does_not_fit(kind: str, change: str) -> None:
    data = stored(kind)
    edit(kind, change)
    if (kind, change) in FITS:
        assert plain(read(data)) == FITS[kind, change]
        return
    with pytest.raises(StateError) as caught:
        read(data)
    text = str(caught.value)
    assert f"{MODULE}:Thing" in text and "upgrades" in (caught.value.fix or "")
    if change == "moved":
        assert type(caught.value) is UnknownTypeNameError
        return
    assert isinstance(caught.value, ValueChangedError)
    assert caught.value.type_name == f"{MODULE}:Thing"
    assert str(pickle.loads(pickle.dumps(caught.value))) == text
    if kind == "enum":
        assert "TEA" in text or change == "became another kind"
    elif change in WRONG_FIELD:
        assert WRONG_FIELD[change] in text
        assert caught.value.fields


@each_case("kind", HEADS)
@each_case("change", UPGRADES)
def test_a_function_upgrades_what_does_not_fit(kind: str, change: str) -> None:
    data = stored(kind)
    upgrade = f"@upgrades('{MODULE}:Thing')\ndef upgrade(fields):\n    return {UPGRADES[change]}\n"
    if change == "became another kind":
        upgrade = upgrade.replace("Thing({'name': 'tea'})", "Thing['RUM']")
    upgraded_class = edit(kind, change, upgrade).Thing
    value = read(data)
    if (kind, change) in FITS:
        assert plain(value) == FITS[kind, change]
    assert type(value) is upgraded_class
    again = CODEC.encode(value)
    assert plain(CODEC.decode(again)) == plain(value)


@each_case("kind", KINDS)
def test_a_class_takes_over_the_values_of_one_that_was_moved(kind: str) -> None:
    data = stored(kind)
    source = new(kind, "moved")
    define(MODULE, "")
    moved = define(OTHER, f"@upgrades('{MODULE}:Thing')\n{source}")
    value = read(data)
    assert type(value) is moved.Thing
    assert plain(value) == plain(moved.make())
    assert f"{OTHER}:Thing".encode() in CODEC.encode(value)


@each_case(("then", "now"), [(then, now) for then in HEADS for now in HEADS if then != now])
def test_fields_go_from_one_kind_to_another(then: str, now: str) -> None:
    data = stored(then)
    module = define(MODULE, OLD[now])
    assert plain(read(data)) == plain(module.make())
    assert type(read(data)) is module.Thing


@each_case("kind", KINDS)
def test_an_upgrade_is_not_asked_about_values_that_fit(kind: str) -> None:
    source = f"@upgrades('{MODULE}:Thing')\ndef upgrade(fields):\n    raise AssertionError\n\n{OLD[kind]}"
    value = define(MODULE, source).make()
    assert CODEC.decode(CODEC.encode(value)) == value


def test_an_enum_is_upgraded_from_the_name_of_its_member() -> None:
    data = stored("enum")
    upgrade = f"@upgrades('{MODULE}:Thing')\ndef upgrade(name):\n    return Thing[f'BLACK_{{name}}']\n"
    edit("enum", "renamed", upgrade)
    assert read(data).name == "BLACK_TEA"


def test_nested_values_are_upgraded_first() -> None:
    old = f"@dataclass\nclass Inner:\n    number: int\n\n{HEADS['model']}\n    inner: Inner\n"
    module = define(MODULE, old)
    data = CODEC.encode(module.Thing(inner=module.Inner(3)))
    define(
        MODULE,
        "@dataclass\nclass Inner:\n    text: str\n\n"
        f"@upgrades('{MODULE}:Inner')\ndef inner(fields):\n    return Inner(text=str(fields['number']))\n\n"
        f"{HEADS['model']}\n    inner: Inner\n    more: int = 0\n",
    )
    assert CODEC.decode(data).inner.text == "3"


@each_case(
    ("body", "text"), [("return None", "None"), ("raise KeyError('x')", "KeyError"), ("1/0", "ZeroDivision")]
)
def test_an_upgrade_that_fails_names_the_class_and_what_is_stored(body: str, text: str) -> None:
    data = stored("dataclass")
    edit("dataclass", "renamed", f"@upgrades('{MODULE}:Thing')\ndef upgrade(fields):\n    {body}\n")
    with pytest.raises(UpgradeFailedError) as caught:
        read(data)
    assert f"{MODULE}:Thing" in str(caught.value) and text in str(caught.value)


def test_a_model_that_names_its_old_field_as_an_alias_takes_it() -> None:
    data = stored("model")
    module = define(
        MODULE,
        "from pydantic import AliasChoices, Field\n"
        f"{HEADS['model']}\n    name: str\n"
        "    number: int = Field(0, validation_alias=AliasChoices('count'))\n",
    )
    assert read(data) == module.Thing(name="tea", count=3)


def test_a_field_that_is_retyped_is_checked_and_the_others_are_left_alone() -> None:
    source = "@dataclass\nclass Thing:\n    name: str\n    count: {}\n    more: list = None\n"
    data = CODEC.encode(define(MODULE, source.format("int")).Thing(7, 3))
    module = define(MODULE, source.format("float"))
    assert CODEC.decode(data) == module.Thing(7, 3.0, None)


@each_case(
    ("then", "now"),
    [("int", "'int'"), ("list[int]", "'list[int]'"), ("Inner", "'Inner'"), ("int | None", "'int | None'")],
)
def test_the_same_type_written_in_another_way_is_no_change(then: str, now: str) -> None:
    source = "class Inner(Enum):\n    A = 1\n\n@dataclass\nclass Thing:\n    name: {}\n"
    data = CODEC.encode(define(MODULE, source.format(then)).Thing("wrong"))
    define(MODULE, source.format(now))
    assert CODEC.decode(data).name == "wrong"


def test_what_upgrades_takes() -> None:
    wrong: Any
    for wrong in ((), ("Order",), ("a:b:c",), (3,), (":Order",)):
        with pytest.raises(WrongArgumentError):
            upgrades(*wrong)
    with pytest.raises(WrongArgumentError):
        upgrades("shop:Order")(3)  # type: ignore[type-var]

    @upgrades("edited_shop:Once")
    def first_upgrade(fields: Any) -> Any:
        return fields

    def two(fields: Any) -> Any:
        return fields

    upgrades("edited_shop:Once")(first_upgrade)
    with pytest.raises(DuplicateNameError, match="two upgrades"):
        upgrades("edited_shop:Once")(two)
