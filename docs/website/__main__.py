# SPDX-License-Identifier: Apache-2.0
"""Builds the site: python -m website, in docs/ (`make docs`)."""

import argparse
import os
from pathlib import Path

from website.build import build
from website.page import ROOT

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m website", description="Build the documentation's site.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="the folder to make (default: site)")
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="PATH",
        help="of the generated pages only these: encodings/t5 frequencies",
    )
    parser.add_argument(
        "--url",
        default=os.environ.get("SITE_URL", ""),
        help="where the site will be, for shared links (default: $SITE_URL)",
    )
    given = parser.parse_args()
    print(f"{build(given.out, only=given.only, url=given.url)}: open it in a browser")
