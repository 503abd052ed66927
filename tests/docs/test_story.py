"""The page on which stories15M writes past its context length: its numbers are posenc's, and it tells a story."""

import json
import math
import runpy
from base64 import b64encode

import pytest
import torch
from torch.nn import functional as F
from website import story
from website.page import ROOT
from website.wat import assembled

import posenc
from references import stories15m
from references.axe import AXE

ENGINE = ("engine", "gpu", "pieces", "teller", "worker")
ROOMS = "[512, 512, 256, 256, 256, 256]"
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
def engine(browser, rounded_model, tmp_path_factory):
    """A tab with the model on each path, `engines`, and the teller. It has an address, without which there is no WebGPU."""
    tab, complaints = browser.new_page(), []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    path = tmp_path_factory.mktemp("engine") / "engine.html"
    path.write_text("<!doctype html>", encoding="utf-8")
    tab.goto(path.as_uri())
    for name in ENGINE:
        tab.add_script_tag(content=(story.FOLDER / f"{name}.js").read_text(encoding="utf-8"))
    tab.evaluate(
        "given => { window.given = given; window.engines = [given.kernel, null].map(kernel => posenc.engine.engine(given.model, ROOMS, kernel)); }".replace(
            "ROOMS", ROOMS
        ),
        {
            "model": story.model_data(),
            "methods": story.methods(),
            "kernel": story.kernel(),
            "shaders": story.shaders(),
            "parts": story.parts(),
            "vocabulary": story.vocabulary(),
        },
    )
    tab.evaluate("for (const part of given.parts) for (const engine of engines) engine.load(part)")
    assert tab.evaluate("engines.map(engine => [engine.kind, engine.loaded])") == [
        ["WebAssembly", 1],
        ["JavaScript", 1],
    ]
    tab.evaluate(f"posenc.gpu.engine(engines[0], {ROOMS}, given.shaders).then(engine => {{ engines.push(engine); }})")
    yield tab
    assert complaints == []
    tab.close()


@torch.no_grad()
def logits(model, tokens):
    return model(torch.tensor([tokens])).logits[0]


@pytest.mark.browser
def test_logits_equal_posencs_past_the_context_length(engine, rounded_model):
    tokens = stories15m.texts()[0, :400].tolist()
    places, some = [100, 255, 300, 399], torch.arange(0, 32000, 16)
    read = """async ([which, name, tokens, places]) => {
      const stream = (engines[which].one = engines[which].one || engines[which].stream(512)), found = [];
      stream.place(given.methods[name]);
      for (const [at, token] of tokens.entries()) {
        const logits = await stream.read(token, places.includes(at));
        if (logits) found.push(Array.from(logits).filter((_, id) => id % 16 === 0));
      }
      return found;
    }"""
    for name in CHECKED:
        method, _, factor = name.partition(":")
        if method != "none":
            posenc.extend(rounded_model, method, **({"factor": int(factor)} if factor else {}))
        wanted = logits(rounded_model, tokens)[places][:, some]
        posenc.restore(rounded_model)
        for which in (0, 1, 2) if name in ("none", "self_extend:4") else (0,):
            first = 3 if which == 2 else 4  # SwiftShader is slow
            found = torch.tensor(engine.evaluate(read, [which, name, tokens[: places[first - 1] + 1], places[:first]]))
            torch.testing.assert_close(
                found, wanted[:first], rtol=0, atol=1e-3, msg=lambda text, at=(name, which): f"{at}: {text}"
            )


@pytest.mark.browser
def test_surprise_is_that_of_the_model_as_trained_on_truncated_contexts(engine, rounded_model):
    found = engine.evaluate("""async () => {
      const teller = (window.teller = posenc.teller.teller(engines[0], given.methods, 256, 400)), found = [[], []];
      teller.begin({ seed: 3, names: ["none", "yarn:4"], tokens: [1, 9038, 2501], length: 400 });
      for (let step = await teller.step(); step; step = await teller.step()) step.forEach((one, which) => found[which].push([one.token, one.surprise]));
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


@pytest.mark.browser
@pytest.mark.parametrize(
    ("own", "other", "scale", "kind"),
    [(10, 1, 1, "WebGPU"), (1, 10, 1, "WebAssembly"), (10, 1, 0.9, "WebAssembly"), (10, 1, "NaN", "WebAssembly")],
)
def test_the_engine_that_is_faster_at_the_same_numbers_is_chosen(engine, own, other, scale, kind):
    """By a clock that its reads move: `own` WebAssembly's, `other` WebGPU's, whose logits are multiplied by `scale`."""
    found = engine.evaluate(
        """async ([rooms, own, other, scale]) => {
      const clock = performance.now, engine = posenc.engine.engine, gpu = posenc.gpu.engine, ended = [];
      const ticking = (made, by, changed) => {
        const { stream } = made;
        made.stream = tokens => {
          const found = stream(tokens), { read } = found;
          found.read = (...asked) => { now += by; const logits = read(...asked); return logits && logits.map(changed); };
          return found;
        };
        return made;
      };
      let now = 0;
      performance.now = () => now;
      posenc.engine.engine = (...given) => ticking(engine(...given), own, one => one);
      posenc.gpu.engine = async base => {
        const made = ticking(engine(given.model, rooms, given.kernel), other, one => one * scale);
        for (const part of given.parts) made.load(part);
        return { ...made, kind: "WebGPU", device: { destroy: () => ended.push("WebGPU") } };
      };
      const kind = await new Promise(done => {
        const work = posenc.work(answer => answer.step && done(answer.kind));
        work({ do: "make", ...given, trained: 256, most: 512, path: "" });
        for (const text of given.parts) work({ do: "part", text });
        work({ do: "tell", run: 1, seed: 1, names: ["none", "yarn:4"], tokens: [1], length: 2 });
      });
      [performance.now, posenc.engine.engine, posenc.gpu.engine] = [clock, engine, gpu];
      return [kind, ended];
    }""",
        [[512, 256, 256, 512, 256, 256], own, other, scale],
    )
    assert found == [kind, [] if kind == "WebGPU" else ["WebGPU"]]


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


# ---------------------------------------------------------------- the page


RECORDED = json.loads(story.RECORDED.read_text(encoding="utf-8"))
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "story.py"))


@pytest.fixture(scope="module")
def recorded_page(tmp_path_factory):
    """As it is built without the model."""
    path = tmp_path_factory.mktemp("recorded") / "story-live.html"
    path.write_text(story.page(RECORDED, []), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def live_page(tmp_path_factory):
    stories15m.require()
    folder = tmp_path_factory.mktemp("live")
    for path, text in story.files().items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder / "story-live.html"


@pytest.mark.browser
@pytest.mark.parametrize(("size", "scheme"), [((1280, 900), "light"), ((390, 844), "dark")])
def test_without_the_model_the_page_shows_the_recorded_story(new_tab, recorded_page, size, scheme):
    tab = new_tab(
        viewport=dict(zip(("width", "height"), size, strict=True)), color_scheme=scheme, reduced_motion="reduce"
    )
    tab.goto(f"{recorded_page.as_uri()}#lang=en")
    assert tab.locator(".beginning [data-at]").count() == story.TRAINED
    for which in range(2):
        assert tab.locator(".ending").nth(which).locator("[data-at]").count() == story.LENGTH - story.TRAINED
    finding = tab.locator(".finding").inner_text()
    assert f"as among {math.exp(SCRIPT['means'](RECORDED, 0)[1]):.0f} words" in finding
    assert f"Before, as among {math.exp(SCRIPT['means'](RECORDED, 0)[0]):.1f}." in finding
    line = tab.locator(".limit").bounding_box()
    assert line["y"] < size[1] * 0.75, "the line of the context length is on the first screen"
    assert "built without the model" in tab.locator("#story-status").inner_text()
    assert tab.locator("[data-do=tell]").is_disabled()
    assert tab.locator(".row.curves section").nth(0).locator(".faces .past").count() == 2
    assert tab.locator(".row.curves section").nth(1).locator(".faces .past").count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    for step in ("[data-do=language]", "[data-do=share]"):
        tab.evaluate(AXE.require().read_text(encoding="utf-8"))
        faults = tab.evaluate("axe.run(document, {resultTypes: ['violations']}).then(done => done.violations)")
        assert [f"{fault['id']} {fault['nodes'][0]['html'][:120]}" for fault in faults] == []
        tab.click(step)
    assert "两个结局" in tab.locator("#story-scene").inner_text()
    assert tab.evaluate("location.hash") == "#lang=zh"


@pytest.mark.browser
def test_what_the_address_asks_for_is_shown_or_gives_way(new_tab, recorded_page):
    tab = new_tab()
    tab.goto(f"{recorded_page.as_uri()}#lang=zh&name=Max&method=linear&factor=8&seed=7")
    assert tab.evaluate("[...document.querySelectorAll('select')].map(one => one.value)") == ["linear", "8", "Max"]
    assert "Max" in tab.locator(".prompt b").inner_text()
    tab.goto("about:blank")
    tab.goto(
        f"{recorded_page.as_uri()}#lang=xx&name=Zed&method=none&factor=3&seed=-1&begin=%3Cimg%20src=x%3E&path=%E0%A4%A"
    )
    shown = tab.evaluate("posenc.story.state()")
    assert (shown["method"], shown["factor"], shown["name"]) == ("yarn", "4", story.NAMES[0])
    assert tab.locator("#story-begin").input_value() == "<img src=x>"


@pytest.mark.browser
def test_the_recorded_story_is_replayed_and_the_newest_token_followed(new_tab, recorded_page):
    tab = new_tab(viewport={"width": 1280, "height": 800})
    tab.goto(f"{recorded_page.as_uri()}#lang=en")
    tab.wait_for_function("document.querySelectorAll('.ending [data-at]').length > 200")
    assert tab.locator("[data-do=stop]").is_hidden()
    for box in (".beginning", ".ending >> nth=0", ".ending >> nth=1"):
        newest = tab.locator(f"{box} >> [data-at]").last.bounding_box()
        assert newest["y"] < 800
        assert tab.locator(box).evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight") < 60


@pytest.mark.browser
@pytest.mark.parametrize("worker", [True, False])
def test_the_page_tells_a_story_and_finds_a_name(new_tab, live_page, worker):
    tab = new_tab(alone=not worker)
    tab.set_default_timeout(300_000)
    if not worker:
        tab.add_init_script("window.Worker = window.WebAssembly = undefined")
    tab.goto(f"{live_page.as_uri()}#lang=en&seed=5&method=rerope&begin=%3Cb%3EA%20small%20cat")
    tab.click("[data-do=tell]")
    tab.wait_for_function("posenc.story.steps() >= 20")
    tab.click("[data-do=stop]")
    assert tab.locator(".beginning").inner_text().startswith("<b>A small cat")
    first, second = tab.evaluate("posenc.story.written().tokens")
    assert first == second, "both columns share their beginning"
    assert f"({'WebAssembly' if worker else 'JavaScript'}, one thread)" in tab.locator("#story-status").inner_text()
    if worker:
        tab.click("[data-do=ask]")
        tab.wait_for_function("posenc.story.asked() && Object.keys(posenc.story.asked().shares).length === 3")
        assert tab.locator(".answers section").count() == 3


@pytest.mark.browser
def test_a_story_goes_on_when_the_device_is_lost(new_tab, live_page):
    texts = []
    for path in ("WebGPU", "WebAssembly"):
        tab = new_tab(alone=True)
        tab.set_default_timeout(300_000)
        tab.on(
            "worker",
            lambda worker: worker.evaluate("""() => {
          const make = GPUAdapter.prototype.requestDevice;
          GPUAdapter.prototype.requestDevice = async function () { return (self.device = await make.call(this)); };
        }"""),
        )
        tab.goto(f"{live_page.as_uri()}#lang=en&seed=5&method=self_extend&path={path}")
        tab.click("[data-do=tell]")
        if path == "WebGPU":
            tab.wait_for_function("document.querySelector('.status').textContent.includes('(WebGPU)')")
            tab.wait_for_function("posenc.story.steps() >= 3")
            tab.workers[0].evaluate("device.destroy()")
        tab.wait_for_function("posenc.story.steps() >= 16")
        tab.click("[data-do=stop]")
        assert "(WebAssembly, one thread)" in tab.locator("#story-status").inner_text()
        texts.append(tab.evaluate("posenc.story.written().tokens.map(one => one.slice(0, 16))"))
        tab.close()
    assert texts[0] == texts[1]


@pytest.mark.browser
@pytest.mark.parametrize("answer", ["", "<html>no such file</html>"])
def test_weights_that_cannot_be_loaded_are_named(browser, recorded_page, answer):
    tab, path = browser.new_page(), recorded_page.with_name("without.html")
    if answer:
        path.with_name("nowhere").mkdir()
        (path.parent / "nowhere/0.js").write_text(answer)
    path.write_text(story.page(RECORDED, ["nowhere/0.js"]), encoding="utf-8")
    tab.goto(f"{path.as_uri()}#lang=en")
    tab.click("[data-do=tell]")
    tab.locator(".note").wait_for()
    assert "nowhere/0.js" in tab.locator(".note").inner_text()
    tab.wait_for_function(f"document.querySelectorAll('.text [data-at]').length === {2 * story.LENGTH - story.TRAINED}")
    tab.close()


@pytest.mark.browser
def test_a_story_is_saved_as_a_video_of_its_length(new_tab, recorded_page, tmp_path):
    tab = new_tab(viewport={"width": 1280, "height": 900})
    tab.set_default_timeout(300_000)
    tab.goto(f"{recorded_page.as_uri()}#lang=en")
    with tab.expect_download() as saved:
        tab.click("[data-do=record]")
    assert saved.value.suggested_filename == "story.webm"
    saved.value.save_as(tmp_path / "story.webm")
    tab.wait_for_function("document.querySelector('.status').textContent.includes('saved')")
    assert tab.locator("canvas[aria-hidden=true]").count() == 0
    shown = """text => new Promise((done, failed) => {
      const video = document.createElement("video"), bytes = Uint8Array.from(atob(text), one => one.charCodeAt(0));
      video.onerror = () => failed(video.error.message);
      video.onseeked = () => {
        const canvas = Object.assign(document.createElement("canvas"), { width: video.videoWidth, height: video.videoHeight });
        const pen = canvas.getContext("2d");
        pen.drawImage(video, 0, 0);
        const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
        done([video.videoWidth, video.videoHeight, new Set(data).size, video.currentTime]);
      };
      video.onloadedmetadata = () => { video.currentTime = 1e5; };
      video.src = URL.createObjectURL(new Blob([bytes], { type: "video/webm" }));
    })"""
    width, height, colours, end = new_tab().evaluate(shown, b64encode((tmp_path / "story.webm").read_bytes()).decode())
    assert (width, height) == (1280, 720)
    assert colours > 20, "the last frame has text"
    assert 15 <= end < 60


def test_the_page_is_made_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(story, "ROOT", tmp_path)
    monkeypatch.setattr(story, "fetched", lambda: False)
    story.main()
    made = tmp_path / "site/story-live.html"
    assert made.stat().st_size > 10_000
    assert capsys.readouterr().out == f"{made.as_uri()}: open it in a browser\n"


# ---------------------------------------------------------------- what is recorded


def test_every_recorded_story_falls_apart_and_is_repaired():
    assert {RECORDED["method"], RECORDED["factor"]} == {"yarn", 4}
    assert [int(seed) for seed in RECORDED["seeds"]] == [*SCRIPT["SEEDS"]] == [*range(1, 8)]
    for (before, after), (first, last) in RECORDED["seeds"].values():
        assert after > 2 * before
        assert last < after / 1.5
        assert first == before, "one beginning"
    one, other = RECORDED["text"]
    assert one[: story.TRAINED] == other[: story.TRAINED]
    assert one != other


def test_the_picture_of_readme_is_of_the_recorded_story():
    text = (ROOT / SCRIPT["PICTURE"]).read_text(encoding="utf-8")
    assert text == SCRIPT["drawn"](RECORDED)
    assert len(text) < 2_000_000
    assert text.count("<script") == 0
    assert "@media(prefers-reduced-motion:no-preference){@keyframes" in text
    assert "animation" not in text.partition("@media(prefers-reduced-motion")[0]


@pytest.mark.parametrize("language", ["", ".zh"])
def test_the_docs_have_the_table_of_names(language):
    text = (ROOT / "docs" / f"story{language}.md").read_text(encoding="utf-8")
    assert SCRIPT["table"](RECORDED, language) in text
    assert set(RECORDED["asked"]) == set(story.methods())


def test_the_docs_have_the_rates_of_each_engine():
    assert SCRIPT["rates_table"](RECORDED["rates"]) in (ROOT / "docs" / "story.md").read_text(encoding="utf-8")
    assert sorted(RECORDED["rates"]["engines"]) == sorted(SCRIPT["ENGINES"])
