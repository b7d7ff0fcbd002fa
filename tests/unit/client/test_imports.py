"""A program that only talks to a server loads neither the storage nor the Raft engine."""

import subprocess
import sys


def test_the_client_loads_neither_lmdb_nor_pysyncobj():
    program = (
        "import sys\n"
        "from querator import Client, SyncClient\n"
        "print(sorted({'lmdb', 'pysyncobj', 'click', 'rich'} & set(sys.modules)))\n"
        "print(sorted(m for m in sys.modules if m.startswith('querator.') and m.split('.')[1]"
        " not in ('client', 'model', 'v1', 'wire', 'config', 'telemetry')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "[]"]
