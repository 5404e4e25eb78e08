"""``scrapy altsched``, as a user types it."""

from __future__ import annotations

import pytest

from scrapy_altsched.command import SUBCOMMANDS

from ..crawls import altsched, run_scrapy


@pytest.mark.smoke
def test_scrapy_lists_the_command() -> None:
    assert "altsched" in run_scrapy("--help").stdout


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
