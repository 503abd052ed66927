"""The page on which stories15M writes past its context length: its numbers are posenc's, and it tells a story."""

import json

import pytest
import torch
from torch.nn import functional as F
from website import story
from website.wat import assembled

import posenc
from references import stories15m

ENGINE = ("engine", "pieces", "teller")
CHECKED = ("none", "yarn:4", "linear:2", "ntk:8", "self_extend:4", "rerope")


def test_methods_rotate_as_extended_models_do():
    found = story.methods()
    json.dumps(found)
    assert {name.split(":")[0] for name in found} == set(story.METHODS)
    plain = posenc.frequencies.default(story.WIDTH, base=story.BASE).inv_freq
    for name in ("none", "rerope", "self_extend:4", "truncation"):
        assert found[name]["inv_freq"] == plain.tolist()
    yarn = posenc.frequencies.yarn(48, base=1e4, factor=4, original_max_positions=256)
    assert found["yarn:4"]["inv_freq"] == yarn.inv_freq.tolist()
    assert found["yarn:4"]["attention_factor"] == yarn.attention_factor > 1
    assert found["linear:8"]["inv_freq"] == (plain / 8).tolist()


@pytest.mark.parametrize("name", ["self_extend:2", "self_extend:8", "rerope"])
def test_far_positions_are_those_of_the_map(name):
    method, _, factor = name.partition(":")
    lengths = story.Lengths(story.TRAINED, int(factor or 4) * story.TRAINED)
    wanted = posenc.position_maps.create(story.plan(method, {}, lengths, lengths).map)
    positions = posenc.Positions.arange(story.LENGTH, causal=True)
    relative, far = wanted.relative(positions)[0], story.methods()[name]["far"]
    of_far = torch.tensor(far["q"])[:, None] - torch.tensor(far["k"])[None]
    at = torch.arange(story.LENGTH)
    distance = at[:, None] - at[None]
    shown = torch.where(distance < far["nearest"], distance, of_far).double()
    seen = distance >= 0
    torch.testing.assert_close(shown[seen], relative[seen])


def test_the_kernel_is_a_module_and_mistakes_in_it_are_found():
    text = (story.FOLDER / "kernel.wat").read_text(encoding="utf-8")
    assert assembled(text).startswith(b"\0asm\1\0\0\0")
    with pytest.raises(ValueError, match="not read here"):
        assembled(text.replace("f32x4.splat", "f32x4.splash"))
    with pytest.raises(KeyError):
        assembled(text.replace("local.get $weight", "local.get $wait"))


@pytest.fixture(scope="module")
def rounded_model():
    stories15m.require()
    return story.rounded_model()


@pytest.mark.slow
def test_the_model_loses_little_by_rounding_and_is_small(rounded_model):
    texts = stories15m.texts()[:4, :257]
    now, before = (stories15m.losses(model, texts).mean().item() for model in (rounded_model, stories15m.load()))
    assert now == pytest.approx(before, abs=0.03)
    parts = story.parts()
    assert sum(map(len, parts)) == sum(integers.numel() for integers, _ in story.weights()[0].values()) < 16e6
    for name, tokens in story.prompts().items():
        text = stories15m.tokenizer().decode(tokens)
        assert story.ASKED - 12 <= len(tokens) <= story.ASKED
        assert text.startswith(story.BEGINNING.format(name))
        assert text.endswith(story.QUESTION)
        assert text.count(name) == 1


@pytest.fixture(scope="module")
def engine(browser, rounded_model):
    """A tab with the model on both paths, `engines`, and the teller."""
    tab, complaints = browser.new_page(), []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    for name in ENGINE:
        tab.add_script_tag(content=(story.FOLDER / f"{name}.js").read_text(encoding="utf-8"))
    tab.evaluate(
        "given => { window.given = given; window.engines = [given.kernel, null].map(kernel => posenc.engine.engine(given.model, [512, 512, 256, 256, 256, 256], kernel)); }",
        {
            "model": story.model_data(),
            "methods": story.methods(),
            "kernel": story.kernel(),
            "vocabulary": story.vocabulary(),
        },
    )
    for part in story.parts():
        tab.evaluate("part => { for (const engine of engines) engine.load(part); }", part)
    assert tab.evaluate("engines.map(engine => [engine.kind, engine.loaded])") == [
        ["WebAssembly", 1],
        ["JavaScript", 1],
    ]
    yield tab
    assert complaints == []
    tab.close()


@torch.no_grad()
def logits(model, tokens):
    return model(torch.tensor([tokens])).logits[0]


@pytest.mark.slow
@pytest.mark.browser
def test_logits_equal_posencs_past_the_context_length(engine, rounded_model):
    tokens = stories15m.texts()[0, :400].tolist()
    places, some = [100, 255, 300, 399], torch.arange(0, 32000, 16)
    read = """([which, name, tokens, places]) => {
      const stream = (engines[which].one = engines[which].one || engines[which].stream(512)), found = [];
      stream.place(given.methods[name]);
      tokens.forEach((token, at) => {
        const logits = stream.read(token, places.includes(at));
        if (logits) found.push(Array.from(logits).filter((_, id) => id % 16 === 0));
      });
      return found;
    }"""
    for name in CHECKED:
        method, _, factor = name.partition(":")
        if method != "none":
            posenc.extend(rounded_model, method, **({"factor": int(factor)} if factor else {}))
        wanted = logits(rounded_model, tokens)[places][:, some]
        posenc.restore(rounded_model)
        for which in (0, 1) if name in ("none", "self_extend:4") else (0,):
            found = torch.tensor(engine.evaluate(read, [which, name, tokens, places]))
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.slow
@pytest.mark.browser
def test_surprise_is_that_of_the_model_as_trained_on_truncated_contexts(engine, rounded_model):
    found = engine.evaluate("""() => {
      const teller = (window.teller = posenc.teller.teller(engines[0], given.methods, 256, 400)), found = [[], []];
      teller.begin({ seed: 3, names: ["none", "yarn:4"], tokens: [1, 9038, 2501], length: 400 });
      for (let step = teller.step(); step; step = teller.step()) step.forEach((one, which) => found[which].push([one.token, one.surprise]));
      return found;
    }""")
    for column in found:
        tokens, shown = [token for token, _ in column], torch.tensor([cost for _, cost in column])
        assert tokens[:3] == [1, 9038, 2501]
        for begin, first in ((0, 1), (128, 257), (256, 385)):
            read = tokens[begin : begin + 256]
            cost = F.cross_entropy(logits(rounded_model, read)[:-1], torch.tensor(read[1:]), reduction="none")
            end = min(begin + 257, len(tokens))
            if end - 1 - begin == 256:  # the token after the context is drawn from it too
                last = F.cross_entropy(logits(rounded_model, read)[-1:], torch.tensor([tokens[end - 1]]))
                cost = torch.cat((cost, last[None]))
            torch.testing.assert_close(shown[first:end], cost[first - 1 - begin :], rtol=0, atol=1e-3)
    plain, extended = (torch.tensor([cost for _, cost in column]) for column in found)
    assert plain[300:].mean() > extended[300:].mean() + 1, "the story falls apart, and is repaired"


@pytest.mark.slow
@pytest.mark.browser
def test_text_becomes_tokens_as_in_the_model(engine):
    for text in ("Once upon a time, a fox", "Zoë saw 雪 — twice!\nThe end", "  two  spaces", ""):
        wanted = [1, *stories15m.tokenizer().encode(text).ids]
        found, spelled = engine.evaluate(
            "text => { const p = posenc.pieces(given.vocabulary), ids = p.encoded(text); return [ids, p.spelled(ids).join('')]; }",
            text,
        )
        if text:
            assert found == wanted
            assert spelled == text
