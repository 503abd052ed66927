"""Questions over many documents, against what is published: nelson-liu/lost-in-the-middle."""

import gzip
import json
import re
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc.errors import InputError
from posenc.tasks import Sample, create
from posenc.tasks.multi_document import (
    CLOSED_BOOK,
    MOST,
    PROMPT,
    QUERY_AWARE,
    RANDOM_ORDER,
    TEMPLATES,
    best_subspan_em,
    invent,
    normalise,
    read_questions,
)
from posenc.tasks.task import index_at
from references.tokenizers import ByteTokenizer

BEGIN = (
    "Write a high-quality answer for the given question using only the provided search results (some of which might be "
    "irrelevant)."
)
LISTED = re.compile(r"^Document \[(\d+)\]\(Title: (.*?)\) (.*)$", re.MULTILINE)


def entry(number=0, count=5, gold=2, **other):
    """A line of a file in the published format."""
    contexts = [
        {"title": f"T{i}", "text": f"Text {number}-{i}.", "hasanswer": i == gold, "isgold": i == gold}
        for i in range(count)
    ]
    contexts[gold]["text"] = f"It was Röntgen {number}, they say."
    return {"question": f"who was it {number}", "answers": [f"Röntgen {number}", "W. C."], "ctxs": contexts} | other


def written(path, entries):
    text = "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in entries)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def test_the_templates_are_the_published_ones():
    """src/lost_in_the_middle/prompts: qa, qa_with_query_aware_contextualization, qa_ordered_randomly, closedbook_qa."""
    assert PROMPT == BEGIN + "\n\n{documents}\n\nQuestion: {question}\nAnswer:"
    assert QUERY_AWARE == BEGIN + "\n\nQuestion: {question}\n\n{documents}\n\nQuestion: {question}\nAnswer:"
    ordered = BEGIN + " The search results are ordered randomly."
    assert ordered + "\n\n{documents}\n\nQuestion: {question}\nAnswer:" == RANDOM_ORDER
    assert CLOSED_BOOK == "Question: {question}\nAnswer:"


@pytest.mark.parametrize("name", ["questions.jsonl", "questions.jsonl.gz"])
def test_a_file_in_full(tmp_path, name):
    file = written(tmp_path / name, [entry()])
    sample = create(f"multi_document:file={file}").sample(ByteTokenizer(), 3000, depth=0)
    assert sample.prompt == (
        BEGIN + "\n\nDocument [1](Title: T2) It was Röntgen 0, they say.\nDocument [2](Title: T0) Text 0-0.\n"
        "Document [3](Title: T1) Text 0-1.\nDocument [4](Title: T3) Text 0-3.\nDocument [5](Title: T4) Text 0-4.\n\n"
        "Question: who was it 0\nAnswer:"
    )
    assert sample.answer == " Röntgen 0"
    assert sample.references == ("Röntgen 0", "W. C.")
    assert ByteTokenizer().decode(sample.ids[slice(*sample.needle)]) == "Röntgen 0"
    closed = create(f"multi_document:file={file}:closed_book=true").sample(ByteTokenizer(), 3000)
    assert closed.prompt == "Question: who was it 0\nAnswer:"
    assert closed.needle is None


@pytest.mark.parametrize(("depth", "order"), [(0.5, "T0 T1 T2 T3 T4"), (0.8, "T0 T1 T3 T2 T4"), (1, "T0 T1 T3 T4 T2")])
def test_the_right_document_moves_and_the_others_keep_their_order(tmp_path, depth, order):
    file = written(tmp_path / "q.jsonl", [entry()])
    prompt = create(f"multi_document:file={file}").sample(ByteTokenizer(), 3000, depth=depth).prompt
    assert " ".join(title for _, title, _ in LISTED.findall(prompt)) == order
    prompt = create(f"multi_document:file={file}:documents=2").sample(ByteTokenizer(), 3000, depth=depth).prompt
    assert {title for _, title, _ in LISTED.findall(prompt)} == {"T0", "T2"}  # the likeliest of the others


def test_a_random_order_shuffles_the_others(tmp_path):
    file = written(tmp_path / "q.jsonl", [entry(count=30, gold=0)])
    task = create(f"multi_document:file={file}:ordering=random")
    first, second = (LISTED.findall(task.sample(ByteTokenizer(), 9000, depth=depth).prompt) for depth in (0, 1))
    assert [title for _, title, _ in first[1:]] == [title for _, title, _ in second[:-1]]
    assert first[0][1] == second[-1][1] == "T0"
    assert sorted(title for _, title, _ in first) == sorted(f"T{i}" for i in range(30))
    assert [title for _, title, _ in first[1:]] != [f"T{i}" for i in range(1, 30)]


def test_every_question_comes_once_a_seed(tmp_path):
    file = written(tmp_path / "q.jsonl", [entry(number) for number in range(12)])
    task = create(f"multi_document:file={file}")
    orders = [[task.sample(ByteTokenizer(), 3000, seed=seed, index=i).answer for i in range(12)] for seed in (0, 1)]
    assert set(orders[0]) == set(orders[1]) == {f" Röntgen {number}" for number in range(12)}
    assert orders[0] != orders[1]
    with pytest.raises(InputError, match=r"has 12 questions, no sample 13; ask for fewer samples"):
        task.sample(ByteTokenizer(), 3000, index=12)


def test_documents_that_hold_the_answer_too_are_left_out(tmp_path):
    contexts = entry()["ctxs"]
    contexts[4]["hasanswer"] = True
    unmarked = [{key: value for key, value in context.items() if key != "isgold"} for context in contexts]
    for given_contexts in (contexts, unmarked):
        file = written(tmp_path / "q.jsonl", [entry(ctxs=given_contexts)])
        (question,) = read_questions(file)
        assert question.gold.title == "T2"
        assert [document.title for document in question.distractors] == ["T0", "T1", "T3"]


def test_an_answer_that_is_not_there_as_written_is_the_full_document(tmp_path):
    file = written(tmp_path / "q.jsonl", [entry(answers=["the röntgen, 0"])])
    sample = create(f"multi_document:file={file}").sample(ByteTokenizer(), 3000)
    shown = ByteTokenizer().decode(sample.ids[slice(*sample.needle)])
    assert shown == "Document [3](Title: T2) It was Röntgen 0, they say."


def test_the_number_of_a_document_is_no_answer(tmp_path):
    contexts = entry()["ctxs"]
    contexts[2]["text"] = "There are 3 of them."
    file = written(tmp_path / "q.jsonl", [entry(answers=["3"], ctxs=contexts)])
    sample = create(f"multi_document:file={file}").sample(ByteTokenizer(), 3000)
    first = sample.needle[0]
    assert ByteTokenizer().decode(sample.ids[first - 10 : first + 1]) == "There are 3"


BAD = [
    ("{", "truncated"),
    ("[1]", "Expected `object`"),
    (json.dumps({"query": "x"}), "question"),
    (json.dumps(entry(question="")), "no empty text"),
    (json.dumps(entry(answers="x")), "answers"),
    (json.dumps(entry(answers=[1])), "answers"),
    (json.dumps(entry(ctxs=[{"title": "T"}])), "`text`"),
    (json.dumps(entry(ctxs=["T"])), "ctxs"),
    (json.dumps(entry(ctxs=[{"title": "T", "text": "x"}])), '"isgold": true'),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_bad_lines_are_named(tmp_path, line, message):
    file = written(tmp_path / "q.jsonl", [entry(), line])
    with pytest.raises(InputError, match=rf"file={re.escape(file)}, line 2: .*{re.escape(message)}"):
        read_questions(file)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.jsonl': No such file or directory; give JSON lines"):
        read_questions(str(tmp_path / "gone.jsonl"))
    with pytest.raises(InputError, match=r"no questions in it; give a JSON object a line"):
        read_questions(written(tmp_path / "empty.jsonl", ["\n"]))
    (tmp_path / "zipped.jsonl").write_bytes(gzip.compress(b"{}"))
    with pytest.raises(InputError, match=r"zipped\.jsonl': .*; give JSON lines in UTF-8, \.jsonl or \.jsonl\.gz"):
        read_questions(str(tmp_path / "zipped.jsonl"))
    (tmp_path / "plain.jsonl.gz").write_bytes(b"{}")
    with pytest.raises(InputError, match=r"plain\.jsonl\.gz': Not a gzipped file.*; give JSON lines"):
        read_questions(str(tmp_path / "plain.jsonl.gz"))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(entry()).encode())[:-9])
    with pytest.raises(InputError, match=r"cut\.jsonl\.gz': .*; give JSON lines"):
        read_questions(str(tmp_path / "cut.jsonl.gz"))


def test_a_file_that_changes_is_read_again(tmp_path):
    path = tmp_path / "q.jsonl"
    assert len(read_questions(written(path, [entry()]))) == 1
    assert len(read_questions(written(path, [entry(), entry(1)]))) == 2


def test_options_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"unknown ordering 'randomly': did you mean 'random'"):
        create("multi_document:ordering=randomly")
    with pytest.raises(InputError, match=r"query_aware=True, ordering='random', .* have no common prompt"):
        create("multi_document:ordering=random:query_aware=true")
    with pytest.raises(InputError, match=r"documents=0: give 1 to 3000, or none for as many as fit"):
        create("multi_document:documents=0")
    file = written(tmp_path / "q.jsonl", [entry()])
    with pytest.raises(InputError, match=r"documents=6: the question 'who was it 0' in .* has 5.* give 5 or fewer"):
        create(f"multi_document:file={file}:documents=6").sample(ByteTokenizer(), 3000)
    long = written(tmp_path / "long.jsonl", [entry(question="why " * 900)])
    with pytest.raises(InputError, match=r"length=3000: multi_document:file=.* needs about \d{4} tokens"):
        create(f"multi_document:file={long}").sample(ByteTokenizer(), 3000)


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


@pytest.mark.parametrize("kind", TEMPLATES, ids=lambda kind: kind.question)
def test_every_kind_is_asked_about(kind):
    words = kind.question.split("{")[0]
    questions = [invent(Random(seed), 0) for seed in range(60)]
    asked = [question for question in questions if question.text.startswith(words)]
    assert asked
    for question in asked:
        assert question.answers[0] in question.gold.text
        assert "{" not in question.text + question.gold.title + question.gold.text


def test_names_suffice_for_the_most_documents():
    question = invent(Random(0), MOST - 1)
    assert len({document.title for document in (question.gold, *question.distractors)}) == MOST


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
