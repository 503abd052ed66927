"""What is around the explorer's views: files, code for other pages, the play button, the bar on a phone, and links."""

import re
from io import BytesIO
from xml.etree import ElementTree

import pytest
from PIL import Image

from posenc.report import explorer
from references.axe import AXE
from report.explorer_page import go, redrawn, state, unfold, values

SVG = "{http://www.w3.org/2000/svg}"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def saved(tab, view, kind):
    with tab.expect_download() as download:
        tab.locator(f'.found [data-view="{view}"]').get_by_role("button", name=kind).click()
    assert download.value.suggested_filename == f"posenc-{view}.{kind.lower()}"
    tab.wait_for_function(
        f"document.querySelector('.status').textContent === 'The picture is in posenc-{view}.{kind.lower()}.'"
    )
    return download.value.path().read_bytes()


# ---------------------------------------------------------------- files


@pytest.mark.browser
def test_a_view_is_saved_as_svg_with_lines_and_letters(visit):
    tab = visit("encoding=rope&length=40&trained=20&dim=16&method=linear")
    for view in ("codes", "products", "decay", "waves", "relative"):
        tree = ElementTree.fromstring(saved(tab, view, "SVG"))
        texts = [text.text for text in tree.iter(f"{SVG}text")]
        labels = {"codes": "channel", "decay": "distance", "waves": "pair of channels"}
        assert labels.get(view, "key’s position") in texts
        assert texts[0].startswith(tab.locator(f"#explorer-{view}-title").inner_text())
        assert not list(tree.iter(f"{SVG}image"))
        assert "encoding=rope" in tree.find(f"{SVG}desc").text
        for text in tree.iter(f"{SVG}text"):
            assert 0 <= float(text.get("x")) <= 720, (view, text.text)
    lines = ElementTree.fromstring(saved(tab, "decay", "SVG"))
    longest = max((path.get("d") for path in lines.iter(f"{SVG}path")), key=len)
    assert len(re.findall("[ML]", longest)) == 40  # the line through every distance
    assert "training length" in [text.text for text in lines.iter(f"{SVG}text")]
    assert {"with linear", "as trained"} <= {text.text for text in lines.iter(f"{SVG}text")}


@pytest.mark.browser
def test_the_cells_of_a_heat_map_have_their_places_and_colours_in_the_svg(visit):
    tab = visit("encoding=alibi&length=8&heads=1&bidirectional=true")
    tree = ElementTree.fromstring(saved(tab, "products", "SVG"))
    cells = next(g for g in tree.iter(f"{SVG}g") if g.get("shape-rendering"))
    colour = {}
    for path in cells:
        for x, y, wide in re.findall(r"M(\d+) (\d+)h(\d+)v", path.get("d")):
            colour |= {(int(y), int(x) + k): path.get("fill") for k in range(int(wide))}
    assert len(colour) == 64
    shown = values(tab)["products"]
    for a in range(64):
        for b in range(64):
            same = colour[divmod(a, 8)] == colour[divmod(b, 8)]
            assert same == (shown[a] == shown[b])


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_view_is_saved_as_png(visit, scheme):
    tab = visit("encoding=rope&length=300", color_scheme=scheme)
    image = Image.open(BytesIO(saved(tab, "relative", "PNG"))).convert("RGB")
    assert image.size == (3 * 720, 3 * 498)
    assert image.getpixel((3, 3)) == ((255, 255, 255) if scheme == "light" else (18, 22, 28))
    assert len(image.getcolors(image.width * image.height)) > 100


# ---------------------------------------------------------------- for other pages


@pytest.mark.browser
def test_a_state_is_copied_for_another_page(visit, tmp_path):
    tab = visit("encoding=rope&method=yarn:beta_fast=8&length=256&at=9,1,2,3,4,5")
    tab.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    tab.locator(".embed summary").click()
    tab.get_by_role("button", name="Copy Python").click()
    tab.wait_for_function("document.querySelector('.status').textContent === 'The Python is copied.'")
    names = {}
    exec(tab.evaluate("copied").replace("explorer.block", "block = explorer.block"), names)
    host = tmp_path / "host.html"
    host.write_text(
        f"<!doctype html><meta charset=utf-8><link rel=icon href='data:,'>{names['block']}", encoding="utf-8"
    )
    assert state(visit("", host)) == state(tab)
    tab.get_by_role("button", name="Copy iframe").click()
    tab.wait_for_function("document.querySelector('.status').textContent === 'The iframe is copied.'")
    frame = tab.evaluate("copied")
    src = re.search('src="([^"]*)"', frame)[1].replace("&amp;", "&")
    assert src.startswith("explorer.html#")  # a page from a folder is named alone
    assert state(visit(src.partition("#")[2])) == state(tab)
    site = tab.evaluate("posenc.saving.frame('https://example.org/explorer.html#encoding=rope')")
    assert 'src="https://example.org/explorer.html#encoding=rope"' in site


# ---------------------------------------------------------------- play


@pytest.mark.browser
def test_play_moves_the_token_until_it_is_paused_and_fills_no_history(visit):
    tab = visit("line=12&token=6")
    before = tab.evaluate("history.length")
    tab.get_by_role("button", name="Play: token").click()
    seen = set()
    for _ in range(3):
        now = state(tab)["at"][5]
        seen.add(now)
        tab.wait_for_function(f"posenc.explorer.values().state.at[5] !== {now}")
    pause = tab.get_by_role("button", name="Pause")
    assert pause.get_attribute("aria-pressed") == "true"
    pause.click()
    rested = state(tab)["at"]
    assert rested[:5] == [0, 1, 2, 3, 4]
    assert tab.get_by_role("button", name="Play: token").is_visible()
    tab.wait_for_timeout(900)
    assert state(tab)["at"] == rested
    assert tab.evaluate("history.length") == before
    assert f"at={','.join(map(str, rested))}" in tab.evaluate("location.hash")


@pytest.mark.browser
def test_play_moves_the_control_of_a_step_or_the_last_one_and_stops_for_the_reader(visit):
    tab = visit("step=5")
    tab.get_by_role("button", name="Play: base").click()
    tab.wait_for_function("posenc.explorer.values().state.base > 10000")
    with redrawn(tab):
        tab.get_by_label("Length, slider", exact=True).press("ArrowRight")
    assert tab.get_by_role("button", name="Play: length").is_visible()


@pytest.mark.browser
def test_where_less_motion_is_preferred_play_is_one_step(visit):
    tab = visit("encoding=rope&method=linear", reduced_motion="reduce")
    with redrawn(tab):
        tab.get_by_label("Factor, slider").press("ArrowRight")
    now = state(tab)["factor"]
    with redrawn(tab):
        tab.get_by_role("button", name="Step: factor").click()
    later = state(tab)["factor"]
    assert later > now
    tab.wait_for_timeout(500)
    assert state(tab)["factor"] == later


# ---------------------------------------------------------------- on a phone


def visible(tab, selector):
    """Whether most of an element can be seen: on the screen, and not below the bar."""
    return tab.evaluate(
        """selector => {
            const box = document.querySelector(selector).getBoundingClientRect(), bar = document.querySelector(".controls");
            const end = Math.min(innerHeight, bar.classList.contains("sliding") ? innerHeight : bar.getBoundingClientRect().top);
            return (Math.min(box.bottom, end) - Math.max(box.top, 0)) / box.height > 0.5;
        }""",
        selector,
    )


@pytest.mark.browser
def test_on_a_phone_the_picture_comes_first_and_the_controls_stay_at_the_bottom(visit):
    tab = visit("encoding=rope", **PHONE)
    assert visible(tab, ".ruler")
    bar = tab.locator(".controls").bounding_box()
    assert bar["y"] + bar["height"] == pytest.approx(844, abs=2)
    assert bar["height"] < 844 / 4
    assert tab.locator(".controls .field:visible").evaluate_all("fields => fields.map(f => f.dataset.field)") == [
        "encoding"
    ]
    tab.locator('[data-view="decay"] canvas').scroll_into_view_if_needed()
    tab.get_by_role("button", name="Settings").tap()
    bar = tab.locator(".controls").bounding_box()
    assert bar["y"] + bar["height"] == pytest.approx(844, abs=2)
    assert bar["y"] > 844 / 2
    assert tab.locator(".controls .field:visible").count() > 5
    tab.get_by_role("button", name="Close").tap()
    assert tab.locator(".controls .field:visible").count() == 1


@pytest.mark.browser
def test_on_a_phone_the_view_is_seen_while_a_slider_is_dragged_in_the_open_sheet(visit):
    tab = visit("encoding=rope", **PHONE)
    tab.locator('[data-view="decay"]').evaluate("view => view.scrollIntoView({ block: 'start' })")
    tab.get_by_role("button", name="Settings").tap()
    slider = tab.get_by_label("Base, slider")
    slider.evaluate(
        "slider => { const form = slider.closest('.controls'); form.scrollTop += slider.getBoundingClientRect().top - form.getBoundingClientRect().top - 100; }"
    )
    box = slider.bounding_box()
    assert box["height"] >= 44
    finger = tab.context.new_cdp_session(tab)

    def touch(kind, *points):
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y} for x, y in points]})

    middle = box["y"] + box["height"] / 2
    touch("touchStart", (box["x"] + box["width"] * 0.45, middle))
    touch("touchMove", (box["x"] + box["width"] * 0.53, middle))  # the browser takes the first pixels for a tap
    for share in (0.62, 0.7, 0.78):
        with redrawn(tab):
            touch("touchMove", (box["x"] + box["width"] * share, middle))
    assert slider.bounding_box() == pytest.approx(box, abs=1)  # it stays under the finger
    assert tab.locator(".controls").evaluate("form => form.classList.contains('sliding')")
    assert visible(tab, '[data-view="decay"] canvas')
    assert tab.get_by_role("button", name="Close").is_hidden()
    touch("touchEnd")
    tab.wait_for_function("!document.querySelector('.controls').classList.contains('sliding')")
    assert state(tab)["base"] > 100_000
    tab.get_by_role("button", name="Close").tap()
    assert tab.locator(".controls .field:visible").evaluate_all("fields => fields.map(f => f.dataset.field)") == [
        "base"
    ]


@pytest.mark.browser
def test_on_a_phone_a_step_has_its_control_in_the_bar(visit):
    tab = visit(**PHONE)
    tab.get_by_role("button", name="Start the guided path").tap()
    for _ in range(4):
        with redrawn(tab):
            tab.get_by_role("button", name="Next").tap()
    assert state(tab)["step"] == 5
    assert tab.locator(".controls .field:visible").evaluate_all("fields => fields.map(f => f.dataset.field)") == [
        "base"
    ]
    assert visible(tab, ".path h3")


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 820])
def test_everything_has_room_for_a_finger(visit, width):
    tab = visit(**PHONE | {"viewport": {"width": width, "height": 1100}})
    if tab.get_by_role("button", name="Settings").is_visible():
        tab.get_by_role("button", name="Settings").tap()
    for hash in ("encoding=rope&method=yarn", "step=3", "encoding=alibi&view=bias"):
        go(tab, hash)
        unfold(tab)
        small = tab.locator(".explorer :is(button, select, input, summary, .token):visible").evaluate_all(
            """all => all.filter(one => {
                const box = one.getBoundingClientRect();
                return Math.min(box.width, box.height) < 44;
            }).map(one => one.outerHTML.slice(0, 120))"""
        )
        assert small == [], hash


@pytest.mark.browser
def test_what_a_control_means_is_behind_a_button(visit):
    tab = visit("encoding=rope", **PHONE)
    assert tab.locator(".explorer [title]").count() == 0
    tab.get_by_role("button", name="Settings").tap()
    ask = tab.get_by_role("button", name="What is Training length?")
    assert ask.get_attribute("aria-expanded") == "false"
    ask.tap()
    assert tab.get_by_text("Positions that training had.").is_visible()
    assert ask.get_attribute("aria-expanded") == "true"
    tab.get_by_text("Words", exact=True).tap()
    assert tab.locator(".glossary dt:visible").count() == len(explorer.settings()["glossary"])


# ---------------------------------------------------------------- for everybody


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["light", "dark", "phone"])
def test_axe_finds_nothing(visit, kind):
    axe = AXE.require().read_text(encoding="utf-8")
    size = PHONE if kind == "phone" else {"color_scheme": kind}
    tab = visit(**size)
    tab.evaluate(axe)
    for hash in ("encoding=rope&method=yarn", "step=6", "encoding=alibi"):
        go(tab, hash)
        if kind == "phone" and hash == "step=6":
            tab.get_by_role("button", name="Settings").tap()
        unfold(tab)
        tab.wait_for_timeout(100)
        faults = tab.evaluate("axe.run(document, {resultTypes: ['violations']}).then(done => done.violations)")
        assert [(fault["id"], fault["nodes"][0]["html"][:120]) for fault in faults] == [], hash


@pytest.mark.browser
def test_at_200_percent_nothing_scrolls_sideways(visit):
    tab = visit(viewport={"width": 640, "height": 450}, device_scale_factor=2)
    for hash in (*(f"step={k}" for k in range(1, 9)), "encoding=rope&method=dual_chunk:chunk=30:local=8"):
        go(tab, hash)
        unfold(tab)
        for width in (640, 320):
            tab.set_viewport_size({"width": width, "height": 450})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, (hash, width)


@pytest.mark.browser
def test_in_the_documentation_it_links_to_the_pages_of_what_is_shown(visit, tmp_path):
    path = tmp_path / "explorer.html"
    path.write_text(explorer.page(docs="./"), encoding="utf-8")
    tab = visit("encoding=rope&method=yarn", path)

    def links():
        return tab.locator(".formula .links a").evaluate_all("all => all.map(one => one.getAttribute('href'))")

    assert links() == ["./encodings/rope.html", "./frequencies.html#yarn", "./position_from_scratch.html"]
    go(tab, "encoding=rope&method=rerope")
    assert "./position_maps.html#rerope" in links()
    go(tab, "encoding=t5")
    assert links() == ["./encodings/t5.html", "./position_from_scratch.html"]
    assert visit().locator(".formula .links").is_hidden()
