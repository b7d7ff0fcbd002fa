"""Values and exceptions as JSON, and back."""

import dataclasses
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import pytest

from querator.durable import CodecError, RemoteError, StepInterrupted, ValueTooLarge
from querator.durable.codec import Codec


class Color(Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    sku: str
    price: Any = 0


@dataclasses.dataclass
class Order:
    id: str
    lines: list[Line]


class Point(msgspec.Struct):
    x: int
    where: Any = None


class Model:
    """What a pydantic model has."""

    def __init__(self, size: int) -> None:
        self.size = size

    def model_dump(self, *, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"size": self.size}

    @classmethod
    def model_validate(cls, value: dict[str, int]) -> "Model":
        return cls(value["size"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.size == self.size

    __hash__ = None  # type: ignore[assignment]


class Declined(Exception):
    def __init__(self, order: str, *, code: int) -> None:
        super().__init__(f"{order} is declined")
        self.order = order
        self.code = code


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, type(None)),
        (17, int),
        (1.5, float),
        ("text", str),
        (b"bytes", bytes),
        (Decimal("1.10"), Decimal),
        (datetime(2030, 1, 1, tzinfo=UTC), datetime),
        (timedelta(days=1, microseconds=5), timedelta),
        (Color.RED, Color),
        ({"a": {1, 2}}, dict[str, set[int]]),
        ((1, "b"), tuple[int, str]),
        (Order("17", [Line("a"), Line("b")]), Order),
        (Point(3), Point),
        (Model(4), Model),
        ([Model(4)], list[Model]),
        ({"any": [1, None]}, Any),
    ],
)
def test_values_come_back_as_their_annotated_type(value, kind):
    codec = Codec()
    assert codec.decode(codec.encode(value), kind) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Order("1", [Line("a"), Line("b", object())]), r"order\.lines\[1\]\.price is a object, wh"),
        ({"a": [1, (n for n in (1,))]}, r"order\['a'\]\[1\] is a generator"),
        (Point(1, lambda: 1), r"order\.where is a function"),
        ("\ud800", r"order is a str, which has no JSON"),
        (float("nan"), r"order is not a finite number"),
        ([{"x": Line("a", float("inf"))}], r"order\[0\]\['x'\]\.price is not a finite number"),
    ],
)
def test_what_has_no_json_is_named_by_its_place(value, words):
    with pytest.raises(CodecError, match=words):
        Codec().encode(value, "order")


def test_a_value_that_holds_itself():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(CodecError, match="order holds itself, or is too deep"):
        Codec().encode(value, "order")


def test_a_value_over_the_limit():
    codec = Codec(value_bytes_max=10)
    assert codec.encode("12345678") == b'"12345678"'
    with pytest.raises(ValueTooLarge, match="order has 11 bytes as JSON, and at most 10"):
        codec.encode("123456789", "order")


def test_bytes_of_another_type():
    codec = Codec()
    with pytest.raises(CodecError, match=r"result is not of the type Order: .*required field"):
        codec.decode(b'{"id": "17"}', Order)
    with pytest.raises(CodecError, match="is not of the type int: JSON is malformed"):
        codec.decode(b"garbage", int)


def there_and_back(error, *registered):
    codec = Codec(registered)
    return codec.decode_error(codec.encode_error(error))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 3),
        KeyError("key"),
        TimeoutError(),
        OSError(2, "No such file"),
        ZeroDivisionError("x"),
        StepInterrupted("charge"),
    ],
)
def test_exceptions_that_are_built_in_come_back_as_their_type(error):
    back = there_and_back(error)
    assert type(back) is type(error)
    assert back.args == error.args
    assert str(back) == str(error)


def test_a_registered_exception_comes_back_with_its_data():
    back = there_and_back(Declined("17", code=4), Declined)
    assert isinstance(back, Declined)
    assert (str(back), back.order, back.code) == ("17 is declined", "17", 4)


def test_other_exceptions_are_remote_errors():
    back = there_and_back(Declined("17", code=4))
    assert isinstance(back, RemoteError)
    assert back.type_name.endswith(".Declined")
    assert back.text == "17 is declined"
    assert str(back) == f"{back.type_name}: 17 is declined"


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, KeyboardInterrupt])
def test_exceptions_that_end_coroutines_are_remote_errors(kind):
    assert isinstance(there_and_back(kind("x")), RemoteError)


def test_arguments_without_json_make_a_remote_error():
    assert isinstance(there_and_back(ValueError(object())), RemoteError)


def test_groups_come_back_with_their_exceptions():
    inner = ExceptionGroup("inner", [KeyError("k"), Declined("17", code=4)])
    back = there_and_back(ExceptionGroup("outer", [ValueError("v"), inner]), Declined)
    assert isinstance(back, ExceptionGroup)
    first, second = back.exceptions
    assert first.args == ("v",)
    assert isinstance(second, ExceptionGroup)
    assert [type(each) for each in second.exceptions] == [KeyError, Declined]


def test_an_exception_whose_text_raises():
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    back = there_and_back(Broken())
    assert isinstance(back, RemoteError)
    assert back.text == "<its text raised RuntimeError>"


def test_the_traceback_is_the_cause():
    try:
        raise ValueError("here")
    except ValueError as error:
        back = there_and_back(error)
    assert "test_the_traceback_is_the_cause" in str(back.__cause__)


def test_bytes_that_are_no_exception():
    with pytest.raises(CodecError, match="an exception cannot be read"):
        Codec().decode_error(b"[1]")


def test_only_types_of_exceptions_are_registered():
    with pytest.raises(TypeError, match="errors has <class 'int'>; it must have types of"):
        Codec([int])  # type: ignore[list-item]


def test_nothing_is_imported_by_a_name_of_a_journal():
    data = b'{"type": "os.system", "args": ["exit"]}'
    assert isinstance(Codec().decode_error(data), RemoteError)
