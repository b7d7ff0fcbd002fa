"""The unit of systemd fits the settings beside it, and the command line."""

import configparser
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from querator.cli import querator
from querator.config import SETTINGS

FOLDER = Path(__file__).parents[3] / "cluster" / "systemd"
UNIT = FOLDER / "querator.service"


@pytest.fixture
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_it_runs_a_node_with_the_settings(unit: configparser.ConfigParser) -> None:
    program, command, flag, file = unit["Service"]["ExecStart"].split()
    assert program == "/opt/querator/bin/querator"
    help_ = CliRunner().invoke(querator, [command, "--help"]).output
    assert flag in help_
    assert Path(file).name == "querator.toml"


def test_the_node_writes_only_where_it_may(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    settings = tomllib.loads((FOLDER / "querator.toml").read_text())
    assert set(settings) <= {setting.name for setting in SETTINGS}
    assert service["ProtectSystem"] == "strict"
    assert Path(settings["data_dir"]).parent == Path("/var/lib") / service["StateDirectory"]
    assert service["User"] == "querator"
    assert service["LimitAS"] == "infinity"


def test_it_is_not_started_again_where_that_cannot_help(unit: configparser.ConfigParser) -> None:
    assert unit["Service"]["Restart"] == "on-failure"
    assert unit["Service"]["RestartPreventExitStatus"] == "2 7"
    assert int(unit["Unit"]["StartLimitBurst"]) * int(unit["Service"]["RestartSec"]) < int(
        unit["Unit"]["StartLimitIntervalSec"]
    )
