"use strict";
// The page: what is chosen goes through one place, `change`; a frame later everything that is shown is drawn from it.
posenc.explorer = (() => {
  const { t } = posenc.language, { element } = posenc.plot;
  const root = document.getElementById("explorer"), find = selector => root.querySelector(selector);
  const views = [...root.querySelectorAll(".view")], line = find(".line"), parts = [line, ...views], inside = [...line.querySelectorAll("[data-part]")];
  const embedded = root.dataset.embedded === "yes";
  const PREFIX = embedded ? "explorer:" : "";  // the host's own addresses are left alone
  const TOGETHER = 800;  // milliseconds in which changes of one control are one step of the browser's history
  const CHANGING = {  // a part that is shown alone: the controls that change it
    codes: ["dim", "base", "curve", "length"], products: ["dim", "base", "curve", "length", "method", "factor"],
    decay: ["dim", "base", "curve", "method", "factor"], waves: ["dim", "base", "trained", "method", "factor"],
    relative: ["method", "factor", "length"], bias: ["heads", "length"], line: ["encoding", "method", "factor"],
  };
  const timings = [], probes = {};
  const MANY = 256, SETTLED = 400;  // of more positions, heat maps are drawn coarsely until nothing changed for so many milliseconds
  let drawn = [], redraws = 0, state, frame = 0, notes = [], stepped = { what: "", at: 0 }, moving = 0;
  root.explorerState = () => state;

  const start = () => posenc.state.clean({ ...JSON.parse(document.getElementById("explorer-state").textContent) });

  function fromAddress() {
    const hash = location.hash.slice(1);
    if (embedded && !hash.startsWith(PREFIX)) return null;
    const text = hash.slice(PREFIX.length);
    return text ? posenc.state.parse(text) : null;
  }

  function take(found) {
    notes = found.notes;
    state = { ...found.state, lang: posenc.language.name };
    const note = find(".note");
    note.hidden = notes.length === 0;
    note.textContent = notes.length ? t`Some settings cannot be shown: ${notes.join("; ")}. Defaults replace them.` : "";
    later();
  }

  // part: of a plain state; {method: {window: 32}} changes one option. done: it becomes a step of the history.
  function change(part, done = true) {
    const now = posenc.state.plain(state), given = { ...now, ...part };
    for (const of of ["encoding", "method"]) {
      if (part[of] && typeof part[of] === "object") {
        const options = { ...state[`${of}Options`], ...part[of] };
        given[of] = [state[of], ...Object.entries(options).map(([name, value]) => `${name}=${value === null ? "none" : value}`)].join(":");
      }
    }
    const found = posenc.state.clean(given);
    clearTimeout(moving);
    moving = done || found.state.length <= MANY ? 0 : setTimeout(settle, SETTLED);
    controls.touched(part);
    take({ state: found.state, notes: [] });
    if (done) step(Object.keys(part).join());
  }

  function settle() {
    moving = 0;
    later();
  }

  const address = () => `#${PREFIX}${posenc.state.write(state)}`;

  function step(what, instead = false) {
    if (embedded || state.view !== "all" || address() === (location.hash || "#")) return;
    const at = performance.now(), again = what === stepped.what && at - stepped.at < TOGETHER;
    stepped = { what, at };
    try {
      history[again || instead ? "replaceState" : "pushState"](null, "", address());
    } catch {
      // a page without an address of its own, such as a preview, has no history to keep
    }
  }

  function later() {
    if (!frame) frame = requestAnimationFrame(draw);
  }

  function draw() {
    frame = 0;
    const from = performance.now(), colours = { ...posenc.draw.theme(root), coarse: Boolean(moving) };
    let model;
    try {
      model = posenc.model.of(state);
      path.show(state);
      controls.show(state);
      show(model);
      showPreset();
      formula.show(state);
      play.show();
      if (!line.hidden) {
        tokens.show(state, model, colours);
        if (!find(".rotation").hidden) clocks.show(state, model, colours);
      }
      const now = [model, colours.ink, colours.coarse, root.clientWidth, devicePixelRatio, state.step, state.view];
      if (now.some((one, at) => one !== drawn[at])) for (const figure of views) if (!figure.hidden) view(figure, model, colours);
      drawn = now;
    } catch (error) {  // what a formula refuses, it refuses with a sentence
      if (error.constructor !== Error) throw error;
      refuse(error.message);
    }
    redraws += 1;
    timings.push(performance.now() - from);
    if (timings.length > 1000) timings.shift();
    if (state.view !== "all" && parent !== window) parent.postMessage({ explorerHeight: document.body.offsetHeight }, "*");
  }

  // What the state shows: one view alone, those of a step of the path, or all; of an encoding that views do not draw, a sentence.
  function show(model) {
    const { view: id, step } = state, all = parts.map(part => part.dataset.view);
    const alone = id === "line" ? [id, "rotation"] : [id];  // the hands turn where the tokens are dragged
    const shown = id !== "all" ? alone : step ? posenc.state.PATH[step - 1].views : all;
    const aside = posenc.views.elsewhere(model), absent = part => aside && part !== line && posenc.views[part.dataset.view].absent(model);
    for (const part of parts) part.hidden = !shown.includes(part.dataset.view) || Boolean(absent(part));
    find(".aside").hidden = !aside;
    find(".aside").textContent = aside;
    const brief = shown !== all;
    for (const part of inside) part.hidden = brief && !shown.includes(part.dataset.part);
    root.classList.toggle("brief", brief);
    root.classList.toggle("alone", id !== "all");
    root.dataset.view = id;
    root.dataset.first = (step && id === "all" && posenc.state.PATH[step - 1].first) || "";
    for (const field of root.querySelectorAll(".controls > .fields > .field")) {
      field.classList.toggle("changing", id !== "all" && CHANGING[id].includes(field.dataset.field));
    }
  }

  function refuse(sentence) {
    const note = find(".note");
    note.hidden = false;
    note.textContent = t`This choice has no numbers: ${sentence}.`;
    for (const figure of views) blank(figure, t`This choice has no numbers.`);
    drawn = [];
  }

  function blank(figure, absent) {
    figure.classList.toggle("empty", Boolean(absent));
    figure.querySelector(".absent").hidden = !absent;
    figure.querySelector(".absent").textContent = absent;
    figure.querySelector(".shown").hidden = Boolean(absent);
    figure.querySelector(".cursor").hidden = true;
    probes[figure.dataset.view] = null;
  }

  function view(figure, model, colours) {
    const id = figure.dataset.view, own = posenc.views[id], absent = own.absent(model);
    blank(figure, absent);
    figure.querySelector(".see").textContent = absent ? "" : own.see(model);
    if (absent) return;
    probes[id] = own.draw(figure.querySelector("canvas"), colours, model);
    figure.querySelector(".legend").replaceChildren(...own.legend(model, colours).map(posenc.plot.legend));
    figure.querySelector(".readout").textContent = "";
    if (figure.querySelector("details").open) table(figure, model);
  }

  const table = (figure, model) => posenc.plot.table(figure.querySelector("table"), posenc.views[figure.dataset.view].table(model));

  for (const figure of views) {
    const id = figure.dataset.view;
    posenc.plot.readable(figure, () => probes[id], (row, column) => posenc.views[id].read(posenc.model.of(state), row, column));
    figure.querySelector("details").addEventListener("toggle", event => {
      if (event.target.open) table(figure, posenc.model.of(state));
    });
  }

  // ------------------------------------------------------------------ buttons and presets

  const presets = find("#explorer-preset"), written = posenc.state.PRESETS.map(preset => posenc.state.write(posenc.state.clean({ ...preset.state, lang: posenc.language.name }).state));
  presets.append(element("option", { value: "" }, t`custom`), ...posenc.state.PRESETS.map(({ name }, index) => element("option", { value: index }, name)));
  presets.addEventListener("change", () => {
    const preset = posenc.state.PRESETS[presets.value];
    if (!preset) return;
    take(posenc.state.clean({ ...preset.state }));
    step("preset");
  });

  function showPreset() {
    const now = posenc.state.write(state);
    const found = written.indexOf(now);
    presets.value = found < 0 ? "" : found;
    find("#explorer-preset-says").textContent = found < 0 ? "" : posenc.state.PRESETS[found].says;
  }

  const buttons = {
    reset() {
      take(start());
      step("reset");
      say(t`Back to where it started.`);
    },
    link: () => copy(t`link`, url()),
    frame: () => copy("iframe", posenc.saving.frame(embedded ? `posenc-explorer.html#${posenc.state.write(state)}` : url())),
    python: () => copy("Python", posenc.saving.python(posenc.state.plain(state))),
    numbers() {
      const text = JSON.stringify(values(), (_, v) => (ArrayBuffer.isView(v) ? Array.from(v) : v));
      posenc.saving.file("posenc-explorer.json", new Blob([text], { type: "application/json" }));
      say(t`Every number shown is in posenc-explorer.json.`);
    },
    settings: () => controls.open(),
    language() {
      state = { ...state, lang: posenc.language.other };
      location.replace(address());
      location.reload();
    },
  };
  for (const button of root.querySelectorAll("[data-do]")) button.addEventListener("click", () => buttons[button.dataset.do]?.());

  const url = () => new URL(address(), location.href).href;

  async function copy(what, text) {
    try {
      await navigator.clipboard.writeText(text);
      say(t`The ${what} is copied.`);
    } catch {
      say(t`This page may not write to the clipboard. The ${what}: ${text}`);
    }
  }

  for (const button of root.querySelectorAll("[data-save]")) button.addEventListener("click", () => save(button.closest(".view, .line"), button.dataset.save));

  async function save(part, kind) {
    const id = part.dataset.view, name = `posenc-${id}.${kind}`, model = posenc.model.of(state);
    const view = part === line ? tokens.picture(model, posenc.saving.SIZE.width) : posenc.views[id];
    const text = posenc.saving.svg(view, t`${view.title || part.querySelector("h3").textContent}: ${posenc.state.withEncoding(state)}`, model, posenc.draw.theme(root), `#${PREFIX}${posenc.state.withEncoding(state)}`);
    posenc.saving.file(name, kind === "svg" ? new Blob([text], { type: "image/svg+xml" }) : await posenc.saving.png(text));
    say(t`The picture is in ${name}.`);
  }

  function say(sentence) {
    find(".status").textContent = sentence;
  }

  // ------------------------------------------------------------------ everything that is shown, as data

  function values() {
    const about = { state: { ...posenc.state.plain(state), tokens: state.tokens, at: state.at }, address: address(), notes };
    try {
      return { ...about, ...numbers(), redraws: { count: redraws, milliseconds: [...timings] } };
    } catch (error) {
      if (error.constructor !== Error) throw error;
      return { ...about, refused: error.message, redraws: { count: redraws, milliseconds: [...timings] } };
    }
  }

  function numbers() {
    const m = posenc.model.of(state), { codes, products, decay, decayPlain, wavelengths, wavelengthsPlain, relative, bias } = m;
    const rows = posenc.words.attention(state, m);
    return {
      length: m.n, frequencies: m.turned, wavelengths, wavelengths_as_trained: wavelengthsPlain, codes, products,
      decay: decay && decay.mean, decay_as_trained: decayPlain, relative, bias,
      tokens: state.tokens.map((token, index) => {
        const code = m.codesAt(Float64Array.of(state.at[index]));
        return { token, ...rows[index], vector: posenc.words.vector(token, state.dim), code };
      }),
      clocks: posenc.clocks.angles(state, m),
    };
  }

  const tokens = posenc.tokens.made(line, {
    move: (at, done) => change({ at: at.join(",") }, done),
    choose(index) {
      change({ token: index + 1 }, false);
      step("token", true);
    },
  });
  const clocks = posenc.clocks.made(find(".rotation"), change);
  const controls = posenc.controls.made(root, change);
  const formula = posenc.formula.made(root, root.dataset.docs);
  const path = posenc.path.made(root, { go, embedded, begun: control => controls.touched({ [control]: 0 }) });
  const play = posenc.play.made(find("[data-do=play]"), {
    state: () => state,
    field: () => controls.played(state),
    possible: field => field === "at" || !find(`[data-field="${field}"]`).hidden,
    change: part => change(part, false),
    rested: () => step("play", true),
  });
  for (const started of ["pointerdown", "keydown"]) {
    root.addEventListener(started, event => event.target.closest(".field, .track, .path, .presets, .buttons") && play.stop(), { capture: true });
  }

  function go(to) {  // leaving the path changes nothing else
    play.stop();
    take(to ? posenc.state.clean({ step: to }) : { state: { ...state, step: 0 }, notes: [] });
    step(`step ${to}`);  // each is a step of the history
    if (to) requestAnimationFrame(path.reveal);
  }

  find("form").addEventListener("submit", event => event.preventDefault());
  addEventListener("hashchange", () => {
    const found = fromAddress() || (embedded ? null : start());
    if (found && posenc.language.of(location.hash) !== posenc.language.name) location.reload();  // every word is of one language
    else if (found && posenc.state.write(found.state) !== posenc.state.write(state)) take(found);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  new ResizeObserver(later).observe(root);
  find(".layout").hidden = false;
  take(fromAddress() || start());
  if (embedded && fromAddress()) root.scrollIntoView();
  else if (state.step) requestAnimationFrame(path.reveal);
  find(".more").open = state.view !== "all";
  return { values, change, redraws: () => redraws };
})();
