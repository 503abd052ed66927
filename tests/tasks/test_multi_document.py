"""Questions over many documents, against what is published: nelson-liu/lost-in-the-middle."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc.tasks import Sample, create
from posenc.tasks.multi_document import CLOSED_BOOK, PROMPT, QUERY_AWARE, best_subspan_em, normalise
from posenc.tasks.task import index_at
from references.tokenizers import ByteTokenizer

BEGIN = (
    "Write a high-quality answer for the given question using only the provided search results (some of which might be "
    "irrelevant)."
)
LISTED = re.compile(r"^Document \[(\d+)\]\(Title: (.*?)\) (.*)$", re.MULTILINE)


def test_the_templates_are_the_published_ones():
    """src/lost_in_the_middle/prompts: qa, qa_with_query_aware_contextualization, closedbook_qa."""
    assert PROMPT == BEGIN + "\n\n{documents}\n\nQuestion: {question}\nAnswer:"
    assert QUERY_AWARE == BEGIN + "\n\nQuestion: {question}\n\n{documents}\n\nQuestion: {question}\nAnswer:"
    assert CLOSED_BOOK == "Question: {question}\nAnswer:"


@settings(max_examples=50)
@given(st.floats(0, 1), st.integers(2, 30), st.integers(0, 200))
def test_invented_documents_answer_in_one_index_at(depth, count, index):
    sample = create(f"multi_document:documents={count}").sample(ByteTokenizer(), 10**5, depth=depth, index=index)
    listed = LISTED.findall(sample.prompt)
    assert [int(number) for number, _, _ in listed] == list(range(1, count + 1))
    assert len({title for _, title, _ in listed}) == count
    (answer,) = sample.references
    holding = [i for i, (_, title, text) in enumerate(listed) if normalise(answer) in normalise(f"{title} {text}")]
    assert holding == [index_at(depth, count)]
    assert answer not in sample.prompt.rsplit("Question:", 1)[1]


@pytest.mark.parametrize(
    ("generated", "references", "score"),
    [
        (" Wilhelm Conrad Röntgen", ["Wilhelm Conrad Röntgen"], 1),
        (" It was wilhelm conrad  röntgen, in 1901.", ["Wilhelm Conrad Röntgen"], 1),
        ("\n Wilhelm Conrad Röntgen", ["Wilhelm Conrad Röntgen"], 0),  # the first line only
        (" Wilhelm\nConrad Röntgen", ["Wilhelm Conrad Röntgen"], 0),
        ("May 18 2018", ["May 18, 2018"], 1),
        ("the U.S.A.", ["USA"], 1),
        ("Beatles", ["The Beatles"], 1),
        ("the Who", ["a who"], 1),
        ("Theodore", ["The Odore"], 1),  # a part of a word counts
        ("then", ["n"], 1),
        ("Bob", ["Alice", "bob"], 1),
        ("Rontgen", ["Röntgen"], 0),
        ("", ["x"], 0),
        ("anything", ["The"], 1),  # nothing is left of it: as there
        ("14–15", ["14-15"], 0),  # a dash is no ASCII punctuation
    ],
)
def test_the_score(generated, references, score):
    """metrics.py (best_subspan_em, normalize_answer) and evaluate_qa_responses.py (the first line)."""
    sample = Sample(torch.tensor([0]), 1, references=tuple(references))
    assert create("multi_document").score(generated, sample) == score


def test_subspans_of_full_texts():
    assert best_subspan_em("one\ntwo", ["one two"]) == 1  # the line is the task's business
    assert normalise("Bre\u0301a an\u0303") == "bre\u0301a an\u0303"  # accents on their own
    assert normalise(" The  Quick, (brown) an fox's a ") == "quick brown foxs"
