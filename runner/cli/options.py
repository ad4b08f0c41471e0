"""What the commands' parsers share: their errors, their --help, and the options that several have."""

import argparse
from pathlib import Path
from typing import NoReturn

from ...strategies.errors import ConfigError
from ..machine.folders import check_folder


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A wrong option is a wrong request like any other: one sentence, exit code 2."""
        raise ConfigError(f"{message} ({self.prog} --help)")


def parser_of(command: str, about: str = "", *, codes: str = "") -> Parser:
    """The parser of a command: what its --help says, and its exit codes."""
    return Parser(
        prog=f"daso-bench {command}",
        allow_abbrev=False,
        description=about,
        epilog=f"Exit codes: {codes}" if codes else "",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_config_dir(parser: Parser, about: str = "a folder of your own YAML files") -> None:
    """`--config-dir`, for `folder_of`."""
    parser.add_argument("--config-dir", metavar="DIR", help=about)


def add_dry_run(parser: Parser) -> None:
    """`--dry-run`, of what starts runs."""
    parser.add_argument("--dry-run", action="store_true", help="show what would run; nothing is started")


def folder_of(text: str | None) -> Path | None:
    """The absolute folder that `--config-dir` names, None without it. Raises ConfigError if there is none."""
    if text is None:
        return None
    folder = Path(text).absolute()
    check_folder(folder, f"--config-dir={text}")
    return folder
