"""What the commands share: exit codes, help, and how a result is given out."""

import argparse
import json

DONE, FAILED, USAGE = 0, 1, 2


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Names the defaults that say something."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=110)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        told = action.default in (None, False, []) or "(default: " in (action.help or "")
        return action.help if told else super()._get_help_string(action)


class TableFormatter(HelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Leaves the table under the options as it is."""


def add_output(parser: argparse.ArgumentParser, also: str = "") -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", metavar="DIR", help=" ".join(f"also write the JSON {also} into this folder".split()))


def emit(options: argparse.Namespace, data: object, text: str) -> int:
    from posenc.files import Folder

    if options.out is not None:
        Folder(options.out).write(f"{options.command}.json", json.dumps(data, indent=1))
    print(json.dumps(data, indent=1) if options.json else text)
    return DONE
