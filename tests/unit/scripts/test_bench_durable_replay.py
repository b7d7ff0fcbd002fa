"""`make durable-replay`: a short run of the real thing."""

import msgspec

from querator.durable.machine import living
from scripts.bench.durable_replay import main


def test_it_ends_with_a_line_of_json(capsys):
    assert main(["--records", "60", "--rounds", "2"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    result = msgspec.json.decode(last)
    assert result["records"] == 60
    assert set(result["records_per_s"]) == {"one_task", "tasks", "thread"}
    assert min(result["records_per_s"].values()) > 0
    assert living() == 0
