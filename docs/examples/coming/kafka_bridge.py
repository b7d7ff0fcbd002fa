import logging

from querator import Item, SyncClient
from querator.client.errors import InvalidArgument

RECORDS = 500


def forward(consumer, client: SyncClient, queue: str) -> int:
    """Makes an item of each record that the consumer of confluent-kafka has, and returns their
    number. The consumer has `enable.auto.commit` off: its offsets are committed when the items are
    durable. Records of a batch that is read again are not stored again.
    """
    forwarded = 0
    with client.producer(queue) as producer:
        while records := consumer.consume(RECORDS, timeout=5):
            items = [item for record in records if (item := item_of(record)) is not None]
            store(producer, items)
            consumer.commit(asynchronous=False)
            forwarded += len(items)
    return forwarded


def store(producer, items: list[Item]) -> None:
    """Stores the items. An error about one of them names the place of its record."""
    try:
        producer.produce_many(items)
    except (InvalidArgument, ValueError):
        # One by one: items that are stored already are not stored again, by their dedup keys.
        for item in items:
            try:
                producer.produce(item)
            except (InvalidArgument, ValueError) as error:
                place = f"{item.reference} (topic-partition-offset)"
                raise ValueError(f"record {place} cannot be an item: {error}") from error


def item_of(record) -> Item | None:
    """The record as an item; None for a tombstone, which has no value."""
    place = f"{record.topic()}-{record.partition()}-{record.offset()}"
    if record.error():
        raise RuntimeError(f"record {place} cannot be read: {record.error()}")
    if record.value() is None:
        logging.warning("%s is a tombstone, and is left out", place)
        return None
    return Item(
        record.value(),
        key=text_of(record.key()),
        attributes={name: text_of(value) for name, value in record.headers() or ()},
        reference=place,
        dedup_key=place,
    )


def text_of(value: bytes | None) -> str:
    return (value or b"").decode(errors="backslashreplace")


if __name__ == "__main__":
    from confluent_kafka import Consumer

    kafka = Consumer(
        {
            "bootstrap.servers": "localhost:9092",
            "group.id": "to-querator",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    kafka.subscribe(["orders"])
    with SyncClient("127.0.0.1:4470") as client:
        try:
            while True:
                forward(kafka, client, "orders")
        except KeyboardInterrupt:
            print("ended")
        finally:
            kafka.close()
