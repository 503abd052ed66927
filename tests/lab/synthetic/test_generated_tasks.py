# SPDX-License-Identifier: Apache-2.0
"""The generated tasks, sequence by sequence, against answers that plain Python computes."""

from dataclasses import replace

import pytest
import torch

from posenc import InputError
from posenc.lab.synthetic.experiment import IGNORED
from posenc.lab.synthetic.tasks import ELEMENTS, TASKS

MANY = 40


def generated(task, length, **changes):
    """The rows of a task at a length: inputs, and targets by index where one is asked for."""
    s = TASKS[task](length=length, factors=(1,), **changes)
    batch = s.generate(MANY, length, torch.Generator().manual_seed(3))
    assert batch.inputs.shape == batch.targets.shape == (MANY, s.tokens_in(length))
    assert 0 <= int(batch.inputs.min()) <= int(batch.inputs.max()) < s.vocabulary
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        yield s, inputs, {at: target for at, target in enumerate(targets) if target != IGNORED}


def question_and_answer(inputs, targets):
    """Of a sequence that ends in its answer; each token of the answer is read after it was asked for."""
    first = min(targets)
    answer = list(targets.values())
    assert list(targets) == list(range(first, len(inputs)))
    assert inputs[first + 1 :] == answer[:-1]
    return inputs[: first + 1], answer


@pytest.mark.parametrize(
    ("task", "rewritten"),
    [("copy", list), ("reverse", lambda x: x[::-1]), ("sort", sorted)],
    ids=["copy", "reverse", "sort"],
)
@pytest.mark.parametrize("length", [1, 7])
def test_symbols_are_written_again(task, rewritten, length):
    seen = set()
    for s, inputs, targets in generated(task, length, symbols=5):
        question, answer = question_and_answer(inputs, targets)
        assert question[-1] == s.symbols
        assert len(question) == length + 1
        assert answer == rewritten(question[:-1])
        seen |= set(answer)
    assert seen == set(range(5))


@pytest.mark.parametrize(("length", "base"), [(1, 10), (5, 10), (6, 3)])
def test_sums_are_those_of_the_numbers(length, base):
    def number(digits):
        return sum(digit * base**power for power, digit in enumerate(digits))

    carried = 0
    for _, inputs, targets in generated("addition", length, symbols=base):
        question, answer = question_and_answer(inputs, targets)
        a, b = question[:length], question[length + 1 : -1]
        assert (question[length], question[-1], len(b), len(answer)) == (base, base + 1, length, length + 1)
        assert number(answer) == number(a) + number(b)
        carried += answer[-1]
    assert 0 < carried < MANY


@pytest.mark.parametrize("length", [8, 30])
def test_recall_asks_once_for_the_value_of_every_key(length):
    distances = []
    for s, inputs, targets in generated("recall", length, symbols=12):
        pairs = length // 8
        keys, values = inputs[: 2 * pairs : 2], inputs[1 : 2 * pairs : 2]
        assert len({*keys}) == len({*values}) == pairs
        assert max(keys) < s.symbols <= min(values)
        rest = inputs[2 * pairs :]
        assert sorted(token for token in rest if token != 2 * s.symbols) == sorted(keys)
        assert len(targets) == pairs
        for at, target in targets.items():
            assert target == values[keys.index(inputs[at])]
            distances.append((at - 2 * pairs) // 2)
    slots = (length - 2 * (length // 8)) // 2
    assert set(distances) <= set(range(slots))
    near = sum(distance < slots / 3 for distance in distances) / len(distances)
    assert near > 0.45  # the power law: uniform gaps would give a third


@pytest.mark.parametrize("length", [3, 12])
def test_induction_asks_for_the_symbol_after_the_mark(length):
    places = set()
    for s, inputs, targets in generated("induction", length, symbols=6):
        first, last = (at for at, token in enumerate(inputs) if token == s.symbols)
        assert last == length - 1
        assert targets == {last: inputs[first + 1]}
        places.add(first)
    assert places == set(range(length - 2))


@pytest.mark.parametrize("length", [1, 9])
def test_parity_is_asked_for_at_the_end(length):
    for modulus in (2, 3):
        for s, inputs, targets in generated("parity", length, symbols=modulus):
            assert inputs[-1] == s.symbols == modulus
            assert targets == {length: sum(inputs[:-1]) % modulus}


def test_brackets_match_and_the_innermost_open_one_is_asked_for():
    deepest, closed = 0, 0
    for s, inputs, targets in generated("dyck", 60, symbols=3):
        stack = []
        for at, token in enumerate(inputs):
            if token < s.symbols:
                stack.append(token)
            else:
                assert stack.pop() == token - s.symbols
                closed += 1
            deepest = max(deepest, len(stack))
            assert targets[at] == (stack[-1] if stack else 2 * s.symbols)
    assert deepest == s.DEPTH
    assert closed > MANY * 60 / 4


@pytest.mark.parametrize(("ignored", "share"), [(10, 0.1), (80, 0.8), (98, 0.98), (None, 0.8)])
def test_a_flip_flop_is_read_as_it_was_last_written(ignored, share):
    s, length = TASKS["flip_flop"](), 50
    write, read, ignore = range(s.symbols, s.symbols + 3)
    draws = torch.Generator().manual_seed(3)
    batch = s.generate(MANY, length, draws) if ignored is None else s.instructed(MANY, length, ignored, draws)
    done = []
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        instructions, stored = list(zip(inputs[::2], inputs[1::2], strict=True)), None
        for at, (instruction, symbol) in enumerate(instructions):
            if instruction == write:
                stored = symbol
            assert targets[2 * at] == (stored if instruction == read else IGNORED)
            assert targets[2 * at + 1] == IGNORED
            assert symbol in (range(s.symbols) if instruction != read else [stored])
        assert (instructions[0][0], instructions[-1][0]) == (write, read)
        done += [instruction for instruction, _ in instructions[1:-1]]
    assert done.count(ignore) / len(done) == pytest.approx(share, abs=0.03)
    assert done.count(write) / len(done) == pytest.approx((1 - share) / 2, abs=0.03)


def test_a_flip_flop_is_tested_dense_as_trained_and_sparse():
    s = TASKS["flip_flop"](sequences=20)
    corpus, s = s.load("generated")
    ignored = {
        condition: (batch.inputs == s.symbols + 2).sum() / (20 * s.length) for condition, batch in corpus.test.items()
    }
    assert [*ignored] == [10, 80, 98]
    assert all(abs(share - condition / 100) < 0.05 for condition, share in ignored.items())
    assert (s.trained_at, s.larger) == (80, (98,))
    assert s.spelled(98) == "98 % ignored"


@pytest.mark.parametrize("back", [1, 2, 3, 4])
def test_n_back_asks_for_the_value_that_the_key_had_n_times_before(back):
    asked = 0
    for s, inputs, targets in generated(f"n_back_{back}", 4 * back + 3, symbols=5):
        past = {}
        for at in range(0, len(inputs), 2):
            key, value = inputs[at : at + 2]
            before = past.setdefault(key, [])
            assert targets.get(at) == (before[-back] if len(before) >= back else None)
            before.append(value)
            assert s.symbols <= key < s.symbols + s.KEYS
        assert all(at % 2 == 0 for at in targets)
        asked += len(targets)
    assert asked > MANY


@pytest.mark.parametrize("length", [8, 20])
def test_selective_copying_asks_for_the_symbols_among_the_blanks(length):
    first = set()
    for s, inputs, targets in generated("selective_copy", length, symbols=6):
        question, answer = question_and_answer(inputs, targets)
        assert (len(question), question[-1]) == (length + 1, s.symbols + 1)
        assert answer == [token for token in question[:-1] if token != s.symbols]
        assert len(answer) == s.COPIED
        first.add(next(at for at, token in enumerate(question) if token != s.symbols))
    assert len(first) == min(length - 7, len(first)) > (length > 8)


@pytest.mark.parametrize("length", [9, 30])
def test_indirect_indexing_asks_for_the_symbol_at_a_shift_from_another(length):
    shifts = set()
    for s, inputs, targets in generated("indirect_indexing", length, symbols=40):
        *text, source, shift = inputs
        assert len({*text}) == length
        moved = shift - s.symbols - s.FARTHEST
        moved += moved >= 0
        assert 0 <= text.index(source) + moved < length
        assert targets == {length + 1: text[text.index(source) + moved]}
        shifts.add(moved)
    assert shifts <= {*range(-8, 9)} - {0}
    assert min(shifts) < -5
    assert max(shifts) > 5


def test_the_answers_of_a5_are_permutations_one_after_another():
    def moved(things, element):
        return [things[ELEMENTS[element].index(place)] for place in range(5)]

    assert len({*ELEMENTS}) == 60
    for element in ELEMENTS:  # even: an even number of swaps sorts it
        swaps, things = 0, list(element)
        for place in range(5):
            while things[place] != place:
                other = things[place]
                things[place], things[other] = things[other], things[place]
                swaps += 1
        assert swaps % 2 == 0
    for _, inputs, targets in generated("a5", 9):
        things = [0, 1, 2, 3, 4]
        for at, element in enumerate(inputs):
            things = moved(things, element)
            assert things == moved([0, 1, 2, 3, 4], targets[at])


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_a_function_of_its_seed(name):
    s = TASKS[name]()
    assert s.name == name
    one, two = s.load("generated")[0], s.load("generated")[0]
    assert one.digest == two.digest
    s.check_data(one)
    drawn = [s.draw(None, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0].inputs, drawn[1].inputs)
    assert drawn[0].inputs.shape != drawn[2].inputs.shape or not torch.equal(drawn[0].inputs, drawn[2].inputs)
    assert (drawn[0].inputs[:, 0] == s.vocabulary).all()
    assert (drawn[0].targets[:, 0] == IGNORED).all()
    for condition in s.conditions:
        batch = one.test[condition]
        assert batch.inputs.shape == (s.sequences, s.tokens_at(condition))
        assert batch.inputs.shape[1:] == s.example(condition).shape[1:]
        assert (batch.targets != IGNORED).any(1).all()
        assert int(batch.inputs.max()) < s.rows
        assert int(batch.targets.max()) < s.rows
    assert one.chance.keys() == set(s.conditions)
    assert all(0 < chance < 0.7 for chance in one.chance.values())
    assert one.facts()["source"].startswith("Source: ")


def test_training_draws_every_length_up_to_the_longest():
    for name, lengths in (("copy", range(1, 17)), ("recall", range(8, 33, 2)), ("induction", range(3, 33))):
        s = TASKS[name](batch_size=1, length=lengths[-1])
        draws = torch.Generator().manual_seed(0)
        seen = {s.draw(None, draws).inputs.shape[1] for _ in range(60 * len(lengths))}
        assert seen == {1 + s.tokens_in(length) for length in lengths}


class Answers(torch.nn.Module):
    """Predicts given classes."""

    encoding = torch.nn.Identity()

    def __init__(self, classes, count):
        super().__init__()
        self.classes, self.count = classes, count

    def forward(self, inputs, positions=None):
        classes = self.classes[len(inputs[0])]
        return 20.0 * torch.nn.functional.one_hot(classes, self.count)


def test_accuracy_is_of_tokens_and_of_complete_answers():
    s = TASKS["copy"](length=2, factors=(1, 2), sequences=3, symbols=4)
    corpus, s = s.load("generated")
    classes = {}
    for factor, batch in corpus.test.items():
        classes[batch.inputs.shape[1]] = batch.targets.clamp(min=0)
        if factor == 2:
            classes[batch.inputs.shape[1]][1, -1] += 1  # one token of one answer is wrong
    model = Answers(classes, s.rows)
    (variant,) = s.variants("none", s.make_encoding("none"))
    scores = s.evaluate(model, variant, corpus.test)
    assert scores.extra["accuracy"][1].tolist() == [1, 1, 1]
    assert scores.extra["accuracy"][2].tolist() == [1, 0.75, 1]
    assert scores.extra["exact"][2].tolist() == [1, 0, 1]
    assert scores.paired[2].tolist() == pytest.approx([0, 5, 0], abs=1e-4)


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("copy", {"symbols": 1}, "symbols=1: must be at least 2"),
        ("copy", {"length": 0}, "length=0: must be at least 1"),
        ("copy", {"factors": (2, 1)}, r"factors=\(2, 1\): start at 1 and grow"),
        ("recall", {"length": 33}, "length=33: the lengths of task recall start at 8 in steps of 2"),
        ("recall", {"symbols": 31}, "symbols=31: task recall has 32 different symbols"),
        ("induction", {"length": 2}, "length=2: the lengths of task induction start at 3"),
        (
            "flip_flop",
            {"factors": (1, 2)},
            r"factors=\(1, 2\): task flip_flop is tested with other shares of ignored instructions",
        ),
        ("n_back_4", {"length": 16}, "length=16: the lengths of task n_back_4 start at 17"),
        ("indirect_indexing", {"length": 17}, "symbols=128: task indirect_indexing has 136 different symbols"),
        ("a5", {"symbols": 59}, "symbols=59: the group of task a5 has 60 elements"),
    ],
)
def test_settings_that_do_not_fit_are_refused(task, change, message):
    with pytest.raises(InputError, match=message):
        replace(TASKS[task](), **change)


def test_other_data_are_refused():
    s = TASKS["sort"]()
    with pytest.raises(InputError, match="data='pydoc': the sequences of task sort are generated"):
        s.load("pydoc")
    with pytest.raises(InputError, match="length=8: the sequences were generated for other settings"):
        replace(s, length=8).check_data(s.load("generated")[0])
