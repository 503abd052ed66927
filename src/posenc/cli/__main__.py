# SPDX-License-Identifier: Apache-2.0
"""python -m posenc.cli"""

import sys

from posenc.cli import main

sys.exit(main())
