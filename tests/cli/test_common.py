# SPDX-License-Identifier: Apache-2.0
"""What commands change while they run is as it was afterwards, come what may."""

import warnings

import pytest

from posenc.cli.common import told


def fails():
    with told("eval"):
        warnings.warn("posenc: long text", stacklevel=1)
        raise ZeroDivisionError


def test_warnings_are_shown_as_before_after_a_failure(capsys):
    before = warnings.showwarning, list(warnings.filters)
    with pytest.raises(ZeroDivisionError):
        fails()
    assert (warnings.showwarning, list(warnings.filters)) == before
    assert capsys.readouterr().err == "posenc eval: warning: long text\n"


def test_warnings_of_others_are_shown_as_ever():
    with pytest.warns(UserWarning, match="not ours"), told("eval"):
        warnings.warn("not ours", stacklevel=1)
