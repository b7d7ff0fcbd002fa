"""The report of a run: figures as Markdown, and pictures."""

from pathlib import Path

from tests.soak.faults import STEADY
from tests.soak.meters import Sample, growth, without_fills
from tests.soak.run import Soak

_MIB = 1 << 20


def as_markdown(soak: Soak) -> str:
    faults = ", ".join(f"{name} {times}" for name, times in sorted(soak.faults.items()))
    errors = ", ".join(f"{name} {times}" for name, times in sorted(soak.errors.items()))
    lines = [
        f"{soak.minutes:g} min, seed {soak.seed}: {soak.operations:,} operations; "
        f"{soak.faults.total()} faults ({faults}); {len(soak.wrong)} wrong, "
        f"{soak.undecided} undecided; longest time without an acknowledged produce "
        f"{soak.longest_s:.1f} s; errors that users saw: {errors or 'none'}.",
        "",
        "| the steady node, when it was calm | first third | last third | too much |",
        "|---|---|---|---|",
    ]
    for name, first, last, too_much in growth(soak.samples):
        lines.append(f"| {name} | {first:,.0f} | {last:,.0f} | {'yes' if too_much else 'no'} |")
    lines += ["", fills(soak.samples)]
    lines += ["", "| bout ended after, min | produces | p50, ms | p99, ms |", "|---|---|---|---|"]
    for one in soak.latencies:
        lines.append(
            f"| {one.at_s / 60:.0f} | {one.produces:,} | {one.p50_ms:.1f} | {one.p99_ms:.0f} |"
        )
    lines += ["", *(f"WRONG: {text}" for text in soak.wrong)]
    return "\n".join(lines) + "\n"


def fills(samples: list[Sample]) -> str:
    steady = [sample for sample in samples if sample.node == STEADY]
    longest = max((sample.file_bytes for sample in steady), default=0)
    added = steady[-1].file_bytes - without_fills(steady)[-1].file_bytes if steady else 0
    used = max((sample.used_bytes for sample in steady), default=0)
    return (
        f"The file of the steady node came to {longest / _MIB:.0f} MiB, of which fills of the disk "
        f"added {added / _MIB:.0f}; {used / _MIB:.0f} MiB were in use at the most."
    )


def draw(soak: Soak, directory: Path) -> None:
    """soak.png: memory, bytes in use, sizes of files, and latency over time. Needs Matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 11), layout="constrained")
    axes = figure.subplots(4, 1, sharex=True)
    nodes = sorted({sample.node for sample in soak.samples})
    panels = (
        ("memory without the file, MiB", lambda sample: sample.rss_bytes / _MIB),
        ("bytes in use in the file, MiB", lambda sample: sample.used_bytes / _MIB),
        ("size of the file, MiB", lambda sample: sample.file_bytes / _MIB),
    )
    for panel, (title, measure) in zip(axes, panels, strict=False):
        for node in nodes:
            some: list[Sample] = [
                sample for sample in soak.samples if sample.node == node and sample.used_bytes >= 0
            ]
            panel.plot([one.at_s / 60 for one in some], [measure(one) for one in some], label=node)
        panel.set_ylabel(title)
        panel.set_ylim(bottom=0)
        panel.legend(title="node")
        panel.grid(alpha=0.3)
    minutes = [one.at_s / 60 for one in soak.latencies]
    axes[3].plot(minutes, [one.p50_ms for one in soak.latencies], label="p50")
    axes[3].plot(minutes, [one.p99_ms for one in soak.latencies], label="p99")
    axes[3].set_yscale("log")
    axes[3].set_ylabel("produce, ms")
    axes[3].set_xlabel("minutes")
    axes[3].legend()
    axes[3].grid(alpha=0.3)
    figure.savefig(directory / "soak.png", dpi=90)
