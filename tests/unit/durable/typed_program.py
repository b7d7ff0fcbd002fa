"""A program as users write it, for mypy --strict; it is not run.

The lines with an ignored error must be errors: an ignore that is not needed fails `make type`.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import assert_type

from querator.durable import (
    Child,
    Promise,
    Retry,
    call,
    durable,
    now,
    promise,
    receive,
    receive_all,
    saga,
    sleep,
    spawn,
    step,
    sync,
)


@dataclass
class Order:
    id: str
    skus: list[str]


@dataclass
class Receipt:
    number: int


@step(retry=Retry(attempts=8, first=timedelta(seconds=1)), timeout=timedelta(seconds=30))
async def charge(order: Order) -> Receipt:
    return Receipt(len(order.id))


@step(effects=False)
async def price(sku: str) -> Decimal:
    return Decimal(len(sku))


@step
def weigh(order: Order) -> float:
    return float(len(order.skus))


def fetch(url: str) -> bytes:
    return url.encode()


@durable
async def checkout(order: Order) -> str:
    prices = await asyncio.gather(*(price(sku) for sku in order.skus))
    assert_type(prices, list[Decimal])
    async with saga() as undo:
        undo.add(charge, order)
        undo.add(charge, 17)  # type: ignore[arg-type]
        assert_type(await charge(order), Receipt)
    assert_type(await call(weigh, order), float)
    assert_type(await call(fetch, "url"), bytes)
    assert_type(await call(price, "sku"), Decimal)
    await call(weigh, "text")  # type: ignore[call-overload]
    await charge("text")  # type: ignore[arg-type]
    approval = promise(Receipt)
    assert_type(approval, Promise[Receipt])
    assert_type(await approval, Receipt)
    assert_type(await receive("order", Order), Order)
    async for each in receive_all("order", Order):
        assert_type(each, Order)
    parcel = await spawn(checkout, order)
    assert_type(parcel, Child[str])
    assert_type(await parcel, str)
    assert_type(await spawn(sync_checkout, order), Child[int])
    await spawn(charge, order)  # type: ignore[call-overload]
    await sleep(timedelta(days=365))
    await sleep("long")  # type: ignore[arg-type]
    assert_type(now(), datetime)
    return order.id


@durable
def sync_checkout(order: Order) -> int:
    assert_type(weigh(order), float)
    assert_type(sync.call(charge, order), Receipt)
    assert_type(sync.call(checkout, order), str)
    assert_type(sync.receive("order", Order), Order)
    given: Promise[Receipt] = promise(Receipt)
    assert_type(sync.wait(given), Receipt)
    assert_type(sync.wait(sync.spawn(checkout, order)), str)
    assert_type(sync.gather([lambda: weigh(order)]), list[float])
    return 1


@durable
async def main() -> None:
    assert_type(await checkout(Order("17", [])), str)
    assert_type(await call(sync_checkout, Order("17", [])), int)
    await checkout(17)  # type: ignore[arg-type]
