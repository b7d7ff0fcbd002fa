"""Refuses to run with any PySyncObj except the version whose source this package was written for.

The package overrides private methods of `pysyncobj.SyncObj` and relies on the exact behaviour of
the others. A changed file, even in a patch release or by a distributor, may bring back a flaw that
loses writes without any error. So the files are hashed before they are imported, and an error names
the file that differs.
"""

import hashlib
import importlib.util
from pathlib import Path

VERSION = "0.3.17"

_SHA256 = {
    "__init__.py": "4966a9dd893542b1b0e0fcef3d2ea44f2f40919d66b684992e5511be7503c036",
    "atomic_replace.py": "43a5252a241939b7f457cbbf39480260c91f0d2035a62b170bf1e1d20d0f9c1d",
    "batteries.py": "e05ad7e8d18a7d4854c6e487fab4d152194054f9ac3451568fe2101d54d6edca",
    "config.py": "fbbc7ff9f18e4d15a7fd563376e42f5bd192956879d4b810b056d5248b955698",
    "dns_resolver.py": "4b88da2b45e20fbb299fb7a21f2595369b6314700b687fb8858891999bce14e0",
    "encryptor.py": "db20725465efdfc6d7a3b5b2112f53bc5426d36c56312ebdf5fbcf05423a7c19",
    "fast_queue.py": "8477fe5fdf36d9766df933310d3d66ee953d1afc195b1e6482b3a1498fc517bd",
    "journal.py": "9cf1eaf6acc704581a4cf7d3de330a404403913107adc91c929778b7e3f35edf",
    "monotonic.py": "d116df70e1f81bcab1fb89191fe2fe18486bc25187401d73fd6101cfe686e0a3",
    "node.py": "e4a3f027cd8291f558334bb9c977e952f6b6989e7e1fa1588d3005ef0b990e2c",
    "pickle.py": "e9327780738065cec5d600484b936c91e7c13875206cb584d5ff7f5d0dc9c474",
    "pipe_notifier.py": "587d964bfa5d62320f3541cbb283ff3e282cb2db95e1b8cfd888dc3d53af82aa",
    "poller.py": "f69ac749fb410670282fd9520c5805ffc684c8a5f762a927127753d9be8551e6",
    "serializer.py": "4d39fde2f15000ad8f507ec229ebd4f6a86371b6f84d4dc1439a9cccd52857ee",
    "syncobj.py": "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    "syncobj_admin.py": "f32531e2f78a7708cf50164544352ffc68d7e0b9cda622dc267744bae39c4761",
    "tcp_connection.py": "7784ed8da031369fe36f805cb186a2e94a3bd6f10fed2dd59c8cc3713fd6331c",
    "tcp_server.py": "bde2f216c1a585029188d0438b44762e2e797dfc53bbce387839daaa46b9a60d",
    "transport.py": "0c9d89f9c4781ec9772df8011d7975a1a4a1a5f541357e12eae85a813e92b50b",
    "utility.py": "1aa0c49d3558c5df6489235b94ae44357b382f9f0792b9d72ae6e5ae0c0039ea",
    "version.py": "0b8426a8b52ecf874193897d26c4214acbd85335145ea9ff17e27a22b1132943",
    "win_inet_pton.py": "75315fdf68bfa4219c2952b21077387be45a02c4f01db45c7355cdc883c8e9cc",
}


class WrongLibrary(ImportError):
    """The installed PySyncObj is not the pinned one; the message names the file."""


def directory() -> Path:
    """The directory where PySyncObj is installed. Does not import it; raises WrongLibrary when it
    is absent.
    """
    spec = importlib.util.find_spec("pysyncobj")
    if spec is None or spec.origin is None:
        raise WrongLibrary(f"pysyncobj is not installed; Querator needs pysyncobj=={VERSION}")
    return Path(spec.origin).parent


def check(installed: Path) -> None:
    """Raises WrongLibrary unless every file of the library equals that of 0.3.17 byte for byte."""
    for name, expected in _SHA256.items():
        path = installed / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "absent"
        if found != expected:
            raise WrongLibrary(
                f"{path} is not that of pysyncobj {VERSION} "
                f"(SHA-256 is {found}, expected {expected}). "
                f"Querator overrides private parts of this one version and runs on no other: "
                f"install pysyncobj=={VERSION} as published"
            )
