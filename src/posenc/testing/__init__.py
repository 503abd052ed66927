# SPDX-License-Identifier: Apache-2.0
"""What tests judge an implementation by, independent of it."""
