"""The page in which models predict, driven in a real browser: the same numbers as the library's, as a user asks for them."""

import json
import re

import pytest
import torch
from torch.nn import functional as F

import posenc
from posenc import Mapped, Positions, position_maps
from posenc.errors import InputError
from posenc.lab.data import Text
from posenc.lab.text import Settings
from posenc.report import predict
from references.axe import AXE

LENGTH, TEXT = 16, "A text — é — of more bytes\nthan the models were trained on."
SETTINGS = Settings(length=LENGTH, dim=32, num_heads=2, head_dim=16, targets=8)
"""Untrained and small: what is compared are numbers, not how good they are."""
NAMES = tuple(predict.ENCODINGS)
FAR = "past any length that they know, and farther still."


def made(name):
    torch.manual_seed(1)
    model = SETTINGS.make_model(SETTINGS.make_encoding(name))
    for parameter in model.encoding.parameters():
        torch.nn.init.normal_(parameter)
    return model.eval()


@pytest.fixture(scope="module")
def weights():
    about = {"steps": 1, "seed": 0, "corpus": "numbers", "read": 16}
    return {name: predict.Weights.of(made(name), LENGTH, **about) for name in NAMES}


@pytest.fixture(scope="module")
def file(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("predict") / "page.html"
    path.write_text(predict.page(weights, [TEXT, FAR], LENGTH, links={"en": {"More": "#predict"}}), encoding="utf-8")
    return path


COMPLETE = "posenc.predict && posenc.predict.complete()"


@pytest.fixture
def visit(opened, file):
    def visit(hash="", path=file, **options):
        return opened(path, hash, COMPLETE, **options)

    return visit


def values(tab):
    tab.wait_for_function(COMPLETE)
    return json.loads(tab.evaluate("JSON.stringify(posenc.predict.values())"))


@torch.no_grad()
def read(weights, name, text, encoding=None):
    """Log-probabilities (bytes, 256) by the library, with the weights as the page rounds them."""
    model = weights[name].into(made(name))
    model.encoding = encoding or model.encoding
    return F.log_softmax(model(torch.tensor([list(text.encode())]))[0], -1)


def losses(found, text):
    tokens = torch.tensor(list(text.encode()))
    return -found[:-1].gather(1, tokens[1:, None])[:, 0]


def same(shown, expected):
    assert shown[0] is None
    torch.testing.assert_close(torch.tensor(shown[1:]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.browser
def test_every_encoding_predicts_what_the_library_predicts(visit, weights):
    tab = visit()
    for name in NAMES:
        tab.select_option("#predict-encoding", name)
        shown = values(tab)
        found = read(weights, name, TEXT)
        same(shown["loss"], losses(found, TEXT))
        at = shown["state"].get("at", 2.5 * LENGTH)
        torch.testing.assert_close(torch.tensor(shown["next"]), found[int(at) - 1].exp(), rtol=1e-4, atol=1e-5)
        same(shown["pieces"], pieces(weights, name, TEXT))
        torch.testing.assert_close(
            torch.tensor(shown["attention"]), looks(weights, name, TEXT, int(at)), rtol=1e-4, atol=1e-5
        )


@torch.no_grad()
def pieces(weights, name, text):
    """What each byte costs in pieces of the training length: the first one, and of every later one the second half."""
    tokens, half, model = torch.tensor([list(text.encode())]), LENGTH // 2, weights[name].into(made(name))
    found = torch.full((tokens.shape[1] - 1,), torch.nan)
    for begin in range(0, len(found), half):
        piece = tokens[:, begin : begin + LENGTH + 1]
        each = F.cross_entropy(model(piece[:, :-1])[0], piece[0, 1:], reduction="none")
        first = half if begin else 0
        found[begin + first : begin + len(each)] = each[first:]
    return found


@torch.no_grad()
def looks(weights, name, text, at):
    """The attention of byte `at`, (layers x heads, at): `posenc.attention` with a value for each key."""
    model, projected = weights[name].into(made(name)), {}
    for layer, block in enumerate(model.blocks):
        for part in ("query", "key"):
            getattr(block.attention, part).register_forward_hook(
                lambda module, given, out, key=(layer, part): projected.update({key: out})
            )
    model(torch.tensor([list(text.encode())]))
    rows = []
    for layer in range(len(model.blocks)):
        q, k = (projected[layer, part].unflatten(-1, (2, 16)).transpose(1, 2) for part in ("query", "key"))
        n = q.shape[2]
        v = torch.eye(n).expand(1, 2, n, n)
        found = posenc.attention(
            q, k, v, model.encoding, Positions.arange(n).with_causal(True), layer=layer, backend="reference"
        )
        rows += list(found[0, :, at - 1, :at])
    return torch.stack(rows)


@pytest.mark.browser
def test_every_extension_predicts_what_the_library_predicts(visit, weights):
    tab = visit("window=5")
    rope = made("rope").encoding
    n, trained = len(TEXT.encode()), {"original_max_positions": LENGTH}
    extended = {
        "linear": rope.with_schedule("linear", factor=4.0),
        "ntk": rope.with_schedule("ntk", factor=4.0),
        "yarn": rope.with_schedule("yarn", factor=4.0, **trained),
        "llama3": rope.with_schedule("llama3", factor=4.0, **trained),
        "dynamic": rope.with_schedule("dynamic", length=n, **trained),
        "rerope": Mapped(rope, position_maps.rerope(5)),
        "leaky_rerope": Mapped(rope, position_maps.leaky_rerope(5, factor=4.0)),
        "self_extend": Mapped(rope, position_maps.self_extend(5, group=4)),
    }
    assert list(extended) == tab.locator("#predict-method option").evaluate_all("o => o.map(x => x.value)")[1:]
    plain = losses(read(weights, "rope", TEXT), TEXT)
    for name, encoding in extended.items():
        tab.select_option("#predict-method", name)
        shown = values(tab)
        expected = losses(read(weights, "rope", TEXT, encoding), TEXT)
        same(shown["loss"], expected)
        same(shown["plain"], plain)
        assert (expected - plain).abs().max() > 1e-3, name


@pytest.mark.browser
def test_sliders_change_the_curve_by_keys_and_the_address(visit, weights):
    tab = visit("method=leaky_rerope")
    assert [tab.locator(f"#predict-{name}").is_visible() for name in ("factor", "window", "group")] == [
        True,
        True,
        False,
    ]
    before = tab.evaluate("document.querySelector('[data-view=loss] canvas').toDataURL()")
    tab.locator("#predict-factor").focus()
    for _ in range(3):
        tab.keyboard.press("ArrowRight")
    tab.locator("#predict-window").focus()
    tab.keyboard.press("ArrowLeft")
    shown = values(tab)
    assert shown["address"] == tab.evaluate("location.hash") == "#method=leaky_rerope&factor=4.3&window=3"
    rope = made("rope").encoding
    expected = losses(read(weights, "rope", TEXT, Mapped(rope, position_maps.leaky_rerope(3, factor=4.3))), TEXT)
    same(shown["loss"], expected)
    assert tab.evaluate("document.querySelector('[data-view=loss] canvas').toDataURL()") != before
    tab.go_back()
    tab.wait_for_function("location.hash !== '#method=leaky_rerope&factor=4.3&window=3'")
    assert values(tab)["state"]["factor"] == 4.3
    tab.get_by_label("Factor, as a number").fill("99")
    assert tab.locator("#predict-factor-hint").inner_text() == "Factor: a number from 1 to 16"
    assert values(tab)["state"]["factor"] == 4.3


@pytest.mark.browser
def test_what_is_typed_is_read_from_the_first_change_on(visit, weights):
    tab = visit()
    area = tab.locator("#predict-text")
    area.focus()
    tab.keyboard.press("Control+End")
    tab.keyboard.type(" More")
    tab.wait_for_function(COMPLETE)
    tab.keyboard.press("Control+Home")
    tab.keyboard.type("→")
    shown = values(tab)
    text = f"→{TEXT} More"
    assert bytes(shown["tokens"]).decode() == text
    same(shown["loss"], losses(read(weights, "rope", text), text))
    same(shown["pieces"], pieces(weights, "rope", text))
    assert tab.locator(".bytes span").count() == len(text.encode())
    assert tab.locator("#predict-passage").input_value() == "typed"
    area.fill("")
    assert "nothing to predict" in values(tab)["headline"]
    area.fill("ab")
    assert "has 2 bytes, and training had 16" in values(tab)["headline"]
    tab.get_by_role("button", name="Let it write").click()
    tab.wait_for_function("posenc.predict.values().tokens.length === 26")
    written = values(tab)
    text = bytes(written["tokens"]).decode()
    same(written["loss"], losses(read(weights, "rope", text), text))
    for at in range(2, 26):
        found = read(weights, "rope", text[:at])[-1]
        allowed = torch.tensor([10, *range(32, 127)])
        assert found[ord(text[at])] >= found[allowed].max() - 1e-4


@pytest.mark.browser
def test_a_byte_is_chosen_by_mouse_and_by_keys(visit):
    tab = visit()
    tab.locator(".bytes span").nth(20).click()
    assert values(tab)["state"]["at"] == 21
    tab.locator(".bytes").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        tab.keyboard.press(key)
    shown = values(tab)
    assert shown["state"]["at"] == 22
    assert tab.locator(".bytes").get_attribute("aria-valuetext") == "byte 22, “m”"
    likeliest = tab.locator(".guesses tbody tr").first.locator("th").inner_text()
    assert [len(row) for row in shown["attention"]] == [22] * 4
    best = max(range(256), key=lambda byte: shown["next"][byte])
    assert likeliest == {10: "↵", 32: "␣"}.get(
        best, chr(best) if 32 < best < 127 else f"byte {best}" if best > 127 else "▯"
    )
    assert tab.locator(".guesses .followed th").inner_text() == "o"
    tab.locator("[data-view=attention] canvas").focus()
    tab.keyboard.press("ArrowRight")
    assert re.match(
        r"layer 1, head 1: .* on byte 2 \(a space\), 20 before",
        tab.locator("[data-view=attention] .readout").inner_text(),
    )


@pytest.mark.browser
def test_the_headline_and_the_table_say_what_was_computed(visit):
    tab = visit("method=ntk")
    shown = values(tab)
    mean = lambda losses: sum(losses[LENGTH + 1 :]) / len(losses[LENGTH + 1 :])  # noqa: E731
    means = {name: mean(shown[name]) for name in ("loss", "plain", "pieces")}

    def apart(name):
        value = means[name] - means["pieces"]
        return "nothing" if abs(value) < 0.005 else f"{abs(value):.2f} nats per byte {'more' if value > 0 else 'less'}"

    assert f"loses {apart('plain')}" in shown["headline"]
    assert shown["headline"].endswith(f"with NTK-aware at factor 4, {apart('loss')}.")
    tab.locator("[data-view=loss] summary").click()
    tab.wait_for_selector("[data-view=loss] tbody tr data")
    cells = (
        tab.locator("[data-view=loss] tbody tr").first.locator("data").evaluate_all("e => e.map(x => Number(x.value))")
    )
    first = [shown[name][1:32] for name in ("pieces", "plain", "loss")]
    assert cells == pytest.approx([sum(column) / len(column) for column in first])


@pytest.mark.browser
def test_what_cannot_be_shown_is_named(visit):
    tab = visit("encoding=ropes&method=ntk&factor=x&at=0&depth=3&text=%E0%A4%A")
    note = tab.locator(".note").inner_text()
    for words in (
        "encoding=ropes is not one of rope, alibi",
        "factor=x is not a number from 1 to 16",
        "at=0 is not an integer",
        "no “depth”",
        "not readable",
    ):
        assert words in note
    tab = visit("encoding=alibi&method=yarn")
    assert "yarn extends RoPE, and ALiBi has no rotation" in tab.locator(".note").inner_text()
    tab.locator("#predict-text").fill("word " * 300)
    assert len(values(tab)["tokens"]) == predict.MOST_BYTES
    assert "reads 1024 bytes" in tab.locator(".note").inner_text()


@pytest.mark.browser
def test_weights_are_loaded_when_they_are_asked_for(visit, weights, tmp_path):
    path = tmp_path / "page.html"
    (tmp_path / "rope.js").write_text(weights["rope"].script(), encoding="utf-8")
    path.write_text(
        predict.page({"rope": "rope.js", "t5": weights["t5"], "none": "gone.js"}, [TEXT], LENGTH), encoding="utf-8"
    )
    tab = visit(path=path)
    same(values(tab)["loss"], losses(read(weights, "rope", TEXT), TEXT))
    tab.select_option("#predict-encoding", "t5")
    same(values(tab)["loss"], losses(read(weights, "t5", TEXT), TEXT))
    assert tab.evaluate("Object.keys(posenc.models)") == ["rope", "t5"]


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["desktop", "phone", "dark"])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_page(visit, kind):
    size = {"width": 390 if kind == "phone" else 1280, "height": 900}
    tab = visit("method=yarn", viewport=size, color_scheme="dark" if kind == "dark" else "light")
    for summary in tab.locator("summary").all():
        summary.click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= size["width"]
    if kind == "phone":
        assert tab.locator("#predict-factor").is_visible()
    tab.evaluate(AXE.require().read_text(encoding="utf-8"))
    faults = tab.evaluate("axe.run(document, {resultTypes: ['violations']}).then((done) => done.violations)")
    assert [f"{fault['id']} {fault['nodes'][0]['html'][:120]}" for fault in faults] == []


# ---------------------------------------------------------------- weights and passages


def test_a_weight_has_six_bits_and_its_row_a_scale():
    matrix = torch.randn(40, 128) * torch.logspace(-3, 3, 40)[:, None]
    integers, scales = predict.rounded(matrix)
    assert integers.dtype == torch.int8
    assert integers.abs().max() <= 31
    error = (integers * scales - matrix).square().mean(1) / matrix.square().mean(1)
    assert error.max() < 0.04**2
    zeros, scale = predict.rounded(torch.zeros(2, 4))
    assert not zeros.any()
    assert torch.isfinite(scale).all()


def test_passages_begin_after_an_empty_line_and_cut_no_character():
    text = Text.of(torch.tensor(list(("no line here é" * 20 + "\n\nThe next é part. " * 30).encode())))
    first, *_, last = predict.passages(text, 50, count=3)
    assert last.startswith("The next")
    assert 48 <= len(first.encode()) <= 50
    assert "�" not in first + last
    assert predict.passages(Text.of(torch.full((9,), 65)), 9, count=2) == ["A" * 9] * 2


def test_a_model_that_the_page_does_not_compute_is_refused():
    with pytest.raises(InputError, match="unknown encoding on the page"):
        predict.Weights.of(SETTINGS.make_model(SETTINGS.make_encoding("kerple")), LENGTH)
