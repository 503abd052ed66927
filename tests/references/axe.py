"""axe-core, which finds faults of accessibility in a page: `python -m references.axe` fetches it with npm, once."""

import sys

from references.npm import Packed

AXE = Packed(
    "axe-core-4.14.1.min.js", "axe-core@4.14.1", "package/axe.min.js", 0.6,
    "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c", "POSENC_REQUIRE_AXE",
)  # fmt: skip

if __name__ == "__main__":
    try:
        print(f"axe-core: {AXE.fetch()}")
    except OSError as error:
        sys.exit(f"axe-core: {error}")
