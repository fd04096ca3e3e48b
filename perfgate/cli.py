"""The perfgate command: ``perfgate <subcommand>``; each prints its errors and returns 2 for them.

What a subcommand needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from perfgate.errors import PerfgateError

#: Subcommand, the module with ``configure(parser)`` and ``run(args) -> int``, and its one line.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("bench", "perfgate.benchmark", "measure collectives, as ds_bench does, with checked data"),
    ("baseline", "perfgate.report.baselines", "list, show, accept and pin stored baselines"),
    ("compare", "perfgate.compare", "measure two revisions side by side"),
    ("doctor", "perfgate.doctor", "try out what this machine lets the gate see"),
    ("history", "perfgate.report.history", "find lasting steps in the stored sessions"),
    ("report", "perfgate.report.merge", "make one Markdown table from JUnit files"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status: 0 done, 1 found something, 2 cannot."""
    parser = argparse.ArgumentParser(
        prog="perfgate", description="The performance gate's command line. See also: pytest --help."
    )
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    words = list(sys.argv[1:] if argv is None else argv)
    for name, module, text in COMMANDS:
        sub = subparsers.add_parser(name, help=text, description=text)
        if name in words[:1]:
            importlib.import_module(module).configure(sub)
    words, passed_on = _cut(words)
    args = parser.parse_args(words)
    if passed_on and "passed_on" not in args:
        parser.error(f"{args.command} takes nothing after --")
    if passed_on:
        args.passed_on = passed_on
    module = next(module for name, module, _ in COMMANDS if name == args.command)
    try:
        status: int = importlib.import_module(module).run(args)
    except PerfgateError as error:
        print(f"perfgate {args.command}: {error}", file=sys.stderr)
        return 2
    return status


def _cut(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before ``--``, and those after it: a subcommand hands them on."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]
