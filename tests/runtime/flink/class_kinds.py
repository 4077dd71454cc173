"""Kinds of classes that a main script can define, and scripts that use each of them.

Each kind is the source of a function ``check``, which fails if the class is not what its source says.
``read`` returns a value as state, events and the journal restore it.
"""

# ruff: noqa: E501 - lines of sources

from __future__ import annotations

import pickle
from typing import Any

from flink_agents.runtime.serde.codec import ValueCodec


def read(value: Any) -> Any:
    """Return ``value`` after it was stored."""
    codec = ValueCodec()
    again = codec.decode(codec.encode(value))
    assert type(again) is type(value) and again == value, again
    return again


def moved(value: Any) -> Any:
    """Return ``value`` after it was pickled, as PyFlink moves records."""
    again = pickle.loads(pickle.dumps(value))
    assert type(again) is type(value), again
    return again


_DATACLASS = "from dataclasses import *\nfrom typing import *\n"
_ENUM = "from enum import *\n"
_PYDANTIC = (
    "from typing import *\nfrom pydantic import BaseModel, Field, PrivateAttr, RootModel, field_validator\n"
)
_READ = "from tests.runtime.flink.class_kinds import read, moved\n"


def _kind(head: str, body: str, *checks: str) -> str:
    lines = "\n    ".join(("from tests.runtime.flink.class_kinds import moved, read", *checks))
    return f"{head}{body}\ndef check():\n    {lines}\n"


STORED: dict[str, str] = {
    "dataclass": _kind(
        _DATACLASS,
        "@dataclass\nclass Order:\n    id: str\n    euros: int = 1\n",
        "assert [one.name for one in fields(Order)] == ['id', 'euros']",
        "assert fields(Order)[0].default is MISSING",
        "assert asdict(read(Order('a', 2))) == {'id': 'a', 'euros': 2}",
        "assert replace(moved(Order('a')), euros=3).euros == 3",
    ),
    "slots": _kind(
        _DATACLASS,
        "@dataclass(slots=True)\nclass Order:\n    id: str\n    euros: int = 1\n",
        "assert read(Order('a', 2)).euros == 2",
        "assert not hasattr(Order('a'), '__dict__')",
    ),
    "frozen": _kind(
        _DATACLASS,
        "@dataclass(frozen=True, order=True)\nclass Order:\n    id: str\n    euros: int = 1\n",
        "assert len({Order('a'), read(Order('a'))}) == 1",
        "assert Order('a') < Order('b')",
    ),
    "frozen slots": _kind(
        _DATACLASS,
        "@dataclass(frozen=True, slots=True)\nclass Order:\n    id: str\n    euros: int = 1\n",
        "assert len({Order('a'), moved(read(Order('a')))}) == 1",
    ),
    "keywords": _kind(
        _DATACLASS,
        "@dataclass\nclass Order:\n    id: str\n    _: KW_ONLY\n    euros: int\n    tax: int = 2\n",
        "assert fields(Order)[1].kw_only",
        "assert read(Order('a', euros=2)).tax == 2",
    ),
    "inherited": _kind(
        _DATACLASS,
        "@dataclass\nclass Base:\n    id: str\n@dataclass\nclass Order(Base):\n    euros: int = 1\n"
        "    def twice(self):\n        return super().__repr__() + str(self.euros)\n",
        "assert isinstance(read(Order('a', 2)), Base)",
        "assert Order('a', 2).twice() == \"Order(id='a')2\"",
    ),
    "factory": _kind(
        _DATACLASS,
        "@dataclass\nclass Order:\n    items: list = field(default_factory=list, metadata={'unit': 'kg'})\n",
        "assert read(Order()).items == []",
        "assert fields(Order)[0].metadata['unit'] == 'kg'",
    ),
    "class variable": _kind(
        _DATACLASS,
        "@dataclass\nclass Order:\n    id: str\n    rate: ClassVar[int] = 7\n",
        "assert len(fields(Order)) == 1 and read(Order('a')).rate == 7",
    ),
    "init variable": _kind(
        _DATACLASS,
        "@dataclass\nclass Order:\n    id: str\n    tax: InitVar[int] = 2\n    total: int = field(init=False, default=0)\n"
        "    def __post_init__(self, tax):\n        self.total = self.total or tax\n",
        "assert read(Order('a', 5)).total == 5",
        "assert [one.name for one in fields(Order)] == ['id', 'total']",
    ),
    "generic dataclass": _kind(
        _DATACLASS,
        "T = TypeVar('T')\n@dataclass\nclass Order(Generic[T]):\n    item: T\n",
        "assert read(Order[int](3)).item == 3",
        "assert Order.__parameters__[0].__name__ == 'T'",
    ),
    "nested": _kind(
        _DATACLASS,
        "@dataclass\nclass Order:\n    @dataclass\n    class Line:\n        sku: str\n    lines: list\n",
        "assert read(Order([Order.Line('a')])).lines[0].sku == 'a'",
    ),
    "of each other": _kind(
        _DATACLASS,
        "@dataclass\nclass Line:\n    sku: str\n    def order(self):\n        return Order([self])\n"
        "@dataclass\nclass Order:\n    lines: list\n    def first(self) -> Line:\n        return Line(self.lines[0].sku)\n",
        "assert read(Order([Line('a')])).first() == Line('a')",
        "assert Line('b').order().first() == Line('b')",
    ),
    "pydantic dataclass": _kind(
        "from pydantic.dataclasses import dataclass\n",
        "@dataclass\nclass Order:\n    id: str\n    euros: int = 1\n",
        "assert read(Order('a', '2')).euros == 2",
    ),
    "model": _kind(
        _PYDANTIC,
        "class Line(BaseModel):\n    sku: str\nclass Order(BaseModel):\n    id: str = Field(alias='key')\n"
        "    lines: list[Line] = Field(default_factory=list)\n    _seen: int = PrivateAttr(3)\n"
        "    @field_validator('id')\n    @classmethod\n    def short(cls, id):\n        return id[:2]\n",
        "assert read(Order(key='abc', lines=[{'sku': 'x'}])).lines == [Line(sku='x')]",
        "assert Order(key='abc').id == 'ab' and Order(key='a')._seen == 3",
        "assert Order.model_json_schema()['properties']",
    ),
    "generic model": _kind(
        _PYDANTIC,
        "T = TypeVar('T')\nclass Order(BaseModel, Generic[T]):\n    item: T\nInts = Order[int]\n",
        "assert Ints(item='3').item == 3",
        "assert read(Order(item='3')).item == '3'",
    ),
    "inherited model": _kind(
        _PYDANTIC,
        "class Base(BaseModel):\n    id: str\nclass Order(Base):\n    euros: int = 1\n",
        "assert isinstance(moved(read(Order(id='a'))), Base)",
    ),
    "root model": _kind(
        _PYDANTIC, "class Order(RootModel[list[int]]):\n    pass\n", "assert read(Order([1])).root == [1]"
    ),
    "named tuple": _kind(
        "from typing import *\n",
        "class Order(NamedTuple):\n    id: str\n    euros: int = 1\n    def twice(self):\n        return 2 * self.euros\n",
        "assert read(Order('a')).twice() == 2 and Order._field_defaults == {'euros': 1}",
        "assert moved(Order('a'))._replace(id='b').id == 'b'",
    ),
    "old named tuple": _kind(
        "from collections import namedtuple\n",
        "Order = namedtuple('Order', 'id euros', defaults=[1])\n",
        "assert read(Order('a')).euros == 1",
    ),
    "enum": _kind(
        _ENUM,
        "class Kind(Enum):\n    BIG = 1\n    SMALL = auto()\n    def label(self):\n        return f'{self.name} {self.other().name}'\n"
        "    def other(self):\n        return Kind.SMALL if self is Kind.BIG else Kind.BIG\n",
        "assert read(Kind.BIG) is moved(Kind.BIG) is Kind(1) is Kind['BIG'] is Kind.BIG",
        "assert Kind.BIG.label() == 'BIG SMALL' and list(Kind) == [Kind.BIG, Kind.SMALL]",
    ),
    "enum alias": _kind(
        _ENUM,
        "class Kind(Enum):\n    BIG = 1\n    SMALL = 2\n    LARGE = 1\n    OLD = SMALL\n",
        "assert Kind['LARGE'] is Kind.LARGE is Kind.BIG and Kind['OLD'] is Kind.OLD is Kind.SMALL",
        "assert list(Kind.__members__) == ['BIG', 'SMALL', 'LARGE', 'OLD'] and len(Kind) == 2",
        "assert read(Kind.LARGE) is Kind.BIG",
    ),
    "string enum": _kind(
        _ENUM,
        "class Kind(StrEnum):\n    BIG = auto()\n    LARGE = 'big'\n",
        "assert read(Kind.BIG) == 'big' == str(Kind.BIG) and Kind['LARGE'] is Kind.BIG",
    ),
    "mixed-in string": _kind(
        _ENUM,
        "class Kind(str, Enum):\n    BIG = 'b'\n    LARGE = 'b'\n",
        "assert read(Kind.BIG) == 'b' and Kind['LARGE'] is Kind.BIG and Kind.BIG.upper() == 'B'",
    ),
    "integer enum": _kind(
        _ENUM,
        "class Kind(IntEnum):\n    BIG = 1\n    SMALL = 2\n    LARGE = 1\n",
        "assert read(Kind.BIG) == 1 and Kind.SMALL > Kind.BIG and Kind(1) is Kind['LARGE']",
    ),
    "flag": _kind(
        _ENUM,
        "class Kind(Flag):\n    A = auto()\n    B = auto()\n    BOTH = A | B\n    NONE = 0\n",
        "assert Kind.A | Kind.B is Kind.BOTH and read(Kind.BOTH) is Kind.BOTH",
        "assert Kind(0) is Kind.NONE and list(Kind) == [Kind.A, Kind.B] and list(Kind.BOTH) == [Kind.A, Kind.B]",
        "assert ~Kind.A is Kind.B and Kind['BOTH'] is Kind.BOTH",
    ),
    "integer flag": _kind(
        _ENUM,
        "class Kind(IntFlag):\n    A = 1\n    B = 2\n    BOTH = 3\n    FIRST = 1\n",
        "assert read(Kind.A | Kind.B) is Kind.BOTH and Kind.FIRST is Kind.A",
        "assert read(Kind.A | 8) == 9 and Kind(3) is Kind.BOTH",
    ),
    "flag with a boundary": _kind(
        _ENUM,
        "class Kind(Flag, boundary=KEEP):\n    A = 1\n    B = 2\n    MASK = 7\n",
        "assert Kind(16 | 1).value == 17 and read(Kind.MASK) is Kind.MASK",
    ),
    "enum with __new__": _kind(
        _ENUM,
        "class Kind(Enum):\n    BIG = 1, 'the big'\n    SMALL = 2, 'the small'\n    LARGE = 1, 'again'\n"
        "    def __new__(cls, code, text):\n        member = object.__new__(cls)\n        member._value_ = code\n"
        "        member.text = text\n        return member\n",
        "assert Kind(1) is Kind.BIG and Kind.SMALL.text == 'the small' and read(Kind.SMALL) is Kind.SMALL",
        "assert Kind['LARGE'] is Kind.BIG",
    ),
    "string enum with __new__": _kind(
        _ENUM,
        "class Kind(str, Enum):\n    BIG = 1, 'big'\n    SMALL = 2, 'small'\n"
        "    def __new__(cls, code, text):\n        member = str.__new__(cls, text)\n        member._value_ = code\n"
        "        return member\n",
        "assert Kind(1) is Kind.BIG and Kind.BIG == 'big' and read(Kind.SMALL) is Kind.SMALL",
    ),
    "enum with __init__": _kind(
        _ENUM,
        "class Kind(Enum):\n    EARTH = (5, 6)\n    MARS = (3, 4)\n    def __init__(self, mass, radius):\n"
        "        self.mass = mass\n        self.radius = radius\n    @property\n    def ratio(self):\n"
        "        return self.mass / self.radius\n",
        "assert Kind.EARTH.mass == 5 and read(Kind.MARS).ratio == 0.75 and Kind((5, 6)) is Kind.EARTH",
    ),
    "enum of unhashable values": _kind(
        _ENUM,
        "class Kind(Enum):\n    ONE = [1]\n    TWO = {'a': 2}\n",
        "assert Kind([1]) is Kind.ONE and read(Kind.TWO) is Kind.TWO",
    ),
    "enum of tuples": _kind(
        _ENUM,
        "class Kind(tuple, Enum):\n    ONE = (1, 2)\n",
        "assert Kind((1, 2)) is Kind.ONE and read(Kind.ONE)[1] == 2",
    ),
    "enum with _missing_": _kind(
        _ENUM,
        "class Kind(Enum):\n    BIG = 'big'\n    @classmethod\n    def _missing_(cls, value):\n        return cls(value.lower())\n"
        "    @staticmethod\n    def count():\n        return len(Kind)\n",
        "assert Kind('BIG') is Kind.BIG and Kind.count() == 1 and read(Kind.BIG) is Kind.BIG",
    ),
    "enum of functions": _kind(
        _ENUM,
        "class Kind(Enum):\n    @member\n    def BIG():\n        return 1\n    limit = nonmember(7)\n",
        "assert Kind.BIG.value() == 1 and Kind.limit == 7 and list(Kind) == [Kind.BIG]",
    ),
    "inherited enum": _kind(
        _ENUM,
        "class Base(str, Enum):\n    def shout(self):\n        return self.value.upper()\nclass Kind(Base):\n    BIG = 'big'\n    LARGE = 'big'\n",
        "assert read(Kind.BIG).shout() == 'BIG' and isinstance(Kind.BIG, Base) and Kind.LARGE is Kind.BIG",
    ),
    "enum of dataclasses": _kind(
        _ENUM + _DATACLASS,
        "@dataclass(frozen=True)\nclass Size:\n    euros: int\nclass Kind(Size, Enum):\n    BIG = 3\n    SMALL = 1\n",
        "assert Kind.BIG.euros == 3 and read(Kind.SMALL) is Kind.SMALL",
    ),
    "enum in a class": _kind(
        _ENUM + _DATACLASS,
        "@dataclass\nclass Order:\n    class Kind(Enum):\n        BIG = 1\n        LARGE = 1\n    kind: Kind = Kind.BIG\n",
        "assert read(Order()).kind is Order.Kind.LARGE is Order.Kind.BIG",
    ),
    "event": _kind(
        "from flink_agents import Event\n",
        "class Order(Event):\n    key: str\n    euros: int = 1\nclass Paid(Order):\n    by: str = 'card'\n",
        "assert read(Paid(key='a')).by == 'card' and isinstance(moved(Paid(key='a')), Order)",
    ),
}
"""Kinds whose values state holds."""

OTHER: dict[str, str] = {
    "plain": _kind(
        "",
        "class Order:\n    seen = []\n    def __init__(self, id):\n        self.id = id\n",
        "assert moved(Order('a')).id == 'a'",
    ),
    "with slots": _kind(
        "",
        "class Order:\n    __slots__ = ('id', '__private')\n    def __init__(self, id):\n        self.id = id\n        self.__private = 2\n"
        "    def private(self):\n        return self.__private\n",
        "assert moved(Order('a')).id == 'a' and Order('a').private() == 2",
    ),
    "typed dict": _kind(
        "from typing import *\n",
        "class Order(TypedDict, total=False):\n    id: Required[str]\n    euros: int\n",
        "assert Order(id='a') == {'id': 'a'} and Order.__required_keys__ == {'id'}",
        "assert get_type_hints(Order) == {'id': str, 'euros': int}",
    ),
    "exception": _kind(
        "",
        "class Declined(Exception):\n    def __init__(self, code, *, reason):\n        super().__init__(f'{code}: {reason}')\n        self.code = code\n"
        "class Late(Declined, TimeoutError):\n    pass\n",
        "try:\n        raise Late(3, reason='x')\n    except Declined as error:\n        assert error.code == 3 and str(error) == '3: x'",
    ),
    "protocol": _kind(
        "from typing import *\n",
        "@runtime_checkable\nclass Sized2(Protocol):\n    def size(self) -> int: ...\nclass Order:\n    def size(self):\n        return 1\n",
        "assert isinstance(Order(), Sized2) and not isinstance(3, Sized2)",
    ),
    "abstract": _kind(
        "from abc import *\n",
        "class Base(ABC):\n    @abstractmethod\n    def size(self): ...\nclass Order(Base):\n    def size(self):\n        return 1\n"
        "@Base.register\nclass Other:\n    pass\n",
        "assert isinstance(moved(Order()), Base) and isinstance(Other(), Base)",
        "try:\n        Base()\n    except TypeError:\n        return\n    raise AssertionError('no longer abstract')",
    ),
    "generic": _kind(
        "from typing import *\n",
        "T = TypeVar('T', bound='Order')\nclass Order(Generic[T]):\n    def __init__(self, item=None):\n        self.item = item\n",
        "assert moved(Order(3)).item == 3 and get_args(Order[int]) == (int,)",
    ),
    "metaclass": _kind(
        "",
        "class Meta(type):\n    def __call__(cls, *args):\n        made = super().__call__(*args)\n        made.by = 'meta'\n        return made\n"
        "class Order(metaclass=Meta):\n    pass\n",
        "assert Order().by == 'meta'",
    ),
    "hook for subclasses": _kind(
        "",
        "class Base:\n    known = []\n    def __init_subclass__(cls, **options):\n        Base.known.append(cls.__name__)\nclass Order(Base):\n    pass\n",
        "assert Base.known == ['Order'] and moved(Order())",
    ),
    "keyword of a class": _kind(
        "",
        "class Base:\n    def __init_subclass__(cls, *, tag, **options):\n        super().__init_subclass__(**options)\n        cls.tag = tag\n"
        "class Order(Base, tag='orders'):\n    pass\n",
        "assert Order.tag == 'orders' and moved(Order()).tag == 'orders'",
    ),
    "descriptors": _kind(
        "from functools import cached_property, partialmethod, singledispatchmethod\n",
        "class Order:\n    @cached_property\n    def total(self):\n        return 3\n    @property\n    def id(self):\n        return self._id\n"
        "    @id.setter\n    def id(self, value):\n        self._id = value\n    def times(self, factor):\n        return factor * self.total\n"
        "    twice = partialmethod(times, 2)\n    @classmethod\n    def made(cls):\n        return cls()\n",
        "order = Order.made()\n    order.id = 'a'\n    assert (order.total, order.id, order.twice()) == (3, 'a', 6)",
    ),
    "dispatch": _kind(
        "from functools import singledispatch\n",
        "class Order:\n    pass\n@singledispatch\ndef label(value):\n    return 'other'\n@label.register\ndef _(value: int):\n    return 'int'\n"
        "@label.register(Order)\ndef _(value):\n    return 'order'\n",
        "assert (label(Order()), label(3), label('')) == ('order', 'int', 'other')",
    ),
    "dispatching method": _kind(
        "from functools import singledispatchmethod\n",
        "class Order:\n    @singledispatchmethod\n    def label(self, value):\n        return 'other'\n    @label.register\n    def _(self, value: int):\n        return 'int'\n",
        "assert (Order().label(3), Order().label('')) == ('int', 'other')",
    ),
    "cached function": _kind(
        "from functools import lru_cache\n",
        "class Order:\n    pass\n@lru_cache\ndef label(value):\n    return Order\n",
        "assert label(3) is Order",
    ),
    "recursive cached function": _kind(
        "from functools import cache\n",
        "@cache\ndef label(value):\n    return value and label(value - 1) + 1\n",
        "assert label(9) == 9 and label.cache_info().maxsize is None",
    ),
    "variable with a default": _kind(
        "from typing_extensions import *\n",
        "T = TypeVar('T', default=str)\nclass Order(Generic[T]):\n    pass\n",
        "assert T.__default__ is str and Order.__parameters__ == (T,)",
    ),
    "attrs": _kind(
        "import attrs\n",
        "@attrs.define\nclass Order:\n    id: str\n    items: list = attrs.field(factory=list)\n",
        "assert moved(Order('a')) == Order('a') and attrs.asdict(Order('a')) == {'id': 'a', 'items': []}",
    ),
    "agent with another one as a tool": _kind(
        "from flink_agents import Agent, InputEvent, OutputEvent, action\n",
        "class Clerk(Agent):\n    @action(InputEvent)\n    def work(self, event, ctx):\n        return OutputEvent(output=1)\n"
        "class Desk(Agent):\n    clerk = Clerk().as_tool('Works.')\n",
        "assert Desk.clerk.__name__ == 'clerk' and Desk.clerk.__module__ == Desk.__module__",
    ),
    "new type and literal": _kind(
        "from typing import *\n",
        "Key = NewType('Key', str)\nSize = Literal['big', 'small']\nPair = Annotated[tuple[Key, Size], 'pair']\n",
        "assert Key('a') == 'a' and get_args(Size) == ('big', 'small')",
    ),
}
"""Kinds whose values state does not hold."""
