"""The explorer in a real browser, driven by mouse, touch and keys: what is chosen, dragged, shared and shown."""

import json
import re
from itertools import product

import pytest

from posenc.encodings.catalogue import FAMILIES
from posenc.report import explorer
from report.explorer_page import go, redrawn, state, values

pytestmark = pytest.mark.browser

ASIDE = {"stick_breaking", *explorer.settings()["encodings"][FAMILIES["visible"][0]]}
VIEWS = ("codes", "products", "decay", "waves", "relative", "bias")


# ---------------------------------------------------------------- what it says


def test_the_text_of_the_page_holds_the_same_numbers(visit):
    tab = visit(
        "encoding=rope&dim=16&method=leaky_rerope:window=5&length=40&at=9,1,2,3,4,14&token=1&position_only=true"
    )
    for summary in tab.locator("summary").all():
        if summary.is_visible():
            summary.click()
    shown = values(tab)
    columns = ("position", "distance", "seen", "product", "weight")
    for line, token in zip(tab.locator(".scores tbody tr").all(), shown["tokens"], strict=True):
        cells = line.locator("td").evaluate_all("e => e.map(c => c.querySelector('data')?.value ?? c.textContent)")
        wanted = [token[name] for name in columns] if not token["hidden"] else [14, -5, None, None, None]
        numbers = [None if cell == "hidden" else float(cell.replace("−", "-")) for cell in cells[:-1]]
        assert numbers == pytest.approx(wanted)
    channels = tab.locator(".channels data").evaluate_all("e => e.map(x => Number(x.value))")
    assert channels == pytest.approx(shown["tokens"][0]["code"], abs=1e-12)
    tables = {
        view: tab.locator(f'[data-view="{view}"] tbody tr').evaluate_all(
            "rows => rows.map(r => [...r.children].map(c => c.querySelector('data')?.value ?? c.textContent))"
        )
        for view in VIEWS[:-1]
    }
    at = [token["position"] for token in shown["tokens"]]
    assert at == [9, 1, 2, 3, 4, 14]
    assert [token["product"] for token in shown["tokens"]] == pytest.approx([shown["products"][9 * 40 + k] for k in at])
    for distance, value, plain in tables["decay"]:
        assert float(value) == pytest.approx(shown["decay"][int(distance)])
        assert float(plain) == pytest.approx(shown["decay_as_trained"][int(distance)])
    assert [float(row[1]) for row in tables["waves"]] == pytest.approx(shown["wavelengths"])
    at = [int(row[0]) for row in tables["relative"]]
    for view in ("relative", "products"):
        for position, *cells in tables[view]:
            wanted = [shown[view][int(position) * 40 + key] for key in at]
            assert [None if cell == "hidden" else float(cell) for cell in cells] == pytest.approx(wanted)
    assert [float(x) for x in tables["codes"][2][1:5]] == pytest.approx(shown["codes"][2 * 16 : 2 * 16 + 4])


def test_every_value_can_be_saved(visit):
    tab = visit("encoding=alibi")
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save numbers").click()
    saved = json.loads(download.value.path().read_text())
    assert saved["bias"] == values(tab)["bias"]
    assert tab.locator(".status").inner_text() == "Every number shown is in posenc-explorer.json."


# ---------------------------------------------------------------- the controls


@pytest.mark.parametrize("encoding", ["sinusoidal", "rope", pytest.param("t5", marks=pytest.mark.slow), "kerple"])
def test_every_control_changes_what_it_says(visit, encoding):
    tab = visit(
        f"encoding={encoding}&curve=power&exponent=3&method=yarn" if encoding == "rope" else f"encoding={encoding}"
    )
    for details in tab.locator(".controls details > summary").all():
        if details.is_visible():
            details.click()
    driven = []
    for field in tab.locator(".field").all():
        if not field.is_visible() or field.locator("#explorer-encoding").count():
            continue
        for control in field.locator("input, select").all():
            id, before = control.get_attribute("id") or "its slider", tab.evaluate("location.hash")
            with redrawn(tab):
                drive(control)
            assert tab.evaluate("location.hash") != before, id
            driven.append(id)
    assert "explorer-length" in driven
    assert tab.locator(".note").is_hidden()


def drive(control):
    kind = control.evaluate("e => e.type")
    if kind == "checkbox":
        control.click()
    elif kind == "select-one":
        options = control.evaluate(
            "e => [...e.options].filter(o => o.value !== e.value && (e.id !== 'explorer-curve' || o.value !== 'power')).map(o => o.value)"
        )
        control.select_option(options[-1])
    elif kind == "range":
        control.press("ArrowRight")
    elif kind == "text":
        control.fill("a b c d")
    else:
        least, now = (float(control.evaluate(f"e => e.{name} || 0")) for name in ("min", "value"))
        control.fill(f"{least if now != least else least + 2:g}")


def test_it_can_be_used_by_keyboard_alone(visit):
    tab = visit()
    order = []
    while order.count("explorer-preset") < 2 and len(order) < 100:
        tab.keyboard.press("Tab")
        order.append(
            tab.evaluate(
                "document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.className"
            )
        )
        if order[-1] == "explorer-encoding":
            with redrawn(tab):
                tab.keyboard.press("p")  # to the first that begins so
        elif order[-1] == "Channels, slider":
            for _ in range(4):
                with redrawn(tab):
                    tab.keyboard.press("ArrowRight")
        elif order[-1] == "Token Can":
            for key in ("End", "ArrowLeft", "ArrowLeft"):
                with redrawn(tab):
                    tab.keyboard.press(key)
    assert {"explorer-preset", "explorer-method", "explorer-tokens", "Token ?"} <= set(order)
    now = state(tab)
    assert (now["encoding"], now["dim"], now["at"]) == ("p_rope", 72, [21, 1, 2, 3, 4, 5])
    assert order.count("explorer-preset") == 2  # all the way round
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_presets_say_what_they_are_and_reset_goes_back(visit):
    tab = visit("step=3")
    for index, preset in enumerate(explorer.settings()["presets"]):
        with redrawn(tab):
            tab.select_option("#explorer-preset", str(index))
        assert tab.locator("#explorer-preset-says").inner_text() == preset["says"]
        assert tab.locator(".note").is_hidden()
        usual = {name: field["default"] for name, field in explorer.fields().items()}
        assert (usual | explorer.checked(preset["state"])).items() <= {
            **usual,
            **state(tab),
            "tokens": usual["tokens"],
            "at": "",
        }.items()
    tab.get_by_role("button", name="Reset").click()
    tab.wait_for_function("document.getElementById('explorer-preset').value === '0'")
    assert tab.evaluate("location.hash") == ""


SENTENCES = """views => {
    const seen = (element) => element.checkVisibility() && element.getBoundingClientRect().height > 0;
    const one = (selector) => document.querySelector(selector);
    const note = one(".note"), aside = seen(one(".aside"));
    return [seen(note) ? note.innerText : null, aside, views.map((view) => {
        let figure = one(`.view[data-view="${view}"]`);
        if (aside && !seen(figure)) figure = one(".found");
        const absent = figure.querySelector(":scope > .absent");
        return (absent && seen(absent) ? absent : figure.querySelector(".see")).innerText;
    })];
}"""
"""What the note says, whether an encoding stands aside, and the sentence of each view."""


def test_each_encoding_with_each_method_shows_something_or_says_why_not(visit):
    tab = visit("length=32&dim=16")
    registries = "({encodings: Object.keys(posenc.codes.ENCODINGS), maps: Object.keys(posenc.maps.MAPS), schedules: Object.keys(posenc.frequencies.SCHEDULES)})"
    known = tab.evaluate(registries)
    listed = [name for group in explorer.settings()["encodings"].values() for name in group]
    assert sorted(known["encodings"]) == sorted(listed)
    assert set(known["maps"]) | set(known["schedules"]) - {"default"} == set(explorer.methods()) - {"none"}
    for encoding in listed:
        for method in {"rope": explorer.methods(), "sinusoidal": ["none", "ntk"]}.get(encoding, ["none"]):
            with redrawn(tab):
                tab.evaluate("part => posenc.explorer.change(part)", {"encoding": encoding, "method": method})
            note, aside, texts = tab.evaluate(SENTENCES, VIEWS)
            assert note is None, (encoding, method, note)
            assert aside == (encoding in ASIDE)
            for view, text in zip(VIEWS, texts, strict=True):
                assert re.fullmatch(r"\w.{15,}\.", text, re.DOTALL), (encoding, method, view, text)
                assert "NaN" not in text
                assert "undefined" not in text


def test_what_a_formula_refuses_is_said(visit):
    tab = visit("encoding=rope&method=yarn:beta_fast=2:beta_slow=16")
    assert "beta_slow=16, beta_fast=2: turns over the context length" in tab.locator(".note").inner_text()
    with redrawn(tab):
        tab.locator("#explorer-method-beta_slow").fill("1")
    assert tab.locator(".note").is_hidden()


# ---------------------------------------------------------------- the tokens


def centre(tab, selector, nth=0):
    box = tab.locator(selector).nth(nth).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def place(tab, at):
    """Where a position is on the screen."""
    box = tab.locator(".track").bounding_box()
    return box["x"] + box["width"] * (at + 0.5) / state(tab).get("line", 24)


def test_a_token_is_dragged_by_mouse(visit):
    tab = visit()
    before = [token["score"] for token in values(tab)["tokens"]]
    x, y = centre(tab, ".token", 4)
    tab.mouse.move(x, y)
    tab.mouse.down()
    for at in (7, 12, 20):
        with redrawn(tab):
            tab.mouse.move(place(tab, at), y)
        assert values(tab)["tokens"][4]["position"] == at
    tab.mouse.up()
    shown = values(tab)
    assert shown["state"]["token"] == 5  # the one that is compared with the others now
    assert "at=0,1,2,3,20,5" in tab.evaluate("location.hash")
    assert [token["score"] for token in shown["tokens"]] != before
    assert "position 20" in tab.locator("#explorer-scores-title").inner_text()
    token = tab.locator(".token").nth(4)
    assert (token.get_attribute("aria-valuenow"), token.get_attribute("aria-valuetext")) == ("20", "position 20")


def test_a_token_is_moved_by_arrow_keys(visit):
    tab = visit()
    token = tab.get_by_role("slider", name="Token can", exact=True)
    token.focus()
    for key, at in (
        ("ArrowRight", [0, 1, 2, 3, 5, 4]),
        ("ArrowRight", [0, 1, 2, 3, 6, 4]),
        ("Home", [6, 1, 2, 3, 0, 4]),
    ):
        with redrawn(tab):
            token.press(key)
        assert state(tab)["at"] == at
    assert tab.evaluate("document.activeElement.textContent") == "can"


def test_t5_is_chosen_with_what_it_learned_and_its_buckets_are_an_option(visit):
    tab = visit()
    with redrawn(tab):
        tab.select_option("#explorer-encoding", "t5")
    assert tab.evaluate("location.hash") == "#encoding=t5:shows=trained"
    assert "At distance 127 head 1 adds −" in tab.locator("#explorer-bias-see").inner_text()
    tab.get_by_text("Options of this encoding").click()
    assert tab.locator("[data-option]:visible").evaluate_all("all => all.map(one => one.dataset.option)") == ["shows"]
    with redrawn(tab):
        tab.select_option("#explorer-encoding-shows", "bucket")
    assert tab.evaluate("location.hash") == "#encoding=t5"
    assert "share 16 buckets" in tab.locator("#explorer-bias-see").inner_text()


def test_position_only_ignores_the_words_and_the_page_says_so(visit):
    tab = visit("bidirectional=true")
    assert "Words and positions count" in tab.locator("#explorer-line-see").inner_text()
    with redrawn(tab):
        tab.get_by_role("checkbox", name="Position only").check()
    assert tab.evaluate("location.hash") == "#bidirectional=true&position_only=true"
    before, sentence = values(tab)["tokens"], tab.locator("#explorer-line-see").inner_text()
    assert "Positions alone count here, whatever the words" in sentence
    assert "“\u2068you\u2069”, 1 position after it, gets the most" in sentence
    with redrawn(tab):
        tab.fill("#explorer-tokens", "cat cat cat cat cat cat")
    assert [token["score"] for token in values(tab)["tokens"]] == [token["score"] for token in before]
    assert tab.locator("#explorer-line-see").inner_text() == sentence.replace("Can", "cat").replace("you", "cat")


def test_the_sentence_names_the_key_with_the_largest_weight(visit):
    tab = visit()
    for encoding, words in product(
        ("sinusoidal", "binary", "rope", "xpos", "alibi", "t5", "none"), ("", "&position_only=true")
    ):
        go(tab, f"encoding={encoding}&token=3&at=3,9,6,12,1,7{words}")
        tokens, sentence = values(tab)["tokens"], tab.locator("#explorer-line-see").inner_text()
        best = max((token for token in tokens if token["distance"] != 0), key=lambda token: token["weight"])
        if encoding in ("t5", "none"):
            assert "gets the most" not in sentence, (encoding, words)
        else:
            assert f"“\u2068{best['token']}\u2069”, {abs(best['distance'])} position" in sentence, (encoding, words)


# ---------------------------------------------------------------- extension methods on the line


def arcs(tab):
    return tab.evaluate("document.querySelector('.arcs').toDataURL()")


def test_a_method_shows_in_the_first_panel_as_the_page_starts_with_it(visit):
    tab = visit("encoding=rope&line=128&at=0,25,50,75,100,125&token=6")
    plain = arcs(tab), values(tab)["tokens"]
    for method in ("rerope", "self_extend", "dual_chunk", "streaming", "linear", "ntk", "yarn"):
        go(tab, "encoding=rope")
        with redrawn(tab):
            tab.select_option("#explorer-method", method)
        tokens = values(tab)["tokens"]
        assert [token["position"] for token in tokens] == [0, 25, 50, 75, 100, 125], method
        assert tab.locator(".token[aria-current=true]").inner_text() == "?"
        assert tab.locator(".token.past").all_inner_texts() == ["a", "can", "?"]  # beyond 64
        assert "beyond the training length" in tab.locator(".token").nth(3).get_attribute("aria-valuetext")
        assert arcs(tab) != plain[0], method
        assert [token["weight"] for token in tokens] != [token["weight"] for token in plain[1]], method
        assert "effective" in tab.locator(".scores thead th").all_inner_texts()


def test_what_a_map_hides_is_said(visit):
    tab = visit("encoding=rope&method=streaming:recent=60")
    tokens = values(tab)["tokens"]
    assert [token["hidden"] for token in tokens] == [False, True, True, False, False, False]
    assert "hidden from the query" in tab.locator(".ruler-legend").inner_text()
    assert "hidden from the query" in tab.locator(".token").nth(1).get_attribute("aria-valuetext")
    assert sum(token["weight"] for token in tokens) == pytest.approx(1)
    assert [token["weight"] for token in tokens][1:3] == [0, 0]


# ---------------------------------------------------------------- the clock hands


def faces(tab):
    """The text below each face, of the last of the sides, and where its hands point, in degrees clockwise from twelve."""
    return tab.evaluate(
        """[...[...document.querySelectorAll('.side:not([hidden])')].at(-1).querySelectorAll('li')].map(li => {
            const hand = name => {
                const [x, y] = ['x2', 'y2'].map(end => Number(li.querySelector(`.${name}`).getAttribute(end)) - 50);
                return (Math.atan2(x, -y) * 180 / Math.PI + 360) % 360;
            };
            return [li.innerText.split('\\n'), hand('query'), hand('key'), li.className];
        })"""
    )


def degrees(text):
    """The angle that a face says, and how exactly."""
    sign, turns, rest = re.match(r"(−?)(?:(\d+) turns? [+−] )?([\d.e-]+)°", text).groups()
    size = 360 * int(turns or 0) + float(rest)
    return (-size if sign else size), 0.51 if turns else max(0.051, 0.5 * size) if size < 1 else 0.051


def test_the_hands_move_with_the_token_that_is_dragged(visit):
    tab = visit("encoding=rope")
    x, y = centre(tab, ".token", 0)
    tab.mouse.move(x, y)
    tab.mouse.down()
    for at in (7, 20):
        with redrawn(tab):
            tab.mouse.move(place(tab, at), y)
        pairs = values(tab)["clocks"]["pairs"]
        shown = faces(tab)
        assert len(shown) == 10
        for (name, text), query, key, _ in shown:
            pair = pairs[int(name.removeprefix("pair "))]
            for found, angle in ((query, pair["query"]), (key, pair["key"])):
                apart = (found - angle * 180 / 3.141592653589793) % 360
                assert min(apart, 360 - apart) < 0.1
            number, near = degrees(text)
            assert number == pytest.approx(pair["between"] * 180 / 3.141592653589793, abs=near)
        assert [name for (name, _), *_ in shown][:: len(shown) - 1] == ["pair 0", "pair 31"]
        assert f"the query stands at position {at}, the key at 5" in tab.locator("#explorer-rotation-see").inner_text()
    tab.mouse.up()


def test_the_hands_are_read_and_chosen_by_keys(visit):
    tab = visit("encoding=rope&dim=16&line=128&at=0,25,50,75,100,125")
    tab.locator("#explorer-key").focus()
    with redrawn(tab):
        tab.keyboard.press("ArrowDown")
    assert "key=2" in tab.evaluate("location.hash")
    tab.locator(".rotation summary").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".rotation tbody tr")
    rows = tab.locator(".rotation tbody tr").evaluate_all(
        "rows => rows.map(r => [...r.children].map(c => c.querySelector('data')?.value ?? c.textContent))"
    )
    pairs = values(tab)["clocks"]["pairs"]
    assert len(rows) == len(pairs) == 8
    for row, pair in zip(rows, pairs, strict=True):
        angles = [pair[name] * 180 / 3.141592653589793 for name in ("key", "query", "between")]
        assert [float(cell) for cell in row[2:5]] == pytest.approx([angles[0] % 360, angles[1] % 360, angles[2]])
        assert row[5] == ("yes" if pair["known"] else "no")
    assert "no" in [row[5] for row in rows]


def test_angles_that_training_lacked_are_orange_and_a_method_brings_them_back(visit):
    tab = visit("encoding=rope&line=128&at=0,25,50,75,100,125")
    assert [token["past"] for token in values(tab)["tokens"]] == [True, True, True, False, False, False]
    orange = "[...[...document.querySelectorAll('.side:not([hidden])')].at(-1).querySelectorAll('.reach')].filter(p => p.getAttribute('d')).length"
    new = [label for (_, label), *_, past in faces(tab) if past]
    assert new
    assert all(label.endswith(", new") for label in new)
    assert tab.evaluate(orange) >= len(new)
    for method in ("linear", "yarn", "rerope:window=32"):
        go(tab, f"encoding=rope&method={method}")
        assert not any(token["past"] for token in values(tab)["tokens"])
        assert not any(past for *_, past in faces(tab))
        assert tab.evaluate(orange) == 0
        assert tab.locator(".side:visible h5").all_inner_texts() == ["As trained", f"With {method.split(':')[0]}"]
        assert any("new" in text for text in tab.locator(".side li").all_inner_texts())  # as trained


def test_an_angle_has_its_sign_and_its_turns(visit):
    texts = {
        0: "0°", -0.002: "−0.1°", -0.0000049: "−0.0003°", 1.2828: "73.5°", 5: "286.5°", -5: "−286.5°", 30.141: "4 turns + 287°",
        -30.141: "−4 turns − 287°", 6.2831: "1 turn + 0°", 3.1: "177.6°",
    }  # fmt: skip
    shown = visit("length=8").evaluate("angles => angles.map(angle => posenc.clocks.shown(angle))", list(texts))
    assert dict(zip(texts, shown, strict=True)) == texts


def test_an_arc_is_labelled_when_it_is_pointed_at(visit):
    tab = visit("method=linear&length=128")
    plain = arcs(tab)
    box = tab.locator(".ruler").bounding_box()
    tab.locator(".ruler").hover(position={"x": box["width"] / 2, "y": 30})
    tab.mouse.move(box["x"] + 4, box["y"] + 3)
    away = arcs(tab)
    tab.locator(".scores tbody tr").nth(1).hover()
    assert away == plain != arcs(tab)
    tab.mouse.move(2, 2)
    assert arcs(tab) == plain
    tab.locator(".token").nth(1).hover()
    assert arcs(tab) != plain


# ---------------------------------------------------------------- signs and directions


def test_distances_have_one_sign_everywhere_and_panels_say_which_keys_they_show(visit):
    def distances(tab):
        return tab.locator(".scores tbody tr:not(.itself) td:nth-child(3)").all_inner_texts()

    tab = visit()
    both = "token=2&bidirectional=true"
    for hash in (both, f"{both}&encoding=alibi", "token=2&at=0,1,2,3,4,5&encoding=rope&method=rerope:window=2"):
        go(tab, hash)
        assert distances(tab) == ["1", "−1", "−2", "−3", "−4"], hash
        causal = "method" in hash
        for panel in ("products-see", "line-signs"):
            assert ("Causal" if causal else "In both directions") in tab.locator(f"#explorer-{panel}").inner_text()
    assert "Distance is the query’s position minus the key’s, in every panel" in tab.locator(".line").inner_text()
    assert "Causal" in tab.locator("#explorer-relative-see").inner_text()


def test_other_tokens_can_be_typed(visit):
    tab = visit()
    hostile = "<img src=x onerror=alert(1)> b"
    with redrawn(tab):
        tab.fill("#explorer-tokens", hostile)
    assert tab.locator(".token").all_inner_texts() == hostile.split()
    assert tab.locator(".track img").count() == 0


# ---------------------------------------------------------------- the address


def test_a_state_goes_through_the_address_and_back(visit):
    tab = visit()
    tab.select_option("#explorer-encoding", "xpos")
    tab.select_option("#explorer-method", "self_extend")
    tab.fill("#explorer-length", "200")
    tab.fill("#explorer-tokens", "été & 100% + ?")
    address, shown = tab.evaluate("location.hash"), values(tab)
    again = values(visit(address[1:]))
    assert {**again, "redraws": None} == {**shown, "redraws": None}
    assert again["address"] == address
    tab.go_back()
    tab.wait_for_function("document.getElementById('explorer-tokens').value.startsWith('Can you')")
    assert tab.locator("#explorer-length").input_value() == "200"
    for _ in range(3):
        tab.go_back()
    tab.wait_for_function("document.getElementById('explorer-encoding').value === 'rope'")
    assert "encoding" not in values(tab)["state"]


NONSENSE = [
    ("dim=7", "dim=7 is not an even number from 4 to 256"),
    ("length=1e99", "length=1e99 is not an integer from 8 to 1024"),
    ("base=NaN", "base=NaN is not a number"),
    ("encoding=constructor", "there is no encoding “constructor” here"),
    ("encoding=rope&method=__proto__:x=1", "there is no method “__proto__” here"),
    ("encoding=rope&method=yarn:toString=1", "yarn does not take “toString=1”"),
    ("__proto__=1&polluted=%7B%7D", "there is no “__proto__”; there is no “polluted”"),
    ("tokens=%E0%A4%A", "is not readable"),
    ("at=1,1,1,1,1,1", "is not 6 different positions below 24"),
    ("<script>alert(1)</script>", "there is no “%3Cscript%3Ealert(1)%3C/script%3E”"),
    ("dim=" + "9" * 5000, "is not an even number"),
]


def test_an_address_that_asks_for_nonsense_gets_the_usual_and_a_note(visit):
    tab = visit(NONSENSE[0][0])
    for hash, message in NONSENSE:
        if hash != NONSENSE[0][0]:
            go(tab, "heads=3")
            assert tab.locator(".note").is_hidden()
            go(tab, hash)
        assert message in tab.locator(".note").inner_text()
        assert len(tab.locator(".note").inner_text()) < 400
        assert state(tab)["at"] == [k * (25 if "yarn" in hash else 1) for k in range(6)]


def test_an_address_may_name_shared_options_as_the_library_does(visit):
    assert state(visit("encoding=rope:rope_theta=500000&method=yarn:factor=8")) == {
        "base": 500000,
        "method": "yarn",
        "factor": 8,
        "tokens": ["Can", "you", "open", "a", "can", "?"],
        "at": [0, 25, 50, 75, 100, 125],
    }


def test_the_link_is_copied_or_shown(visit):
    tab = visit("encoding=alibi")
    tab.get_by_role("button", name="Copy link").click()
    tab.wait_for_function("document.querySelector('.explorer .status').textContent")
    status = tab.locator(".status").inner_text()
    assert status == "The link is copied." or status.endswith("#encoding=alibi")


# ---------------------------------------------------------------- how it looks


def test_it_fits_every_width(visit):
    tab = visit()
    words = "incomprehensibilities+a+b+c+d+e+f+g+h+i+j+k"
    for hash in (
        "heads=9",
        "encoding=rope&method=self_extend&length=512",
        "encoding=alibi",
        f"tokens={words}",
        f"tokens={24 * 'W'}+b",
    ):
        go(tab, hash)
        for width in (320, 390, 800, 1280, 1900):
            tab.set_viewport_size({"width": width, "height": 900})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, (hash, width)


def test_it_is_drawn_again_in_the_dark(visit):
    tab = visit(color_scheme="light", device_scale_factor=2)
    canvas = "document.querySelector('[data-view=codes] canvas')"
    light = tab.evaluate(f"{canvas}.toDataURL()")
    assert tab.evaluate(f"{canvas}.width === 2 * {canvas}.clientWidth")
    with redrawn(tab):
        tab.emulate_media(color_scheme="dark")
    assert tab.evaluate(f"{canvas}.toDataURL()") != light
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"


def test_values_are_read_under_the_pointer_and_by_keys(visit):
    tab = visit("encoding=rope&length=64&dim=16")
    shown = values(tab)
    for view in VIEWS[:-1]:
        figure = tab.locator(f'[data-view="{view}"]')
        canvas, readout = figure.locator("canvas"), figure.locator(".readout")
        canvas.hover(position={"x": 200, "y": 150})
        assert re.search(r"\d", readout.inner_text()), view
        assert figure.locator(".cursor").is_visible()
        canvas.focus()
        for key in (
            "Home",
            "Shift+ArrowLeft",
            *["Shift+ArrowLeft"] * 8,
            *["Shift+ArrowUp"] * 8,
            "ArrowRight",
            "ArrowDown",
        ):
            tab.keyboard.press(key)
        assert readout.inner_text().startswith(
            {"codes": "position 1, channel 1", "decay": "distance 1:", "waves": "pair 1:"}.get(view, "query 1, key 1")
        )
        canvas.press("Escape")
        assert readout.inner_text() == ""
    assert shown["decay"][1] < shown["decay"][0]


def test_redraws_are_one_a_frame_and_their_time_is_known(visit, record_property):
    tab = visit("encoding=rope&dim=128&length=512&method=self_extend:window=64")
    count = tab.evaluate("posenc.explorer.redraws()")
    for base in range(1000, 6000, 1000):
        with redrawn(tab):
            tab.evaluate(f"for (let k = 0; k < 50; k++) posenc.explorer.change({{base: {base} + k}}, false)")
    assert count + 5 <= tab.evaluate("posenc.explorer.redraws()") <= count + 10  # and one each time it has settled
    times = tab.evaluate("posenc.explorer.values().redraws.milliseconds.slice(-5)")
    record_property("redraw_milliseconds_median", sorted(times)[2])
    assert all(time > 0 for time in times)


def test_what_is_drawn_as_trained_has_the_limits_of_its_training(visit):
    tab = visit("encoding=deberta&length=4096")
    note = tab.locator(".note").inner_text()
    assert "length=4096 is not an integer from 8 to 1024" in note
    assert "drawn from" not in note
    most = "inputs => inputs.map(input => input.dataset.log ? Math.round(2 ** input.max) : Number(input.max))"
    inputs = tab.locator('.controls [data-field="length"] input')
    assert inputs.evaluate_all(most) == [96, 96]
    values = tab.evaluate("posenc.play.range('length', posenc.state.clean({ encoding: 'deberta' }).state)")
    assert values[-1] == 96
    assert len(set(values)) == len(values)
    with redrawn(tab):
        tab.evaluate("posenc.explorer.change({ encoding: 'rope' })")
    assert inputs.evaluate_all(most) == [1024, 1024]
