"""An environment as `pip install querator` makes it, without a network: the packages are links to
those of this environment.
"""

import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import querator

NEVER_LINKED = ("..", "__pycache__")


def make_slim_environment(directory: Path) -> Path:
    """A virtual environment with Querator and the packages that it needs without its extras.
    Returns its interpreter.
    """
    venv.create(directory, symlinks=True, with_pip=False)
    [site] = directory.glob("lib/python*/site-packages")
    for distribution in _needed("querator", {}).values():
        _link(distribution, site)
    package = Path(querator.__path__[0])
    (site / "querator").symlink_to(package)
    return directory / "bin" / "python"


def _needed(name: str, found: dict[str, metadata.Distribution]) -> dict[str, metadata.Distribution]:
    """Distributions by name: this one and all that it needs, without extras."""
    if name in found:
        return found
    found[name] = metadata.distribution(name)
    for text in found[name].requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            _needed(requirement.name, found)
    return found


def _link(distribution: metadata.Distribution, site: Path) -> None:
    roots = {file.parts[0] for file in distribution.files or () if file.parts}
    for root in roots:
        # The path file of an editable installation would bring the whole checkout.
        if root in NEVER_LINKED or root.endswith(".pth") or (site / root).exists():
            continue
        (site / root).symlink_to(str(distribution.locate_file(root)))
