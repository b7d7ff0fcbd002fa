"""Growth of the steady node as a soak counts it."""

from tests.soak.faults import STEADY
from tests.soak.meters import SIZE_OF_FILE, Sample, growth, without_fills

MIB = 1 << 20


def sample(at_s: float, file_mib: int, *, filling: bool = False, calm: bool = True) -> Sample:
    return Sample(
        at_s=at_s,
        node=STEADY,
        calm=calm,
        filling=filling,
        rss_bytes=100 * MIB,
        descriptors=30,
        file_bytes=file_mib * MIB,
        used_bytes=MIB,
        groups=4,
    )


def too_long(samples: list[Sample]) -> bool:
    (found,) = [too_much for name, _, _, too_much in growth(samples) if name == SIZE_OF_FILE]
    return found


def test_a_file_that_grows_while_the_disk_is_filled_is_explained() -> None:
    samples = [sample(at, 100) for at in range(5)]
    samples += [sample(5, 100, filling=True, calm=False), sample(6, 300, filling=True, calm=False)]
    samples += [sample(7 + at, 310) for at in range(5)]
    assert [one.file_bytes // MIB for one in without_fills(samples)] == [100] * 12
    assert not too_long(samples)


def test_a_file_that_grows_at_other_times_is_found_beside_fills_too() -> None:
    samples = [sample(0, 100), sample(1, 200, filling=True, calm=False)]
    samples += [sample(2 + at, 200 + 10 * at) for at in range(10)]
    assert too_long(samples)
