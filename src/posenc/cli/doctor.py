# SPDX-License-Identifier: Apache-2.0
"""posenc doctor."""

import argparse

from posenc.cli.common import DONE, FAILED, add_model, add_output, emit, read_model


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "docs/doctor.md tells what each finding means. Exit code 0: nothing is wrong (hazards and notes may be told), "
        "1: something is."
    )
    add_model(parser)
    add_output(parser)
    parser.set_defaults(run=run_doctor)


def run_doctor(options: argparse.Namespace, command: str) -> int:
    from posenc.pretrained.doctor import doctor

    model, tokenizer = read_model(options)
    diagnosis = doctor(model, tokenizer)
    emit(options, {"command": command, "name": options.model, **diagnosis.to_dict()}, str(diagnosis))
    return FAILED if diagnosis.wrong else DONE
