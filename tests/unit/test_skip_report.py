import pytest

from tests.skip_report import AllowedSkip, Skip, read_allowed, refused

pytest_plugins = ["pytester"]

SUITE = """
import pytest

@pytest.mark.skip(reason="no such machine")
def test_skipped():
    pass

@pytest.mark.xfail(reason="known", strict=True)
def test_wrong():
    assert False

def test_right():
    assert sorted([2, 1]) == [1, 2]
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makeconftest('pytest_plugins = ["tests.skip_report"]')
    pytester.makepyfile(SUITE)
    return pytester


def test_a_run_ends_with_what_was_skipped_and_why(suite):
    result = suite.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "*skipped, and why*",
            "*::test_skipped*no such machine*",
            "*::test_wrong*expected to fail: known*",
        ]
    )


def test_an_unlisted_skip_fails_a_strict_run_on_several_workers(suite):
    result = suite.runpytest_subprocess("--strict-skips", "-n", "1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_an_unlisted_skip_fails_in_ci(suite, monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert suite.runpytest_inprocess().ret == pytest.ExitCode.TESTS_FAILED


def test_a_listed_skip_is_allowed_for_its_reason_only():
    allowed = [AllowedSkip("tests/clients/*", "no node*", why="not on every machine")]
    listed = Skip("tests/clients/test_js.py::test_produce", "no node on this machine")
    other_reason = Skip("tests/clients/test_js.py::test_produce", "flaky")
    other_test = Skip("tests/unit/test_ids.py::test_parse", "no node")
    assert refused([listed, other_reason, other_test], allowed) == [other_reason, other_test]


def test_an_entry_says_why(tmp_path):
    path = tmp_path / "skips.toml"
    path.write_text('[[skip]]\ntest = "*"\nreason = "*"\n', encoding="utf-8")
    with pytest.raises(TypeError, match="why"):
        read_allowed(path)
