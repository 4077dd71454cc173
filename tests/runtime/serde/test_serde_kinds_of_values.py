"""Each value comes back as it was, or is refused by name: none changes its type or its time zone silently."""

from __future__ import annotations

import re
import time as clock
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import pytz
from dateutil import parser, tz
from pydantic import (
    AnyUrl,
    AwareDatetime,
    BaseModel,
    ByteSize,
    FileUrl,
    HttpUrl,
    NameEmail,
    PostgresDsn,
    RedisDsn,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
)
from pydantic_core import MultiHostUrl, Url
from pyflink.common import Row

from flink_agents.api.errors import UnserializableValueError
from flink_agents.runtime.serde.canonical import digest_of, digest_of_form
from flink_agents.runtime.serde.codec import ValueCodec
from tests.suite.tables import each_case

BERLIN = pytz.timezone("Europe/Berlin")
BEFORE = datetime(2024, 10, 26, 12)
AFTER = datetime(2024, 10, 27, 2, 30)
"""The day before clocks change, and a time that they show twice on the next day."""

AWARE = TypeAdapter[datetime](AwareDatetime)
NAMED = timezone(timedelta(hours=2), "CEST")

ZONES: dict[str, Any] = {
    "none": BEFORE,
    "utc": BEFORE.replace(tzinfo=timezone.utc),  # noqa: UP017 - one of the spellings
    "offset": BEFORE.replace(tzinfo=timezone(timedelta(hours=-3, seconds=7, microseconds=5))),
    "named offset": BEFORE.replace(tzinfo=NAMED),
    "odd name": BEFORE.replace(tzinfo=timezone(timedelta(0), "a|b:c é")),
    "named utc": BEFORE.replace(tzinfo=timezone(timedelta(0), "Z")),
    "zone": BEFORE.replace(tzinfo=ZoneInfo("Europe/Berlin")),
    "zone, second time": AFTER.replace(tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    "fold": AFTER.replace(fold=1),
    "pytz": BERLIN.localize(BEFORE),
    "pytz, winter": BERLIN.localize(datetime(2024, 12, 1)),
    "pytz, first time": BERLIN.localize(AFTER, is_dst=True),
    "pytz, second time": BERLIN.localize(AFTER, is_dst=False),
    "pytz utc": BEFORE.replace(tzinfo=pytz.utc),
    "pytz offset": BEFORE.replace(tzinfo=pytz.FixedOffset(90)),
    "pytz, an hour that clocks skip": BERLIN.localize(datetime(2024, 3, 31, 2, 30)),
    "pytz, not localized": BEFORE.replace(tzinfo=BERLIN),
    "pytz without changes": pytz.timezone("Etc/GMT+5").localize(BEFORE),
    "Pydantic, utc": AWARE.validate_python("2024-10-26T12:00:00Z"),
    "Pydantic, offset": AWARE.validate_python("2024-10-26T12:00:00-05:30"),
    "Pydantic, time": TypeAdapter(time).validate_python("12:30:00+02:00"),
    "an empty name": BEFORE.replace(tzinfo=timezone(timedelta(0), "")),
    "dateutil, file of utc": BEFORE.replace(tzinfo=tz.gettz("UTC")),
    "dateutil, parsed": parser.parse("2024-10-26T12:00:00Z"),
    "time, dateutil": time(12, 30, tzinfo=tz.tzoffset("X", 3600)),
    "time, dateutil utc": time(12, 30, tzinfo=tz.tzutc()),
    "time, pytz utc": time(12, 30, tzinfo=pytz.utc),
    "time, pytz offset": time(12, 30, tzinfo=pytz.FixedOffset(90)),
    "dateutil": BEFORE.replace(tzinfo=tz.gettz("Europe/Berlin")),
    "dateutil, second time": AFTER.replace(tzinfo=tz.gettz("Europe/Berlin"), fold=1),
    "dateutil utc": BEFORE.replace(tzinfo=tz.tzutc()),
    "dateutil offset": BEFORE.replace(tzinfo=tz.tzoffset("X", 3600)),
    "dateutil offset without a name": BEFORE.replace(tzinfo=tz.tzoffset(None, 3600)),
    "time": time(12, 30),
    "time, fold": time(12, 30, fold=1),
    "time, offset": time(12, 30, tzinfo=timezone(timedelta(hours=2))),
    "time, named offset": time(12, 30, tzinfo=NAMED),
    "time, zone": time(12, 30, tzinfo=ZoneInfo("Europe/Berlin")),
}


class OwnZone(tzinfo):
    """An hour, and two hours from July on."""

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None if dt is None else timedelta(hours=1 if dt.month < 7 else 2)

    def dst(self, dt: datetime | None) -> timedelta | None:
        return timedelta(0)

    def tzname(self, dt: datetime | None) -> str | None:
        return "own"


class OwnZoneInfo(ZoneInfo):
    pass


with (
    open("/usr/share/zoneinfo/Europe/Berlin", "rb")
    if Path("/usr/share/zoneinfo").exists()
    else open(next(Path(pytz.__file__).parent.glob("zoneinfo/Europe/Berlin")), "rb") as file
):
    WITHOUT_KEY = ZoneInfo.from_file(file)

REFUSED_ZONES: dict[str, Any] = {
    "own": BEFORE.replace(tzinfo=OwnZone()),
    "of a text": BEFORE.replace(tzinfo=tz.tzstr("CET-1CEST")),
    "without a key": BEFORE.replace(tzinfo=WITHOUT_KEY),
    "another class": BEFORE.replace(tzinfo=OwnZoneInfo("Europe/Berlin")),
    "time, pytz": time(12, tzinfo=BERLIN),
    "time, own": time(12, tzinfo=OwnZone()),
}


def read(value: Any) -> Any:
    codec = ValueCodec()
    return codec.decode(codec.encode(value))


@each_case("name", ZONES)
def test_a_time_zone_is_kept(name: str) -> None:
    value = ZONES[name]
    again: Any = read([{"a": value}])[0]["a"]
    assert type(again) is type(value) and again == value and again.fold == value.fold
    assert again.isoformat() == value.isoformat() and again.tzname() == value.tzname()
    assert type(again.tzinfo) is type(value.tzinfo) and repr(again.tzinfo) == repr(value.tzinfo)
    if isinstance(value, datetime):
        # The next day, after a change of clocks.
        later = value + timedelta(days=1)
        assert (again + timedelta(days=1)).isoformat() == later.isoformat()
        zone: Any = value.tzinfo
        if hasattr(zone, "normalize"):
            assert again.tzinfo.normalize(again + timedelta(days=1)) == zone.normalize(later)
    assert digest_of(ValueCodec(), again) == digest_of(ValueCodec(), value)


@each_case("name", REFUSED_ZONES)
def test_another_time_zone_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnserializableValueError, match="time zone") as caught:
        read({"at": REFUSED_ZONES[name]})
    assert "at ['at']" in str(caught.value) and "zoneinfo.ZoneInfo" in str(caught.value)


@each_case("zone", ["UTC", "CET-1CEST"])
def test_the_zone_of_the_machine_is_kept_where_it_is_utc(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    clock.tzset()
    try:
        value = BEFORE.replace(tzinfo=tz.tzlocal())
        if zone == "UTC":
            data = ValueCodec().encode(value)
            assert type(read(value).tzinfo) is tz.tzlocal
            monkeypatch.setenv("TZ", "CET-1CEST")
            clock.tzset()
            assert ValueCodec().decode(data) == value
        else:
            with pytest.raises(UnserializableValueError, match="tzlocal"):
                read(value)
    finally:
        monkeypatch.undo()
        clock.tzset()


# -- kinds of values ----------------------------------------------------------------------------


class Text(str):
    pass


class Number(int):
    pass


class Entries(dict[str, int]):
    pass


class Items(list[int]):
    pass


class Pair(tuple[int, int]):
    pass


class Members(set[int]):
    pass


class Moment(datetime):
    pass


class Day(date):
    pass


class Amount(Decimal):
    pass


class Queue(deque[int]):
    pass


class OwnPath(PurePosixPath):
    pass


class OwnUrl(AnyUrl):
    pass


class Model(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    data: Any


@dataclass
class Box:
    data: Any


BOX: Any = Box


class Named(NamedTuple):
    data: Any


class Kind(Enum):
    BIG = b"1"


KEPT: list[Any] = [
    b"a", "é\u0104", -0.0, float("inf"), 10**40, Decimal("-0.10"), (), set(), frozenset({1}), {}, [],
    timedelta(days=-1, microseconds=3), UUID(int=3), Kind.BIG, date(1, 1, 1), Decimal("Infinity"),
    Box(b"a"), Model(data=b"a"), Named(b"a"), [b"\xc4", "\u0104"], {b"a": (b"b",)}, Row(b"a", "b"),
    deque([1, (2,)]), deque([1, 2], 3), defaultdict(int, a=1), defaultdict(list, {1: [2]}), defaultdict(None),
    defaultdict(BOX), Counter("aab"), OrderedDict(b=1, a=2), 1j, complex(-0.0, 2), Fraction(1, 3), Path("a"),
    Path(), PureWindowsPath("C:/a"), PurePosixPath("/a"), re.compile("a", re.I), re.compile(b"a", re.M),
    ZoneInfo("Europe/Berlin"), *map(ip_address, ("1.2.3.4", "::1", "fe80::1%eth0")),
    ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"), ip_interface("10.1.2.3/8"), ip_interface("::1/64"),
    SecretStr("a"), SecretBytes(b"a"), Secret[int](3), ByteSize(3), NameEmail("a", "a@b.de"),
    AnyUrl("a://b"), HttpUrl("http://b/\u00e9?a=b#c"), FileUrl("file:///a"), OwnUrl("a://b"), Url("a://b/c"),
    PostgresDsn("postgres://a:b@c:1,d:2/e"), RedisDsn("redis://a"), MultiHostUrl("a://b,c"),
]  # fmt: skip

REFUSED: list[Any] = [
    bytearray(b"a"), memoryview(b"a"), Text("a"), Number(3), Entries(a=1), Items([1]), Pair((1, 2)),
    Members({1}), Moment(2024, 1, 1), Day(2024, 1, 1), Amount(1), Queue([1]), OwnPath("a"),
    UserDict(a=1), MappingProxyType({}), range(3), SimpleNamespace(a=1), WITHOUT_KEY,
    defaultdict(lambda: 1), slice(1), ..., NotImplemented,
    int, len, iter([1]), np.float64(1), np.int64(1), np.bool_(True),
    np.str_("a"), np.array([1]), np.datetime64("2024-01-01"), pd.Timestamp("2024-01-01"), pd.NaT, pd.NA,
    pd.Series([1]), {1: 2}.keys(), {1: 2}.values(),
]  # fmt: skip


@each_case("value", KEPT, ids=repr)
def test_a_value_keeps_its_type(value: Any) -> None:
    again = read(value)
    assert type(again) is type(value) and again == value and repr(again) == repr(value)


HOLDERS: dict[str, Any] = {
    "plain": lambda value: value,
    "list": lambda value: [value],
    "dict": lambda value: {"a": [value]},
    "tuple": lambda value: (value,),
    "dataclass": Box,
    "named tuple": Named,
    "model": lambda value: Model(data=value),
    "nested": lambda value: Box([{"a": value}]),
    "row": Row,
}


@each_case("holder", HOLDERS)
@each_case("value", REFUSED, ids=lambda value: type(value).__name__)
def test_a_value_of_another_type_is_refused_by_name(value: Any, holder: str) -> None:
    with pytest.raises(UnserializableValueError) as caught:
        read(HOLDERS[holder](value))
    assert type(value).__name__ in str(caught.value)
    assert caught.value.fix


@each_case(
    ("value", "path"),
    [({"a": [bytearray(b"x")]}, "at ['a'][0]"), (Box({"b": memoryview(b"x")}), ".data['b']")],
)
def test_the_place_of_other_bytes_is_named(value: Any, path: str) -> None:
    with pytest.raises(UnserializableValueError) as caught:
        read(value)
    assert path in str(caught.value)


def test_a_tuple_has_an_order_and_the_parts_in_it_may_have_none() -> None:
    """Its digest is that of its bytes, as that of a list is: sorting costs ten times as much."""
    codec = ValueCodec()
    plain = (17, (0.0, "\x81\x82"))
    assert digest_of(codec, plain) == digest_of_form(b"=" + codec.encode(plain)[1:])
    assert digest_of(codec, plain) != digest_of(codec, [17, [0.0, "\x81\x82"]])
    assert digest_of(codec, ({"a": 1, "b": 2},)) == digest_of(codec, ({"b": 2, "a": 1},))
    assert digest_of(codec, ({(1,): 2},)) != digest_of(codec, ({(2,): 2},))
    assert digest_of(codec, ({1, "one"},)) == digest_of(codec, ({"one", 1},))
