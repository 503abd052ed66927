"""RULER's tasks, compared with the independent implementation inside lm-evaluation-harness."""

import random
import re
import sys
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posenc.errors import InputError
from posenc.tasks import TASKS, create, ruler
from posenc.tasks.passkey import NOISE
from posenc.tasks.ruler import NEEDLES, string_match_all
from references.tokenizers import small_tokenizer

RULER = [*(needle.name for needle in NEEDLES), "variable_tracking", "common_words", "frequent_words"]
NEEDLE = re.compile(r"One of the special magic (\w+) for (\S+) is: (\S+)\.")
MATERIAL = {
    "words": r"[^\s.]+-[^\s.]+", "numbers": r"[1-9]\d{6}",
    "uuids": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


@pytest.fixture(scope="module")
def theirs():
    """lm-eval's modules; the one for needles wants data of nltk, which only its essays need."""
    nltk = pytest.importorskip("nltk")
    pytest.importorskip("lm_eval")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk, "download", lambda *_: True)
        from lm_eval.tasks.ruler import cwe_utils, fwe_utils, niah_utils, prepare_niah, vt_utils
    patch.setattr(prepare_niah, "sent_tokenize", lambda text: re.split(r"(?<=\.) ", text))

    return SimpleNamespace(
        common=cwe_utils, frequent=fwe_utils, tracking=vt_utils, needles=prepare_niah, template=niah_utils.TEMPLATE
    )


def their_needles(theirs, task, count, tokenizer=None):
    """One of lm-eval's samples of a setting: the prompt with its prefix, and the references."""
    haystack = {"noise": NOISE, "essay": ESSAY, "needle": theirs.needles.NEEDLE}[task.haystack]
    random.seed(1)
    [sample] = theirs.needles.generate_samples(
        haystack, tokenizer, max_seq_length=count, template=theirs.template, num_samples=1,
        type_haystack={"noise": "repeat"}.get(task.haystack, task.haystack),
        type_needle_k=task.key_type, type_needle_v=task.value_type,
        num_needle_k=task.keys, num_needle_v=task.values, num_needle_q=task.queries,
    )  # fmt: skip
    return f"{sample['input']} {sample['gen_prefix']}", sample["outputs"]


ESSAY = " ".join(f"Sentence {i} says very little." for i in range(600)).split()  # lm-eval takes words, by the 500


def taken_apart(task, prompt, references):
    """Lines without the needles, the needles and their places, and the keys asked for."""
    context = prompt[prompt.index("\n") + 1 : prompt.rindex("\nWhat ")]
    queries = re.split(r", and |, ", prompt.rsplit(" for ", 1)[1].removesuffix(" mentioned in the provided text is"
                       if len(references) == 1 else " mentioned in the provided text are"))  # fmt: skip
    ends = r"(?<=\.) +(?=\S)| +(?=One of the special magic )"
    lines = re.split(ends, context.strip()) if task.haystack == "essay" else context.split("\n")
    hidden = [line for line in lines if NEEDLE.fullmatch(line)]
    if task.haystack == "needle":
        hidden = [line for line in hidden if NEEDLE.fullmatch(line)[2] in queries]
    at = [lines.index(line) - i for i, line in enumerate(hidden)]
    return [line for line in lines if line not in hidden], hidden, at, queries


@pytest.mark.parametrize("name", [needle.name for needle in NEEDLES])
def test_needle_prompts_are_theirs_byte_for_byte(theirs, tokenizer, name):
    """Their texts taken apart and put together again by ours."""
    task = create(name)
    prompt, references = their_needles(theirs, task, 1500, tokenizer)
    lines, hidden, at, queries = taken_apart(task, prompt, references)
    assert len(hidden) == max(task.keys, task.queries) * task.values
    pairs = [NEEDLE.fullmatch(line).groups() for line in hidden]
    assert hidden == [task.needle(key, value) for _, key, value in pairs]
    context, first = ruler.insert_needles(lines, hidden, at, ruler.HAYSTACKS[task.haystack])
    ours, before = task.prompt(context, queries)
    if (
        task.haystack == "essay"
    ):  # two places that coincide, or the very first, leave them an empty piece between spaces
        prompt = re.sub(" +", " ", prompt).replace("\n ", "\n")
    assert ours == prompt
    assert ours[before + first :].startswith(hidden[0])
    assert sorted(references) == sorted(value for _, key, value in pairs if key in queries)


def test_depths_of_an_essay_are_theirs(theirs):
    assert theirs.needles.DEPTHS == ruler.DEPTHS


@pytest.mark.parametrize("name", [needle.name for needle in NEEDLES])
def test_needles_are_made_as_theirs(tokenizer, name):
    task = create(name)
    sample = task.sample(tokenizer, 1500, depth=0.3, seed=4)
    lines, hidden, at, queries = taken_apart(task, sample.prompt, sample.references)
    kinds, keys, values = zip(*(NEEDLE.fullmatch(line).groups() for line in hidden), strict=True)
    assert set(kinds) == {task.value_type}
    assert all(re.fullmatch(MATERIAL[task.key_type], key) for key in keys)
    assert all(re.fullmatch(MATERIAL[task.value_type], value) for value in values)
    assert set(Counter(keys).values()) == {task.values}
    assert len(set(keys)) == max(task.keys, task.queries)
    assert sorted(sample.references) == sorted(v for k, v in zip(keys, values, strict=True) if k in queries)
    if task.haystack == "needle":
        assert all(NEEDLE.fullmatch(line) for line in lines)
    if task.haystack == "noise":
        assert set(lines) == {NOISE}
    if sample.needle:
        asked_for = at[keys.index(queries[0])]
        near = 2 if task.haystack == "essay" else 0  # sentences here are split more simply
        assert abs(asked_for - round(0.3 * len(lines))) <= near
        assert sample.references[0] in tokenizer.decode(sample.ids[slice(*sample.needle)])


def test_depth_moves_the_needle_and_nothing_else(tokenizer):
    for name in ("niah_single_1", "niah_multikey_1", "niah_multikey_2"):
        samples = [create(name).sample(tokenizer, 1500, depth=depth, seed=3) for depth in (0.0, 0.5, 1.0)]
        assert len({s.references for s in samples}) == 1
        assert len({tuple(sorted(s.prompt.split())) for s in samples}) == 1
        assert all(a.needle[0] < b.needle[0] for a, b in pairwise(samples))


def test_variable_tracking_is_theirs(theirs, monkeypatch):
    """With their chains and places; lm-eval misspells a word, and has a space where RULER has a line break."""
    random.seed(5)
    numpy.random.seed(5)
    chains = theirs.tracking.generate_chains(1, 4)
    monkeypatch.setattr(theirs.tracking, "generate_chains", lambda *_, **__: chains)
    random.seed(6)
    prompt, references = theirs.tracking.generate_input_output(20, 1, 4)
    [names], [[value, *_]] = chains
    ours = ruler.tracking_prompt([(value.split()[-1], names)], 20, random.Random(6))
    assert ours.split() == prompt.replace("assgined", "assigned").split()
    assert references == names
    context = ours.split(".\n\n", 1)[1].rsplit("\n", 1)[0]
    assert set(context.split("\n")) == {NOISE, value, *(f"VAR {b} = VAR {a} " for a, b in pairwise(names))}
    assert ours.endswith(", they are: ")


def test_common_words_are_theirs(theirs):
    sampled = [f"word{i}" for i in range(80)]
    for counts in (ruler.Counts(20, 3, 1), ruler.Counts(40, 10, 3), ruler.Counts(80, 30, 3)):
        random.seed(1)
        theirs.common.RNG.seed(7)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(random, "sample", lambda _, n: sampled[:n])
            context, common = theirs.common.get_example(counts.words, counts.often, counts.seldom)
        assert ruler.listed(sampled, counts, random.Random(7)) == context
        assert common == sampled[:10]
        assert counts.total == len(context.split()) // 2
    assert ruler.COMMON == theirs.common.TEMPLATE


@pytest.mark.parametrize(("length", "often", "shown"), [(1500, (6, 1), (3, 1)), (6000, (30, 3), (10, 3))])
def test_a_list_of_common_words(tokenizer, length, often, shown):
    sample = create("common_words").sample(tokenizer, length, seed=3)
    pattern = r"\d+\. (\S+)"
    first, second = sample.prompt.split("Below is")[1:]
    for text, (common, rare) in ((first, shown), (second, often)):
        listed, answer = text.split("Question:")
        counted = Counter(re.findall(pattern, listed))
        assert Counter(counted.values()) == {common: 10, rare: len(counted) - 10}
        named = re.findall(pattern, answer) or sample.references
        assert set(named) == {word for word, n in counted.items() if n == common}
    assert sample.answer.split()[1::2] == list(sample.references)


def test_frequencies_are_theirs(theirs, tokenizer, monkeypatch):
    """Our words, counts and template give lm-eval's text of as many words."""
    task = create("frequent_words")
    coded = sorted({"".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyz", k=6)) for i in range(28)})
    given = iter(coded)
    monkeypatch.setattr(random, "choices", lambda *_, **__: list(next(given)))
    text, answer, count = theirs.frequent.generate_input_output(1400, tokenizer, vocab_size=28, incremental=43)
    ranks = list(coded)
    random.Random(theirs.frequent.SEED).shuffle(ranks)
    ranks[0] = "..."
    listed = [word for word, n in zip(ranks, task.counts(count, 28), strict=True) for _ in range(n)]
    random.Random(theirs.frequent.SEED).shuffle(listed)
    assert ruler.FREQUENT.format(context=" ".join(listed)) == text
    assert ranks[1:4] == answer


def test_the_three_most_frequent_words_are_known(tokenizer):
    task = create("frequent_words")
    for length in (700, 1500, 5000):
        sample = task.sample(tokenizer, length, seed=4)
        counted = Counter(sample.prompt.split("coded words. ")[1].split("\nQuestion")[0].split())
        del counted["..."]
        (a, _), (b, _), (c, third), (_, fourth) = counted.most_common(4)
        assert (a, b, c) == sample.references
        assert third > fourth
    assert all(task.counts(n, 9)[3] > task.counts(n, 9)[4] for n in range(task.least, 2000))


@given(
    st.text(alphabet="abAB1, ", max_size=30), st.lists(st.text("aB1", min_size=1, max_size=3), min_size=1, max_size=5)
)
def test_scores_are_theirs(generated, references):
    common_utils = pytest.importorskip("lm_eval.tasks.ruler.common_utils")
    cleaned = common_utils.postprocess_pred([generated])
    assert string_match_all(generated, references) == common_utils.string_match_all(cleaned, [references])


@pytest.mark.parametrize("name", RULER)
def test_a_text_fills_its_length_and_repeats(tokenizer, name):
    task = TASKS[name]()
    first, again, other = (task.sample(tokenizer, 1500, seed=1, index=i) for i in (0, 0, 1))
    assert first.prompt == again.prompt
    assert first.prompt != other.prompt
    taken = first.prompt_tokens + max(len(first.ids) - first.prompt_tokens, task.new_tokens)
    assert 1400 < taken <= 1500
    assert task.score(first.answer, first) == 1
    assert task.score("none of it", first) == 0
    assert task.score(first.references[0], first) == pytest.approx(1 / len(first.references))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("niah_single_1:haystack=hay", r"unknown haystack 'hay'"),
        ("niah_single_1:value_type=digits", r"unknown value_type 'digits'"),
        ("niah_multikey_1:keys=0", r"keys=0: must be at least 1"),
        ("niah_multikey_1:keys=41", r"keys=41, .*40 positions"),
        ("variable_tracking:hops=0", r"hops=0"),
        ("frequent_words:alpha=1.0", r"alpha=1.0"),
        ("frequent_words:alpha=nan", r"alpha=nan"),
    ],
)
def test_options_are_checked(text, message):
    with pytest.raises(InputError, match=message):
        create(text)


@pytest.mark.parametrize("alpha", [12, 300, 1000])
def test_a_law_too_steep_for_the_length_is_refused(tokenizer, alpha):
    with pytest.raises(InputError, match=rf"length=2000: frequent_words:alpha={alpha} needs at least \d+ words"):
        create(f"frequent_words:alpha={alpha}").sample(tokenizer, 2000)


def test_the_worked_example_can_be_left_out(tokenizer):
    complete = create("variable_tracking").sample(tokenizer, 1500)
    bare = create("variable_tracking:example=0").sample(tokenizer, 1500)
    assert complete.prompt.count("Question:") == 2
    assert bare.prompt.count("Question:") == 1
    assert complete.references == bare.references
    example = complete.prompt.split("\n\nMemorize")[0]
    assert len(tokenizer(example.rsplit(":", 1)[0]).input_ids) <= 500
    assert len(set(re.findall(r"VAR (\w{3})\b", example))) == 5


def test_a_length_that_the_words_do_not_fill_is_refused(tokenizer, monkeypatch):
    monkeypatch.setattr(ruler, "words", lambda *_: tuple(f"w{i}" for i in range(50)))
    with pytest.raises(InputError, match=r"has 50 words, which do not fill it"):
        create("common_words").sample(tokenizer, 1500)


def test_without_wonderwords_the_extra_is_named(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    ruler.words.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'posenc\[lab\]'"):
        create("niah_single_1").sample(tokenizer, 1000)


@pytest.mark.slow
def test_the_words_are_theirs(theirs):
    assert set(ruler.words("noun", "adjective", "verb")) == set(theirs.common.WORDS)
    assert {f"{a}-{n}" for a in ruler.words("adjective")[:9] for n in ruler.words("noun")} <= set(theirs.needles.WORDS)
