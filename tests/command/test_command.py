"""``scrapy altsched``, as a user types it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scrapy_altsched.command import SUBCOMMANDS

from ..crawls import PROJECT


def altsched(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in the tests' project."""
    command = [sys.executable, "-m", "scrapy", "altsched", *map(str, arguments)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)


@pytest.mark.smoke
def test_scrapy_lists_the_command() -> None:
    command = [sys.executable, "-m", "scrapy", "--help"]
    run = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert "altsched" in run.stdout


def test_every_subcommand_has_help() -> None:
    overview = altsched("--help").stdout
    for name in SUBCOMMANDS:
        assert name in overview
        run = altsched(name, "--help")
        assert run.returncode == 0
        assert "--set" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: SUBCOMMAND"),
        (("nothing",), "invalid choice: 'nothing'"),
    ],
)
def test_a_wrong_call_is_refused_in_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    run = altsched(*arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr
