"""The explorer's guided path, whose sentences hold for what the page computes, and its linked formulas."""

import math
import re
from itertools import pairwise

import pytest

from posenc.report import explorer
from report.explorer_page import go, redrawn, state, values

pytestmark = pytest.mark.browser

PATH = explorer.settings()["path"]


def change(tab, **part):
    with redrawn(tab):
        tab.evaluate("part => posenc.explorer.change(part)", part)
    return values(tab)


# ---------------------------------------------------------------- the path


def test_the_path_is_walked_by_mouse_and_keys_and_left(visit):
    tab = visit()
    assert tab.locator(".asked").count() == 0
    with redrawn(tab):
        tab.get_by_role("button", name="Start the guided path").click()
    heading = tab.locator(".path h3")
    for number, step in enumerate(PATH, 1):
        assert tab.evaluate("location.hash") == f"#step={number}"
        assert heading.inner_text() == f"{number} of 8: {step['title']}"
        assert tab.locator(".path").get_by_text(step["says"]).is_visible()
        assert tab.locator(".asked").count() == 1
        assert tab.locator(".asked").is_visible()
        assert tab.locator(".note").is_hidden()
        visible = tab.locator(".found :is([data-view], [data-part]):visible").evaluate_all(
            "parts => parts.map(part => part.dataset.view || part.dataset.part)"
        )
        assert sorted(visible) == sorted(step["views"])
        if number < 8:
            with redrawn(tab):
                if number % 2:
                    tab.get_by_role("button", name="Next").click()
                else:
                    tab.keyboard.press("ArrowRight")
    tab.get_by_role("button", name="Explore freely").click()
    tab.wait_for_function("location.hash === '#encoding=alibi'")  # where the path ended
    assert tab.locator(".view:visible").count() == 6
    tab.go_back()
    tab.wait_for_function("location.hash === '#step=8'")
    tab.locator(".path h3").wait_for()
    tab.locator("body").evaluate("body => document.activeElement.blur()")
    with redrawn(tab):
        tab.keyboard.press("ArrowLeft")
    assert state(tab)["step"] == 7
    with redrawn(tab):
        tab.get_by_role("button", name="Step 3: Fast and slow channels").click()
    assert tab.evaluate("location.hash") == "#step=3"


def test_what_is_moved_in_a_step_is_in_the_address(visit):
    tab = visit("step=6")
    assert tab.get_by_role("button", name="Restore this step").is_hidden()
    change(tab, length=64)
    assert tab.evaluate("location.hash") == "#step=6&length=64"
    assert tab.get_by_role("button", name="Restore this step").is_hidden()  # it was asked for
    change(tab, encoding="sinusoidal")
    assert tab.evaluate("location.hash") == "#step=6&encoding=sinusoidal&length=64"
    again = visit("step=6&encoding=sinusoidal&length=64")
    assert state(again) == state(tab)
    with redrawn(tab):
        tab.get_by_role("button", name="Restore this step").click()
    assert tab.evaluate("location.hash") == "#step=6"
    assert state(tab) == {"step": 6, "tokens": ["Can", "you", "open", "a", "can", "?"], "at": [0, 1, 2, 3, 4, 5]}


def test_steps_1_and_2_a_code_is_what_makes_places_differ(visit):
    tab = visit("step=1&bidirectional=true")
    before = [token["score"] for token in values(tab)["tokens"]]
    assert [token["score"] for token in change(tab, at="5,4,3,2,1,0")["tokens"]] == before
    go(tab, "step=2")
    shown = values(tab)
    rows = {tuple(round(x, 9) for x in shown["codes"][at * 64 : at * 64 + 64]) for at in range(shown["length"])}
    assert len(rows) == shown["length"]


def test_step_3_a_larger_base_slows_every_pair_but_the_first(visit):
    tab = visit("step=3")
    before = values(tab)["wavelengths"]
    assert before[0] == pytest.approx(2 * math.pi)
    assert before[-1] > 1000
    after = change(tab, base=500000)["wavelengths"]
    assert after[0] == before[0]
    assert all(slow > fast for slow, fast in zip(after[1:], before[1:], strict=True))


def test_step_4_two_tokens_moved_alike_score_as_before(visit):
    tab = visit("step=4")
    score = values(tab)["tokens"][0]["score"]
    assert change(tab, at="7,9")["tokens"][0]["score"] != pytest.approx(score)
    assert change(tab, at="15,20")["tokens"][0]["score"] == pytest.approx(score)


def test_step_4_shows_clocks_below_the_tokens_and_the_product_as_their_sum(visit):
    tab = visit("step=4", viewport={"width": 1280, "height": 860})
    assert tab.locator(".side:visible .faces li").count() == 4
    tops = [tab.locator(each).first.bounding_box()["y"] for each in (".ruler", ".side:visible .faces", ".formula")]
    assert tops == sorted(tops)
    last = tab.locator(".sum:visible").bounding_box()
    assert last["y"] + last["height"] < 860
    pairs, sentence = values(tab)["clocks"]["pairs"], tab.locator(".sum:visible").inner_text()
    total = sum(math.cos(pair["between"]) for pair in pairs)
    assert float(re.search(r"pairs: ([\d.−]+),", sentence)[1].replace("−", "-")) == pytest.approx(total, abs=0.006)
    assert values(tab)["products"][9 * 128 + 4] == pytest.approx(2 * total)  # two channels of a pair, each of ones
    assert tab.locator(".sum:visible rect").count() == len(pairs)


@pytest.mark.parametrize(("width", "height"), [(390, 844), (830, 1000), (1280, 800)])
def test_a_step_has_its_control_and_its_picture_in_one_view(visit, width, height):
    hidden = []
    for number in range(1, len(PATH) + 1):
        tab = visit(f"step={number}", viewport={"width": width, "height": height})
        hidden += tab.evaluate(
            """number => {
                const box = element => element.getBoundingClientRect(), visible = element => element.offsetParent !== null;
                const pictures = [...document.querySelectorAll(".found :is(.ruler, .faces, .stage)")].filter(visible);
                const first = pictures.sort((one, other) => box(one).top - box(other).top)[0], asked = document.querySelector(".asked");
                return [asked, first].filter(each => box(each).top < 0 || box(each).bottom > innerHeight).map(each => [number, each.className]);
            }""",
            number,
        )
    assert hidden == []


def test_step_5_the_score_is_largest_at_0_and_falls_later_with_a_larger_base(visit):
    tab = visit("step=5")
    small = values(tab)["decay"]
    assert max(small) == small[0]
    assert any(later > sooner for sooner, later in pairwise(small))  # not evenly
    large = change(tab, base=500000)["decay"]
    half = [next(at for at, value in enumerate(found) if value < found[0] / 2) for found in (small, large)]
    assert half[0] < half[1]


def test_step_6_a_longer_text_has_new_distances_and_a_shorter_one_none(visit):
    tab = visit("step=6")
    assert "56 % of the visible pairs" in tab.locator("#explorer-relative-see").inner_text()
    assert "23 of them turn farther" in tab.locator("#explorer-waves-see").inner_text()
    assert max(x for x in change(tab, length=64)["relative"] if x is not None) == 63
    assert "training showed every one of them" in tab.locator("#explorer-relative-see").inner_text()
    assert "0 of them turn farther" in tab.locator("#explorer-waves-see").inner_text()


def test_step_7_interpolation_slows_all_pairs_and_yarn_the_slow_ones(visit):
    tab = visit("step=7")
    shown = values(tab)
    slower = [now / then for now, then in zip(shown["wavelengths"], shown["wavelengths_as_trained"], strict=True)]
    assert slower == pytest.approx([4] * 32)
    assert max(shown["length"] / wave for wave in shown["wavelengths"]) <= 64 / shown["wavelengths_as_trained"][0]
    with redrawn(tab):
        tab.select_option("#explorer-method", "yarn")
    shown = values(tab)
    slower = [now / then for now, then in zip(shown["wavelengths"], shown["wavelengths_as_trained"], strict=True)]
    assert (slower[0], slower[-1]) == pytest.approx((1, 4))
    assert tab.locator(".side:visible h5").all_inner_texts() == ["As trained", "With yarn"]
    assert state(tab)["step"] == 7
    assert tab.get_by_role("button", name="Restore this step").is_hidden()


def test_step_8_a_head_takes_as_much_off_for_every_token(visit):
    tab = visit("step=8")
    shown = values(tab)
    n = shown["length"]
    for head in range(8):
        row = shown["bias"][head * n : (head + 1) * n]
        assert [b - a for a, b in pairwise(row)] == pytest.approx([-(2.0 ** -(head + 1))] * (n - 1))
    with redrawn(tab):
        tab.get_by_label("Head shown, slider").press("ArrowRight")
    assert tab.evaluate("location.hash") == "#step=8&head=2"


# ---------------------------------------------------------------- the formulas


def test_every_formula_of_the_library_becomes_mathml(visit):
    tab = visit("length=8&dim=8")
    found = tab.evaluate(
        """() => Object.entries(posenc.formulas).flatMap(([name, lines]) => lines.map(latex => {
            const place = document.createElement("div");
            place.innerHTML = posenc.formula.mathml(latex);
            document.body.append(place);
            const text = place.textContent, size = place.firstChild.getBoundingClientRect();
            place.remove();
            return [name, latex, text, size.width, [...place.querySelectorAll("*")].every(e => e.namespaceURI.endsWith("MathML"))];
        }))"""
    )
    assert {name for name, *_ in found} == set(explorer.formulas())
    for name, latex, text, width, mathml in found:
        assert mathml, (name, latex)
        assert width > 20, (name, latex)
        assert not set(text) & set("\\{}&_^") - {"{"}, (name, text)
        letters = [c for c in "qksbcdijLNwr" if f" {c} " in f" {latex} "]
        assert all(letter in text for letter in letters), (name, text)
        assert text.count("θ") == latex.count("\\theta"), (name, text)


def lit(tab, selector):
    return tab.locator(f"{selector}.lit").evaluate_all(
        "parts => parts.map(part => part.dataset.view || part.dataset.field || part.dataset.option || part.dataset.symbol || 'line')"
    )


def test_a_letter_shows_what_it_stands_for_and_the_other_way_round(visit):
    tab = visit("encoding=rope&method=yarn:beta_fast=8&length=256")
    theta = tab.locator('.lines [data-symbol="\\\\theta_c"]').first
    theta.hover()
    assert lit(tab, ".view") == ["codes", "waves"]
    assert set(lit(tab, ".field")) == {"base", "curve", "exponent", "method"}
    assert "speed of pair c" in tab.locator(".says").inner_text()
    tab.locator('[data-field="factor"] label').hover()
    assert lit(tab, ".view") == []
    assert lit(tab, ".letters button") == ["s"]
    assert len(lit(tab, ".lines .symbol")) >= 2  # it is there more than once
    tab.locator('[data-view="waves"] h3').hover()
    assert {"\\theta_c", "b", "L", "\\beta_f"} <= set(lit(tab, ".letters button"))
    tab.get_by_label("Base, slider").focus()
    assert set(lit(tab, ".letters button")) == {"b", "\\theta_c"}
    tab.mouse.move(2, 2)
    tab.get_by_role("button", name="βf: turns in training").focus()
    assert set(lit(tab, ".field")) == {"beta_fast"}
