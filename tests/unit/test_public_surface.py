"""What `import querator` offers: the names, their parameters, and when they are loaded."""

import subprocess
import sys

import pytest

import querator
from querator.client import errors as client_errors
from scripts.public_surface import FILE, surface


def test_the_surface_is_the_listed_one():
    assert surface() == FILE.read_text(), (
        "If programs are to notice this change: python -m scripts.public_surface --write, and a "
        "line in CHANGELOG.md"
    )


def test_every_name_is_there_and_no_other():
    for name in querator.__all__:
        assert getattr(querator, name) is not None
    assert dir(querator) == sorted(querator.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Clint'"):
        _ = querator.Clint


def test_nothing_is_loaded_before_its_first_use():
    program = (
        "import sys; import querator; dir(querator); "
        "print([name for name in sys.modules if name.startswith('querator.') or name == 'grpc'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_errors_has_every_exception_of_the_client():
    assert set(client_errors.__all__) - set(querator.errors.__all__) == {"make_error"}
