# SPDX-License-Identifier: Apache-2.0
"""Every task by name, and how to make one from a text."""

from dataclasses import fields

from posenc.errors import unknown
from posenc.spec import parse_single, unquoted
from posenc.tasks.copying import Copying
from posenc.tasks.key_value import Facts, KeyValue
from posenc.tasks.multi_document import MultiDocument
from posenc.tasks.needle import Needle
from posenc.tasks.passkey import Passkey
from posenc.tasks.perplexity import Perplexity, Repeated
from posenc.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    "facts": Facts,
    "key_value": KeyValue,
    "multi_document": MultiDocument,
    "needle": Needle,
    "passkey": Passkey,
    "perplexity": Perplexity,
    "repeated": Repeated,
    "copying": Copying,
}
"""Every task by name."""


def create(text: str) -> Task:
    """A task from its name and options, as in "key_value:keys=digits:query_aware=true". A colon in a value is written
    as \\:, as in "needle:source=C\\:/essays.txt".

    Raises:
        InputError: an unknown task or option, or a value that does not serve.
    """
    name = text.partition(":")[0].strip()
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    spec = parse_single(text)
    cls = TASKS[name]
    types = {field.name: field.type for field in fields(cls)}
    options = spec.values(name, types)
    for key, value in spec.options:
        if types[key] in (str, str | None) and options[key] is not None:  # a file called 1984
            options[key] = unquoted(value)
    return cls(**options)
