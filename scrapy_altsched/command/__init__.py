"""``scrapy altsched ...``: START HERE to add a subcommand.

A subcommand is a module of this folder, named as the user types it; nothing else names it.  It has

* a docstring whose first line is its help,
* ``add_arguments(parser)``, which fills in an :class:`argparse.ArgumentParser`,
* ``run(arguments, project)``, which does it and returns the exit code: 0, or 1 for an answer that
  the user must act on, such as a problem that a check found.

What it is about, a job or a shared crawl, is a ``Target``, in :mod:`.target`.  It prints answers on
standard output, progress on standard error.  It raises AltschedError for what cannot be done (no
traceback, exit code 1) and UsageError for arguments that make no sense (exit code 2).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

from ..errors import AltschedError
from ..exit_code import exit_code  # noqa: F401  (to be registered before all else)

#: Modules of this folder that are no subcommands.
_PARTS = (
    *("answers", "confirming", "crawl", "groups", "job", "job_steering", "metrics"),
    *("places", "project", "selection", "sources", "standing", "steered", "target"),
)
#: The exit code after Ctrl-C, as shells have it.
_INTERRUPTED = 130
SUBCOMMANDS = tuple(name for _, name, _ in iter_modules(__path__) if name not in _PARTS)


def _summary_of(name: str) -> str:
    """The first line of a subcommand's docstring, which is read without running it."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    found = re.search(r'^"""(.+)$', source, re.MULTILINE)
    return "" if found is None else found[1].removesuffix('"""')


class Command(ScrapyCommand):
    """The command ``altsched``: inspects jobs and the rules for URLs."""

    requires_project = False
    default_settings: ClassVar = {"LOG_LEVEL": "WARNING"}  # only the answer is of interest
    requires_crawler_process = False  # new in Scrapy 2.14

    def syntax(self) -> str:
        return "SUBCOMMAND ..."

    def short_desc(self) -> str:
        return "Inspect and repair jobs of scrapy_altsched, and try out rules for URLs"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        choices = parser.add_subparsers(
            title="Subcommands",
            dest="subcommand",
            metavar="SUBCOMMAND",
            required=True,
            prog="scrapy altsched",
        )
        # What all of them import takes as long as the answers of some.
        typed = [name for name in SUBCOMMANDS if name in sys.argv] or SUBCOMMANDS
        for name in SUBCOMMANDS:
            summary = _summary_of(name)
            subparser = choices.add_parser(name, help=summary, description=summary)
            if name in typed:
                module = import_module(f".{name}", __name__)
                module.add_arguments(subparser)
                subparser.set_defaults(module=module)
            # Here and not in the parent: `-s` may come where people write it, at the end.
            super().add_options(subparser)

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        names: list[str] | None = getattr(opts, "names", None)
        if names is not None and not any(name[:1] == "-" != name for name in args):
            # argparse ends a list of arguments at the first option.
            names += args
        elif args:
            raise UsageError(f"unrecognized arguments: {' '.join(args)}", print_help=False)
        super().process_options(args, opts)
        if not hasattr(ScrapyCommand, "requires_crawler_process"):
            # What comes next there imports all spiders: what they lack would be a traceback.
            self.run(args, opts)
            sys.exit(self.exitcode)

    def run(self, args: list[str], opts: Any) -> None:  # noqa: ARG002  (Scrapy's interface)
        assert self.settings is not None
        from .project import Project  # every call of Scrapy would wait for that

        code = 1
        try:
            self.exitcode = opts.module.run(opts, Project(self.settings))
            return
        except AltschedError as error:
            message = str(error)
        except (ModuleNotFoundError, UsageError) as error:
            missing = error.__cause__ if isinstance(error, UsageError) else error
            if not isinstance(missing, ModuleNotFoundError):
                raise
            name = missing.name or str(missing)
            needs = f"the module {name!r}, which cannot be found: install the package that has it,"
            needs += " or correct the import"
            if name.partition(".")[0] == "scrapy_redis":
                # By a project that was scrapy-redis's, and is loaded to be imported from there.
                needs = "the package scrapy-redis, which is not installed: run"
                needs += f" `{sys.executable} -m pip install scrapy-redis`"
            message = f"This project's spiders or settings need {needs}"
        except KeyboardInterrupt:
            message = "interrupted. What it had done by then stays."
            code = _INTERRUPTED
        except BrokenPipeError:
            # What reads the answer has seen enough: https://docs.python.org/3/library/signal.html
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.exitcode = code
            return
        print(f"scrapy altsched {opts.subcommand}: {message}", file=sys.stderr)
        self.exitcode = code
