# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest with the fixture `posenc_doctor`. It is no part of the package posenc, whose import takes seconds, since
pytest imports it in every run."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from posenc.pretrained.findings import Diagnosis


@pytest.fixture
def posenc_doctor() -> "Callable[..., Diagnosis]":
    """`posenc_doctor(model, allow=())` examines a model as `posenc.doctor` does, and fails the test with the
    findings, except notes and those whose names are in `allow`."""
    return _examine


def _examine(model: Any, *, allow: Iterable[str] = ()) -> Any:
    from posenc.errors import check_word
    from posenc.pretrained.doctor import doctor
    from posenc.pretrained.findings import FINDINGS

    __tracebackhide__ = True
    allow = tuple(allow)
    for name in allow:
        check_word("allow", name, FINDINGS)
    diagnosis = doctor(model)
    found = [each for each in diagnosis.findings if each.severity != "note" and each.name not in allow]
    if found:
        pytest.fail("posenc_doctor: " + "\n".join(map(str, found)), pytrace=False)
    return diagnosis
