"use strict";
// The page: what is chosen goes through one place, `change`; a frame later everything that is shown is drawn from it.
posenc.explorer = (() => {
  const { element } = posenc.plot;
  const root = document.getElementById("explorer"), find = selector => root.querySelector(selector);
  const views = [...root.querySelectorAll(".view")];
  const embedded = root.dataset.embedded === "yes";
  const PREFIX = embedded ? "explorer:" : "";  // the host's own addresses are left alone
  const TOGETHER = 800;  // milliseconds in which changes of one control are one step of the browser's history
  const BESIDE = {  // a view that is shown alone, and its controls
    codes: ["dim", "base", "curve", "length"], products: ["dim", "base", "curve", "length", "method", "factor"],
    decay: ["dim", "base", "curve", "method", "factor"], waves: ["dim", "base", "trained", "method", "factor"],
    relative: ["method", "factor", "length"], bias: ["heads", "length"],
  };
  const timings = [], probes = {};
  let drawn = [], redraws = 0, state, frame = 0, notes = [], stepped = { what: "", at: 0 };
  root.explorerState = () => state;

  const start = () => posenc.state.clean({ ...JSON.parse(document.getElementById("explorer-state").textContent) });

  function fromAddress() {
    const hash = location.hash.slice(1);
    if (embedded && !hash.startsWith(PREFIX)) return null;
    const text = hash.slice(PREFIX.length);
    return text ? posenc.state.parse(text) : null;
  }

  function take(found) {
    ({ state, notes } = found);
    const note = find(".note");
    note.hidden = notes.length === 0;
    note.textContent = notes.length ? `Not everything that was asked for can be shown: ${notes.join("; ")}. The usual stands in its place.` : "";
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
    take({ state: found.state, notes: [] });
    if (done) step(Object.keys(part).join());
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
    const from = performance.now(), colours = posenc.draw.theme(root);
    let model;
    try {
      model = posenc.model.of(state);
      controls.show(state);
      alone(state.view);
      showPreset();
      tokens.show(state, model, colours);
      const now = [model, colours.ink, root.clientWidth, devicePixelRatio, state.view];
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

  function alone(id) {  // "all": nothing is
    root.classList.toggle("alone", id !== "all");
    root.dataset.view = id;
    for (const figure of views) figure.hidden = id !== "all" && figure.dataset.view !== id;
    for (const field of root.querySelectorAll(".controls > .fields > .field")) {
      field.classList.toggle("beside", id !== "all" && BESIDE[id].includes(field.querySelector("[id]").id.replace("explorer-", "")));
    }
  }

  function refuse(sentence) {
    const note = find(".note");
    note.hidden = false;
    note.textContent = `This choice has no numbers: ${sentence}.`;
    for (const figure of views) blank(figure, "This choice has no numbers.");
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

  const presets = find("#explorer-preset");
  presets.append(element("option", { value: "" }, "your own choice"), ...posenc.state.PRESETS.map(({ name }, index) => element("option", { value: index }, name)));
  presets.addEventListener("change", () => {
    const preset = posenc.state.PRESETS[presets.value];
    if (!preset) return;
    take(posenc.state.clean({ ...preset.state }));
    step("preset");
  });

  function showPreset() {
    const now = posenc.state.write(state);
    const found = posenc.state.PRESETS.findIndex(p => posenc.state.write(posenc.state.clean({ ...p.state }).state) === now);
    presets.value = found < 0 ? "" : found;
    find("#explorer-preset-says").textContent = found < 0 ? "" : posenc.state.PRESETS[found].says;
  }

  const buttons = {
    reset() {
      take(start());
      step("reset");
      say("Back to where it started.");
    },
    async link() {
      const url = new URL(address(), location.href).href;
      try {
        await navigator.clipboard.writeText(url);
        say("The link is copied.");
      } catch {
        say(`This page may not write to the clipboard. The link: ${url}`);
      }
    },
    numbers() {
      const file = new Blob([JSON.stringify(values(), (_, v) => (ArrayBuffer.isView(v) ? Array.from(v) : v))], { type: "application/json" });
      const link = element("a", { href: URL.createObjectURL(file), download: "posenc-explorer.json" });
      link.click();
      URL.revokeObjectURL(link.href);
      say("Every number shown is in posenc-explorer.json.");
    },
  };
  for (const button of root.querySelectorAll("[data-do]")) button.addEventListener("click", () => buttons[button.dataset.do]());

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
    const scores = posenc.tokens.compared(state, m), strength = posenc.tokens.strengths(scores, state.token - 1, m);
    return {
      length: m.n, frequencies: m.turned, wavelengths, wavelengths_as_trained: wavelengthsPlain, codes, products,
      decay: decay && decay.mean, decay_as_trained: decayPlain, relative, bias,
      tokens: state.tokens.map((token, index) => {
        const code = m.codesAt(Float64Array.of(state.at[index]));
        return { token, position: state.at[index], score: scores[index], strength: strength[index], code };
      }),
    };
  }

  const tokens = posenc.tokens.made(find(".line"), {
    move: (at, done) => change({ at: at.join(",") }, done),
    choose(index) {
      change({ token: index + 1 }, false);
      step("token", true);
    },
  });
  const controls = posenc.controls.made(root, change);

  find("form").addEventListener("submit", event => event.preventDefault());
  addEventListener("hashchange", () => {
    const found = fromAddress() || (embedded ? null : start());
    if (found && posenc.state.write(found.state) !== posenc.state.write(state)) take(found);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  new ResizeObserver(later).observe(root);
  find(".layout").hidden = false;
  take(fromAddress() || start());
  if (embedded && fromAddress()) root.scrollIntoView();
  find(".more").open = state.view !== "all";
  return { values, change, redraws: () => redraws };
})();
