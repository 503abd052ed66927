# SPDX-License-Identifier: Apache-2.0
"""python -m posenc"""

import sys

from posenc.cli import main

sys.exit(main())
