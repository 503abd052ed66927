"""Key-value retrieval, against what is published: nelson-liu/lost-in-the-middle."""

import json
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc.tasks import Sample, create
from posenc.tasks.key_value import PROMPT, QUERY_AWARE
from posenc.tasks.task import index_at
from references.tokenizers import ByteTokenizer

KINDS = {"uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", "digits": r"\d{4}"}
KINDS["words"] = r"[a-z]+( [a-z]+)?"


def test_the_templates_are_the_published_ones():
    """src/lost_in_the_middle/prompts/kv_retrieval.prompt and kv_retrieval_with_query_aware_contextualization.prompt."""
    assert PROMPT == (
        "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{records}\n\n"
        'Key: "{key}"\nCorresponding value:'
    )
    assert QUERY_AWARE == (
        'Extract the value corresponding to the specified key in the JSON object below.\n\nKey: "{key}"\n\nJSON data:\n'
        '{records}\n\nKey: "{key}"\nCorresponding value:'
    )


@settings(max_examples=50)
@given(
    st.floats(0, 1), st.integers(600, 3000), st.integers(0, 99), st.sampled_from(sorted(KINDS)),
    st.sampled_from(sorted(KINDS)), st.booleans(),
)  # fmt: skip
def test_the_object_is_json_with_the_record_in_its_place(depth, length, index, keys, values, query_aware):
    task = create(f"key_value:keys={keys}:values={values}:query_aware={query_aware}")
    sample = task.sample(ByteTokenizer(), length, depth=depth, index=index)
    written = sample.prompt.split("JSON data:\n")[1].split("\n\nKey: ")[0]
    records = json.loads(written, object_pairs_hook=list)
    assert len(records) >= 2
    assert len({key for key, _ in records}) == len({value for _, value in records}) == len(records)
    assert all(re.fullmatch(KINDS[keys], key) and re.fullmatch(KINDS[values], value) for key, value in records)
    # the published builder writes a record a line, from the second on after a space
    assert written == "{" + ",\n ".join(f'"{key}": "{value}"' for key, value in records) + "}"
    key, value = records[index_at(depth, len(records))]
    assert sample.references == (value,)
    template = QUERY_AWARE if query_aware else PROMPT
    assert sample.prompt == template.format(records=written, key=key)
    assert sample.answer == f" {value}"


def test_the_others_keep_their_order():
    task = create("key_value:pairs=9")
    orders = []
    for depth in (0, 0.3, 0.5, 1):
        sample = task.sample(ByteTokenizer(), 2000, depth=depth)
        lines = [line.strip(" {},") for line in sample.prompt.split("\n") if '": "' in line]
        at = next(i for i, line in enumerate(lines) if sample.references[0] in line)
        assert at == index_at(depth, 9)
        orders.append((lines.pop(at), lines))
    assert all(order == orders[0] for order in orders)


@pytest.mark.parametrize(
    ("generated", "score"),
    [
        ("ab12", 1),
        (' "AB12"', 1),
        ("The value is ab12.", 1),
        ("xab12x", 1),
        ("ab1 2", 0),
        ("ab1", 0),
        ("", 0),
        ("no\nab12", 1),
    ],
)
def test_the_value_counts_wherever_it_stands(generated, score):
    """evaluate_kv_responses.py: value.lower() in model_answer.lower()."""
    assert create("key_value").score(generated, Sample(torch.tensor([0]), 1, references=("aB12",))) == score
