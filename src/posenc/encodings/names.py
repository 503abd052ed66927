# SPDX-License-Identifier: Apache-2.0
"""The names of this package: what its files define under a name and a title, see registry.py."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from posenc.encodings.create_encoding import ENCODINGS, create, from_spec

# fmt: off
if _TYPE_CHECKING:  # type checkers do not find a class by its definition; one that is not listed here is Any to them
    from posenc.encodings.absolute import Absolute
    from posenc.encodings.deberta import EnhancedMaskDecoder
    from posenc.encodings.distance import DistanceBias
    from posenc.encodings.mapped import Mapped
else:
    from posenc.encodings.absolute import Absolute
    from posenc.encodings.deberta import EnhancedMaskDecoder
    from posenc.encodings.distance import DistanceBias
    from posenc.encodings.mapped import Mapped

    _CLASSES = {x.__name__: x for x in [*ENCODINGS.values(), Absolute, DistanceBias, EnhancedMaskDecoder, Mapped]}  # type: ignore[attr-defined]
    globals().update(_CLASSES)
    __all__ = [*_CLASSES, "ENCODINGS", "create", "from_spec"]
# fmt: on
