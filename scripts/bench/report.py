"""The measurements, as JSON for machines and as a Markdown table for people."""

import os
import platform
import statistics
from importlib.metadata import version
from pathlib import Path

import msgspec


class Measurement(msgspec.Struct, frozen=True):
    """One run of one scenario. Microseconds are CPU time per item; latencies of one request."""

    scenario: str
    items_per_second: float
    server_us_per_item: float
    client_us_per_item: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    restart_seconds: float
    resident_bytes: int

    def line(self) -> str:
        return (
            f"{self.scenario}: {self.items_per_second:,.0f} items/s, CPU µs/item "
            f"{self.server_us_per_item:.1f} server {self.client_us_per_item:.1f} client, "
            f"ms p50 {self.p50_ms:.1f} p99 {self.p99_ms:.1f} max {self.max_ms:.1f}, "
            f"restart {self.restart_seconds:.2f} s, resident {self.resident_bytes >> 20} MiB"
        )


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("querator", "grpcio", "lmdb", "pysyncobj")}


def named() -> str:
    """The versions in one line."""
    return ", ".join(f"{name} {number}" for name, number in versions().items())


HEAD = """\
| scenario | items/s: median (min - max) | CPU µs per item: server, client | \
request latency ms: p50, p99, max |
|---|---|---|---|
"""


def keep(results: msgspec.Struct, text: str, directory: Path, name: str) -> None:
    """Writes `name`.json and `name`.md into the directory, which exists, and the text to standard
    output, with the results as one line of JSON at its end.
    """
    encoded = msgspec.json.encode(results)
    (directory / f"{name}.json").write_bytes(msgspec.json.format(encoded))
    (directory / f"{name}.md").write_text(text)
    print(text)
    print(encoded.decode())


def write_report(
    directory: Path,
    measurements: list[list[Measurement]],
    *,
    nodes: int,
    durable: bool,
) -> None:
    """Writes results.json and results.md."""
    (directory / "results.json").write_bytes(
        msgspec.json.format(
            msgspec.json.encode(
                {
                    "machine": machine(),
                    "versions": versions(),
                    "nodes": nodes,
                    "durable": durable,
                    "runs": [run for runs in measurements for run in runs],
                }
            )
        )
    )
    sync = "synced before each answer" if durable else "**not durable** (memory)"
    where = "one node" if nodes == 1 else f"{nodes} nodes"
    text = (
        f"{where} on {machine()}; {named()}; {sync}; medians of {len(measurements[0])} runs.\n\n"
        f"{HEAD}"
    )
    text += "".join(_row(runs) for runs in measurements)
    (directory / "results.md").write_text(text)
    print(text)


def _row(runs: list[Measurement]) -> str:
    rates = [run.items_per_second for run in runs]

    def median(name: str) -> float:
        return float(statistics.median(getattr(run, name) for run in runs))

    latency = f"{median('p50_ms'):.1f}, {median('p99_ms'):.1f}, {median('max_ms'):.0f}"
    return (
        f"| {runs[0].scenario} | {statistics.median(rates):,.0f} "
        f"({min(rates):,.0f} - {max(rates):,.0f}) | {median('server_us_per_item'):.1f}, "
        f"{median('client_us_per_item'):.1f} | {latency if runs[0].p50_ms else '–'} |\n"
    )
