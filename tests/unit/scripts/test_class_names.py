"""No public class name means two things."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3] / "querator"


USED_TWICE = {"Cancelled", "Child", "Retry", "Worker"}
"""`Retry` is a command of the state machine, the exception by which a handler asks for it, and how
a step of a durable function is retried. `Cancelled` is the result of a cancel, and what is raised
in a sync durable function. `Child` is a process of a worker, and an execution that another one has
started. `Worker` runs the handler of a queue, or durable functions.
"""


def test_each_public_class_name_is_used_once():
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        if path.parent.name != "v1":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1}.keys() == USED_TWICE
