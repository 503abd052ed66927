# SPDX-License-Identifier: Apache-2.0
"""posenc check."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from posenc.cli.common import WithOutput
from posenc_cli.answers import DONE, FAILED
from posenc_cli.arguments import How


@dataclass(kw_only=True)
class Check(WithOutput):
    """Check an encoding under padding, packing, windows, KV caches and more, in small models on the CPU."""

    examples: ClassVar = ("posenc check rope --fast", "posenc check fade.py:Fade")

    encoding: Annotated[
        str,
        "an encoding, or several joined by +; MODULE may be a path to a .py file",
        How("NAME or MODULE:CLASS", flag="name", positional=True, code=True, names="encoding"),
    ]
    fast: Annotated[bool, "only the checks that find most mistakes"] = False

    @classmethod
    def epilog(cls) -> str:
        return "Checks that fail for the same reason share a line. Exit code 0: all pass or do not apply, 1: one fails."

    def run(self) -> int:
        from dataclasses import asdict

        import posenc
        from posenc.conformance import check
        from posenc.lab.user_code import printing_to_stderr

        def make(config: Any) -> posenc.Encoding:
            return posenc.create(
                self.encoding,
                may_import=True,
                dim=config.dim,
                num_heads=config.num_heads,
                num_kv_heads=config.kv_heads,
                head_dim=config.width,
                num_layers=config.num_layers,
                max_positions=256,
            )

        with printing_to_stderr():  # what the tested code prints goes to stderr
            report = check(make, fast=self.fast)
        found = {"encoding": self.encoding, "passed": report.passed, "checks": list(map(asdict, report.outcomes))}
        self.emit(found, str(report))
        return DONE if report.passed else FAILED
