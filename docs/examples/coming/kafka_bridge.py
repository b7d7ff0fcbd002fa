from querator import Item, SyncClient

RECORDS = 500


def forward(consumer, client: SyncClient, queue: str) -> int:
    """Makes an item of each record that the consumer of confluent-kafka has, and returns their
    number. The consumer has `enable.auto.commit` off: its offsets are committed when the items are
    durable. Records of a batch that is read again are not stored again.
    """
    forwarded = 0
    with client.producer(queue) as producer:
        while records := consumer.consume(RECORDS, timeout=5):
            producer.produce_many(map(item_of, records))
            consumer.commit(asynchronous=False)
            forwarded += len(records)
    return forwarded


def item_of(record) -> Item:
    if record.error():
        raise RuntimeError(record.error())
    place = f"{record.topic()}-{record.partition()}-{record.offset()}"
    return Item(
        record.value() or b"",
        key=(record.key() or b"").decode(errors="backslashreplace"),
        reference=place,
        dedup_key=place,
    )
