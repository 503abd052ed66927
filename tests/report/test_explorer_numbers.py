"""The numbers on the explorer's page, asked for by its address and read back, are the library's."""

import json
import re
from pathlib import Path
from urllib.parse import urlencode

import numpy
import pytest
import torch

from posenc import Positions, attention, encodings, frequencies, position_maps
from posenc.analysis import codes_of
from posenc.functional import frequency_curve
from posenc.position_maps import MAPS
from posenc.report.explorer import fields
from report.formulas import AS_TRAINED, SIZES, same

pytestmark = pytest.mark.browser

TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture(scope="module")
def shown(browser, explorer_file):
    """The numbers that the page shows for a choice, unrounded, with NaN for what is hidden."""
    tab = browser.new_page()
    complaints = []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(explorer_file.as_uri())

    def of(**choice):
        address = urlencode({"encoding": "sinusoidal", "bidirectional": "true"} | choice, safe=":=")
        text = tab.evaluate(
            """async address => {
                const read = new Promise(done => addEventListener("hashchange", done, { once: true }));
                location.hash = address;
                await read;
                await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
                const see = document.querySelector("[data-view=waves] .see").textContent;
                return JSON.stringify({ ...posenc.explorer.values(), see }, (_, v) =>
                    ArrayBuffer.isView(v) ? Array.from(v) : Number.isNaN(v) ? "NaN" : v === Infinity ? "Infinity" : v);
            }""",
            address,
        )
        return {"address": address, **numbers(json.loads(text))}

    yield of
    assert complaints == []
    tab.close()


def numbers(value):
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if value in ("NaN", "Infinity") else value


def usual(choice):
    """The choice with the page's defaults."""
    return {name: field["default"] for name, field in fields().items()} | choice


ABSOLUTE = [
    {"encoding": "sinusoidal", "dim": 24, "base": 500},
    {"encoding": "sinusoidal:layout=concat:amplitude=0.5", "curve": "power", "exponent": 2},
    {"encoding": "binary:signed=true", "length": 40},
    {"encoding": "normalized:spread=first_channel", "length": 33},
    {"encoding": "integer:spread=first_channel", "length": 20},
]


@pytest.mark.parametrize("choice", ABSOLUTE, ids=str)
def test_codes_at_the_input(shown, choice):
    full = usual(choice)
    asked = choice | {"encoding": choice["encoding"].replace(":spread=first_channel", "")}
    found = shown(**asked)
    assert found["notes"] == []
    at = torch.arange(full["length"])
    waves = {key: full[key] for key in ("base", "curve", "exponent")} if "sinusoidal" in choice["encoding"] else {}
    of_length = {"length": full["length"]} if "normalized" in choice["encoding"] else {}
    options = [f"{key}={value}" for key, value in (waves | of_length).items()]
    codes = codes_of(encodings.create(":".join((choice["encoding"], *options)), dim=full["dim"]))(at)
    same(found["codes"], codes, **TOLERANCE)
    products = codes @ codes.T
    same(found["products"], products, **TOLERANCE)
    same(found["decay"], torch.stack([products.diagonal(-d).mean() for d in at.tolist()]), **TOLERANCE)


ROTATIONS = [
    {"encoding": "rope", "method": method, "dim": dim, "base": base, "length": 100, "trained": 64, "factor": 3}
    for method, dim, base in (
        ("none", 64, 10000), ("linear", 32, 500), ("ntk", 64, 500000), ("ntk_old", 32, 10000), ("ntk_fixed", 64, 10000),
        ("ntk_mixed:exponent=0.5", 64, 10000), ("abf:new_base=50000", 32, 10000), ("yarn:beta_fast=8", 128, 10000),
        ("yarn_paper", 64, 10000), ("yarn_revised:truncate=false", 64, 10000), ("mrrope", 64, 10000),
        ("llama3", 64, 10000), ("dynamic", 64, 10000),
        ("proportional:fraction=0.5", 64, 10000), ("tapered", 64, 10000), ("resonance", 64, 10000),
    )
] + [
    {"encoding": "rope:layout=interleaved:rotary_dim=16", "method": "yarn", "length": 40},
    {"encoding": "p_rope:fraction=0.25", "method": "ntk", "length": 40},
]  # fmt: skip


def rotation(full):
    """The library's encoding for a choice, but for its map."""
    name = full["method"].split(":")[0]
    schedule = {"name": "default"}
    if name not in MAPS and name != "none":
        shape = {"factor": float(full["factor"]), "original_max_positions": full["trained"], "length": full["length"]}
        given = frequencies.parse(full["method"])
        taken = {key: value for key, value in shape.items() if key in frequencies.options_of(name)}
        schedule = taken | given
    encoding, *options = full["encoding"].split(":")
    text = ":".join((encoding, f"rope_theta={full['base']}", *options))
    return encodings.create(text, head_dim=full["dim"], schedule=schedule)


@pytest.mark.parametrize("choice", ROTATIONS, ids=str)
def test_rotations_under_a_schedule(shown, choice):
    full = usual(choice)
    found = shown(**choice, position_only="true")
    assert found["notes"] == []
    made = rotation(full)
    codes = codes_of(made)(torch.arange(full["length"]))
    same(found["frequencies"]["invFreq"], made.frequencies().inv_freq, **TOLERANCE)
    same(found["frequencies"]["attentionFactor"], made.attention_factor, **TOLERANCE)
    same(found["wavelengths"], frequencies.wavelengths(made.frequencies()), **TOLERANCE)
    same(found["codes"], codes, **TOLERANCE)
    same(found["products"], codes @ codes.T, **TOLERANCE)
    same(found["decay"], (codes @ codes.T)[:, 0], **TOLERANCE)
    places = [token["position"] for token in found["tokens"]]
    chosen = places[0 if choice["method"] == "none" else -1]
    same([token["code"] for token in found["tokens"]], codes[places], **TOLERANCE)
    same([token["product"] for token in found["tokens"]], codes[places] @ codes[chosen], **TOLERANCE)


@pytest.mark.parametrize(
    "method", ["none", "linear", "ntk", "yarn:beta_fast=4", "proportional:fraction=0.25", "rerope:window=32"]
)
def test_which_pairs_turn_farther_than_in_training(shown, method):
    choice = {"encoding": "rope", "method": method, "dim": 32, "base": 5000, "length": 200, "trained": 50, "factor": 4}
    made = rotation(usual(choice))
    trained = frequencies.wavelengths(frequencies.default(32, base=5000.0))
    reach = 33 if "rerope" in method else 200
    farther = (trained > 50) & (made.frequencies().inv_freq * reach > 50 / trained * 2 * torch.pi * (1 + 1e-9))
    counts = re.match(
        r"(\d+) of 16 pairs do(?:es)? not complete .*, (\d+) of them turns? farther", shown(**choice)["see"]
    )
    assert [int(number) for number in counts.groups()] == [int((trained > 50).sum()), int(farther.sum())]


@pytest.mark.parametrize("encoding", ["rope", "xpos:scale_base=64"])
@pytest.mark.parametrize(("name", "options"), [size for size in SIZES if size[0] != "lampe"], ids=str)
def test_rotations_under_a_map(shown, encoding, name, options):
    method = ":".join((name, *(f"{key}={value}" for key, value in options.items() if key != "factor")))
    choice = {"encoding": encoding, "method": method, "length": 40, "dim": 16, "factor": options.get("factor", 4)}
    found = shown(**choice)
    assert found["notes"] == []
    made = rotation(usual(choice))
    expected = position_maps.create({"name": name, **options}).relative(Positions.arange(40, causal=True))[0]
    same(found["relative"], expected, **TOLERANCE)
    ones = torch.ones(1, 1, 1600, 16, dtype=torch.float64)
    place = Positions.from_ids(expected.flatten().nan_to_num(), torch.zeros(1))
    query, key = made.rotate(ones, ones[:, :, :1], place)
    same(found["products"], (query @ key.mT).flatten().masked_fill(expected.flatten().isnan(), torch.nan), **TOLERANCE)


def test_tokens_score_as_their_positions_do_among_all_pairs(shown):
    """Also a query before its key, where xPos is another number."""
    found = shown(encoding="xpos:scale_base=16", length=40, dim=16, position_only="true")
    chosen, *others = [token["position"] for token in found["tokens"]]
    scores = [token["product"] for token in found["tokens"]]
    assert max(others) > chosen
    same(scores, torch.tensor(found["products"])[[40 * chosen + at for at in (chosen, *others)]], **TOLERANCE)


BIASES = [
    {"encoding": "alibi", "heads": 12},
    {"encoding": "sandwich:dim_bar=32", "heads": 4, "base": 500, "head": 3},
    {"encoding": "t5:num_buckets=16:max_distance=40", "heads": 2},
    {"encoding": "kerple:kind=power", "heads": 3, "head": 2},
    {"encoding": "sines", "heads": 2, "trained": 32},
]


@pytest.mark.parametrize("choice", BIASES, ids=str)
def test_biases(shown, choice):
    full = usual(choice | {"length": 48})
    found = shown(**choice, length=48)
    assert found["notes"] == []
    name, heads = choice["encoding"].split(":")[0], full["heads"]
    own = {"sandwich": f":base={full['base']}", "sines": f":train_length={full['trained']}"}.get(name, "")
    encoding = encodings.create(choice["encoding"] + own, num_heads=heads)
    with torch.no_grad():  # weights as the page has them
        if name == "kerple":
            encoding.p.fill_(1.005)
            encoding.a.fill_(0.505)
        elif name == "sines":
            encoding.weight.copy_(torch.tensor([0.0, 1.0]).expand(heads, 2))
        elif name == "t5":
            encoding.table.copy_(torch.arange(encoding.num_buckets).expand(heads, -1))
    bias = codes_of(encoding)
    near = {"rtol": 2e-6, "atol": 1e-6} if name == "kerple" else TOLERANCE  # its weights are float32
    same(found["bias"], bias(torch.arange(48)).T, **near)
    apart = torch.arange(48)[:, None] - torch.arange(48)
    same(found["products"], bias(apart.flatten())[:, full["head"] - 1], **near)


# ------------------------------------------------------------------ as trained


TRAINED = Path(__file__).parents[2] / "docs/website/trained.npz"


def trained(name, **shape):
    """The library's encoding with the numbers that it learned, as docs/website/trained.py has them."""
    made = encodings.create(name, **shape)
    with numpy.load(TRAINED) as found:
        own = {
            key.partition("/")[2]: torch.from_numpy(found[key].astype("float32"))
            for key in found
            if key.startswith(f"{name}/")
        }
    made.load_state_dict(own)
    return made.double()


@pytest.mark.parametrize("name", sorted(AS_TRAINED - {"fire", "learned", "learned_rope"}))
def test_what_a_trained_model_adds_at_each_distance(shown, name):
    found = shown(encoding=name, at="0,2,30,9,60,90", line=96, position_only="true", head=2)
    assert found["notes"] == []
    with numpy.load(TRAINED) as file:
        means = torch.from_numpy(file[f"{name}/distance"].astype("float64"))
    same(found["bias"], means[:, :96])
    apart = 90 - torch.tensor([0, 2, 30, 9, 60, 90])
    same([token["bias"] for token in found["tokens"]], means[1, apart])
    same([token["weight"] for token in found["tokens"]], means[1, apart].softmax(-1), rtol=1e-6, atol=1e-12)
    assert sum(value == value for value in found["products"]) == 96 * 97 / 2  # none after the query


def test_learned_numbers_of_buckets(shown):
    table = trained("t5", num_heads=4, bidirectional=False)
    found = shown(encoding="t5:shows=trained", length=200, head=3, position_only="true")
    assert found["notes"] == []
    same(found["bias"], codes_of(table)(torch.arange(200)).T, **TOLERANCE)
    seen = [token for token in found["tokens"] if not token["hidden"]]
    same(
        [token["weight"] for token in seen],
        codes_of(table)(torch.arange(5, -1, -1))[:, 2].softmax(-1),
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_function_of_the_distance_over_the_query(shown):
    fire = trained("fire", num_heads=4, num_layers=2, train_length=128)
    n = 150
    found = shown(encoding="fire", length=n, head=3, at="149,3,60,9,40,100", line=150, token=1, position_only="true")
    with torch.no_grad():
        bias = fire.bias(torch.zeros(1, 4, n, 8), torch.zeros(1, 4, n, 8), Positions.arange(n, causal=True), 0).dense(
            torch.device("cpu")
        )[0]
    at = torch.tensor([149, 3, 60, 9, 40, 100])
    near = {"rtol": 1e-4, "atol": 1e-4}
    same(found["bias"], bias[:, -1].flip(-1), **near)
    same(found["products"], bias[2].masked_fill(torch.ones(n, n).triu(1).bool(), torch.nan), **near)
    same([token["bias"] for token in found["tokens"]], bias[2, 149, at], **near)


def test_a_learned_table_and_learned_speeds(shown):
    table = trained("learned", dim=128, max_positions=128)
    found = shown(encoding="learned", dim=64)
    assert found["notes"] == ["dim=64: learned is drawn at 128"]
    codes = codes_of(table)(torch.arange(128))
    same(found["codes"], codes, **TOLERANCE)
    same(found["products"], codes @ codes.T, **TOLERANCE)
    rotation = trained("learned_rope", head_dim=48)
    found = shown(encoding="learned_rope")
    speeds = rotation.vectors(0)[0, :, 0]
    same(found["frequencies"]["invFreq"], speeds, **TOLERANCE)
    assert found["clocks"]["plain"] is None
    found = shown(encoding="learned_rope", method="linear", factor=2)
    same(found["frequencies"]["invFreq"], speeds / 2, **TOLERANCE)
    found = shown(encoding="learned_rope:log_scale=zero")
    same(found["frequencies"]["invFreq"], frequencies.default(48, base=10000.0).inv_freq, **TOLERANCE)


# ------------------------------------------------------------------ words


WORDS = "Can you open été ? can"
IN_TEXT = [
    {"encoding": "none"}, {"encoding": "sinusoidal", "dim": 24}, {"encoding": "binary"}, {"encoding": "rope"},
    {"encoding": "rope:layout=interleaved:rotary_dim=16", "method": "yarn", "length": 60}, {"encoding": "decoupled_rope", "dim": 36},
    {"encoding": "p_rope"}, {"encoding": "xpos:scale_base=32"}, {"encoding": "rope", "method": "ntk"},
    {"encoding": "rope", "method": "self_extend:window=8:group=4", "length": 64},
    {"encoding": "rope", "method": "streaming:sinks=4:recent=20", "length": 64},
    {"encoding": "alibi", "heads": 4, "head": 2}, {"encoding": "sandwich", "heads": 4, "head": 3}, {"encoding": "t5"},
    {"encoding": "stick_breaking"}, {"encoding": "stick_breaking:attend_current=true"}, {"encoding": "sink:logit=2"}, {"encoding": "softmax_n:n=3"},
    {"encoding": "softmax_n:n=0"}, {"encoding": "temperature:beta=2"}, {"encoding": "step_temperature:beta=0.5", "trained": 8},
]  # fmt: skip


def vector(word, dim):
    """The page's vector of a word: FNV-1a of its letters, xorshift, Box and Muller, of length sqrt(dim) / 2."""
    at = 0x811C9DC5
    for byte in word.lower().encode():
        at = (at ^ byte) * 0x01000193 & 0xFFFFFFFF
    drawn = []
    for _ in range(16 + 2 * dim):
        at ^= at << 13 & 0xFFFFFFFF
        at ^= at >> 17
        at ^= at << 5 & 0xFFFFFFFF
        drawn.append((at + 0.5) / 2**32)
    first, second = torch.tensor(drawn[16:], dtype=torch.float64).view(dim, 2).T
    found = (-2 * first.log()).sqrt() * (2 * torch.pi * second).cos()
    return found / found.norm() * dim**0.5 / 2


@pytest.mark.parametrize("choice", IN_TEXT, ids=str)
def test_words_attend_as_in_the_library(shown, choice):
    """Query and key are the words' vectors; the library adds, turns or biases them and takes the softmax."""
    full = usual(choice)
    found = shown(**choice, tokens=WORDS, at="3,7,12,25,30,31", line=64, token=5)
    assert found["notes"] == []
    name, dim = choice["encoding"].split(":")[0], full["dim"]
    x = torch.stack([vector(word, dim) for word in WORDS.split()])[None]
    same([token["vector"] for token in found["tokens"]], x[0], **TOLERANCE)
    map_name = full["method"].split(":")[0]
    if map_name in MAPS:
        encoding = encodings.create(f"{choice['encoding']}@{full['method']}", head_dim=dim)
    elif name in ("rope", "p_rope", "decoupled_rope", "xpos"):
        encoding = rotation(full)
    elif name == "sink":
        encoding = encodings.create(name, num_heads=1)
        torch.nn.init.constant_(encoding.logits, 2.0)
    else:
        of_length = f":train_length={full['trained']}" if name == "step_temperature" else ""
        encoding = encodings.create(choice["encoding"] + of_length, dim=dim, head_dim=dim, num_heads=full["heads"])
    at = torch.tensor([[3.0, 7, 12, 25, 30, 31]], dtype=torch.float64)
    if name == "t5":
        at = at.long()
        torch.nn.init.zeros_(encoding.table)
    elif name == "binary":
        at = at.long()
    positions = Positions.from_ids(at, causal=map_name in MAPS or name == "stick_breaking")
    x = encoding.embed(x, positions)
    heads = full["heads"] if found["bias"] else 1
    q, k = (x[:, None].expand(1, heads, -1, -1) for _ in range(2))
    if name == "t5":  # whose queries start smaller, and whose scores are not divided
        q = q * dim**-0.5
    weights = attention(q, k, torch.eye(6, dtype=torch.float64).expand(1, heads, 6, 6), encoding, positions)
    weights = weights[0, full["head"] - 1 if heads > 1 else 0, 4]
    same([token["weight"] for token in found["tokens"]], weights, rtol=1e-5, atol=1e-6)
    others = weights[[0, 1, 2, 3, 5]]
    drawn = [token["share"] or 0 for index, token in enumerate(found["tokens"]) if index != 4]
    same(drawn, others / others.max(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip", [True, False])
def test_scores_grow_with_the_keys_that_a_query_sees(shown, clip):
    """In a text without gaps."""
    found = shown(encoding=f"log_n:clip={clip}".lower(), tokens="a b c d e f g h", trained=4)
    assert found["notes"] == []
    x = torch.stack([vector(word, 64) for word in "abcdefgh"])[None, None]
    encoding = encodings.create(f"log_n:train_length=4:clip={clip}".lower())
    weights = attention(x, x, torch.eye(8, dtype=torch.float64)[None, None], encoding, Positions.arange(8, causal=True))
    same([token["weight"] for token in found["tokens"]], weights[0, 0, -1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("encoding", ["window:before=9:after=0", "chunks:size=7"])
def test_which_keys_are_seen(shown, encoding):
    found = shown(encoding=encoding.replace(":after=0", ""), length=40, at="0,5,11,14,17,20")
    assert found["notes"] == []
    seen = encodings.create(encoding).restrict(Positions.arange(40, causal=True)).mask().view(40, 40)
    apart = torch.arange(40.0)[:, None] - torch.arange(40.0)
    same(found["relative"], apart.masked_fill(~seen, torch.nan))
    assert [not token["hidden"] for token in found["tokens"]] == seen[20, [0, 5, 11, 14, 17, 20]].tolist()


HANDS = [
    {"encoding": "rope", "dim": 32}, {"encoding": "rope", "method": "linear"}, {"encoding": "rope", "method": "yarn:beta_fast=4", "base": 500},
    {"encoding": "rope", "method": "ntk", "factor": 2}, {"encoding": "p_rope:fraction=0.5"}, {"encoding": "decoupled_rope"}, {"encoding": "xpos"},
]  # fmt: skip


@pytest.mark.parametrize("choice", HANDS, ids=str)
def test_clock_hands_turn_by_the_librarys_angles(shown, choice):
    found = shown(**choice, line=200, length=200, at="150,3,7,12,31,20", token=1, key=6)["clocks"]
    made, trained = (
        rotation(usual(choice)).frequencies().inv_freq,
        rotation(usual(choice | {"method": "none"})).frequencies().inv_freq,
    )
    assert (found["query"], found["key"], found["seen"]) == (150, 20, 130)
    pairs = {name: [pair[name] for pair in found["pairs"]] for name in found["pairs"][0]}
    same(pairs["query"], 150 * made, **TOLERANCE)
    same(pairs["key"], 20 * made, **TOLERANCE)
    same(pairs["between"], 130 * made, **TOLERANCE)
    same(pairs["trained"], 63 * trained, **TOLERANCE)  # 64 positions, distances up to 63
    same(pairs["reach"], 199 * made, **TOLERANCE)
    known = (64 * trained >= 2 * torch.pi) | (131 * made <= 64 * trained * (1 + 1e-9))
    assert pairs["known"] == known.tolist()
    assert (found["plain"] is None) == (choice.get("method", "none") == "none")
    for pair, theta in zip(found["plain"] or (), trained.tolist(), strict=bool(found["plain"])):
        assert [pair[name] for name in ("query", "key", "between")] == pytest.approx(
            [150 * theta, 20 * theta, 130 * theta]
        )


def test_clock_hands_under_a_map_stand_at_the_distance_that_it_gives(shown):
    found = shown(
        encoding="rope", method="self_extend:window=8:group=4", at="3,30,7,12,31,20", line=64, token=2, key=1
    )["clocks"]
    seen = float(position_maps.self_extend(8, group=4).relative(Positions.arange(31, causal=True))[0, 30, 3])
    assert found["seen"] == seen
    theta = frequencies.default(64, base=10000.0).inv_freq
    same([pair["query"] for pair in found["pairs"]], seen * theta, **TOLERANCE)
    assert {pair["key"] for pair in found["pairs"]} == {0}
    assert shown(encoding="rope", method="streaming:recent=5", at="3,30,7,12,31,20", line=64, token=2, key=4)["clocks"][
        "hidden"
    ]
    assert shown(encoding="rope", method="streaming", at="3,30,7,12,31,20", line=64, token=2, key=5)["clocks"][
        "hidden"
    ]  # after


def test_clock_hands_of_a_code(shown):
    found = shown(encoding="sinusoidal", dim=16, at="0,1,2,3,4,70", line=80, token=1)["clocks"]
    theta = frequency_curve(16, base=10000.0)
    same([pair["key"] for pair in found["pairs"]], 70 * theta, **TOLERANCE)
    finished = 64 * theta >= 2 * torch.pi
    assert [pair["known"] for pair in found["pairs"]] == finished.tolist()  # position 70 was not in training
    assert shown(encoding="alibi")["clocks"] is None


def test_nothing_is_nothing(shown):
    found = shown(encoding="none", position_only="true")
    assert found["codes"] is None
    assert found["products"] is None
    assert {token["score"] for token in found["tokens"]} == {0}


def test_power_curves_turn_queries_too(shown):
    found = shown(encoding="rope", curve="power", exponent=0.5, dim=32)
    same(found["frequencies"]["invFreq"], frequency_curve(32, base=10000.0, curve="power", exponent=0.5), **TOLERANCE)
