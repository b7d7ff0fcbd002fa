import threading
import urllib.error
import urllib.request
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

from querator import Item, Reject, Retry, SyncClient

SOON = timedelta(milliseconds=200)


class Customer(BaseHTTPRequestHandler):
    """The customers' servers: one works, one is busy at the first attempt, one is gone."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        busy = self.path == "/busy" and self.headers["X-Attempt"] == "1"
        self.send_response(410 if self.path == "/gone" else 503 if busy else 200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def deliver(item):
    """Sends a webhook; its outcome decides what becomes of the item."""
    name = item.attributes["customer"]
    request = urllib.request.Request(
        URLS[name],
        data=item.payload,
        headers={"Idempotency-Key": item.dedup_key, "X-Attempt": str(item.attempt)},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            print(f"{name}: {answer.status} at attempt {item.attempt}", flush=True)
    except urllib.error.HTTPError as refused:
        print(f"{name}: {refused.code} at attempt {item.attempt}", flush=True)
        if refused.code in (408, 425, 429) or refused.code >= 500:
            raise Retry(f"HTTP {refused.code}", delay=SOON * 2**item.attempt) from refused
        raise Reject(f"HTTP {refused.code}") from refused
    except OSError as error:
        raise Retry(f"no answer: {error}", delay=SOON * 2**item.attempt) from error


server = HTTPServer(("127.0.0.1", 0), Customer)
threading.Thread(target=server.serve_forever, daemon=True).start()
# Looked up at each attempt: a customer may have changed the address meanwhile.
URLS = {name: f"http://127.0.0.1:{server.server_port}/{name}" for name in ("works", "busy", "gone")}

with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("webhooks", max_attempts=8, lease_timeout=timedelta(seconds=3))
    for customer in URLS:
        client.produce(
            "webhooks",
            Item(
                b'{"event": "paid"}',
                attributes={"customer": customer},
                group=customer,
                dedup_key=f"paid-17-{customer}",
            ),
        )
    with client.consumer("webhooks", idle_timeout=timedelta(seconds=5)) as webhooks:
        webhooks.run(deliver, concurrency=1)
    stats = client.stats("webhooks").total
    print("delivered:", stats.completed, "given up:", stats.dead)
