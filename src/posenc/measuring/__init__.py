# SPDX-License-Identifier: Apache-2.0
"""What a number was measured on, how sure it is, and records of it that survive."""
