# SPDX-License-Identifier: Apache-2.0
"""The documentation's site: docs/*.md as they are, and the pages that the code tells about itself.

cd docs && python -m website [--out ../site]
"""
