"use strict";
// The page: what is chosen goes through one place, `change`; the models read in slices between frames, and what is shown is
// drawn as far as they have read.
posenc.models = posenc.models || {};
posenc.predict = (() => {
  const { t } = posenc.language, { element } = posenc.plot, { FIELDS, METHODS, TYPED, trained, most, named } = posenc.chosen, words = posenc.predicted;
  const root = document.getElementById("predict"), find = selector => root.querySelector(selector);
  const SLICE = 12, BETWEEN = 80, TOGETHER = 800;  // milliseconds: of reading at once, between drawings, of one step of the history
  const WRITTEN = 24;  // bytes that the model writes at once
  let state, notes = [], tokens = new Uint8Array(0), frame = 0, drawn = 0, stepped = { what: "", at: 0 }, toWrite = 0;
  let passes = 0, timing = { begun: 0, milliseconds: 0 }, complete = false;
  const loaded = {}, failed = {};

  // ------------------------------------------------------------------ models and what they read

  // A model, or null while it is not here; then the page goes on when it comes.
  function model(name) {
    if (loaded[name] || failed[name]) return loaded[name] || null;
    const inside = document.getElementById(`predict-${name}`), { source } = named[name];
    if (inside) posenc.models[name] = JSON.parse(inside.textContent);
    if (posenc.models[name]) return (loaded[name] = posenc.network.model(posenc.models[name]));
    if (!document.querySelector(`script[data-model="${name}"]`)) {
      const script = element("script", { src: source, onload: later });
      script.dataset.model = name;
      script.onerror = () => {
        failed[name] = true;
        script.remove();
        refuse(t`The weights of ${named[name].title} could not be loaded from ${source}. Choose another encoding, or reload the page.`);
      };
      document.head.append(script);
    }
    return null;
  }

  // One text read by one model in up to three ways: as chosen, without an extension, and in pieces of the training length.
  let work = null;

  function begin(found) {
    const shown = posenc.network.reading(found, most), plain = posenc.network.reading(found, most);
    work = { model: found, shown, plain, pieces: pieces(found), how: "" };
    plain.place(posenc.chosen.positions(found, { ...state, method: "none" }, tokens.length));
  }

  // Bytes past the training length with half of it to all of it before them: pieces that begin every half.
  function pieces(found) {
    const half = Math.max(1, trained >> 1), reading = posenc.network.reading(found, trained + 1), loss = new Float64Array(most).fill(NaN);
    reading.place(posenc.chosen.positions(found, { ...state, method: "none" }, trained));
    let text = new Uint8Array(0), begin = 0, open = false;
    return {
      loss: t => loss[t] ?? NaN,
      read(given) {
        let same = 0;
        while (same < given.length && given[same] === text[same]) same++;
        if (same === given.length && same === text.length) return;
        text = given;
        loss.fill(NaN, same);
        begin = Math.min(begin, Math.max(0, Math.ceil((same - trained) / half) * half));
        open = false;
      },
      get finished() { return text.length < 2 || (begin > 0 && begin + half >= text.length - 1 && !open); },
      advance() {
        if (!open) reading.read(text.slice(begin, begin + trained + 1));
        open = true;
        reading.advance();
        if (!reading.finished) return;
        for (let t = begin ? half + 1 : 1; t <= trained && begin + t < text.length; t++) loss[begin + t] = reading.loss(t);
        open = false;
        begin += half;
      },
    };
  }

  const howOf = () => JSON.stringify([state.encoding, state.method, ...METHODS[state.method].slice(1).map(name => state[name]), state.method === "dynamic" && tokens.length]);

  // What is to be read next, or null. A change of the extension waits for the pass that is under way, so that the curve keeps
  // up with a slider; another text or model does not wait.
  function next() {
    const found = failed[state.encoding] ? null : model(state.encoding);
    if (!found) return null;
    if (!work || work.model !== found) begin(found);
    const how = howOf(), { shown, plain } = work, same = state.method === "none";
    for (const one of [shown, plain, work.pieces]) one.read(tokens);
    if (!same && work.how !== how && (work.how === "" || shown.finished || !shown.done)) {
      shown.place(posenc.chosen.positions(found, state, tokens.length));
      [work.how, passes, timing.begun] = [how, passes + 1, performance.now()];
    }
    if (same) work.how = how;
    return [same ? plain : shown, plain, work.pieces].find(one => !one.finished) || null;
  }

  function go() {
    frame = 0;
    const until = performance.now() + SLICE;
    let job = next();
    while (job && performance.now() < until) {
      job.advance();
      if (job === main() && job.finished) timing.milliseconds = performance.now() - timing.begun;
      job = next();
    }
    complete = !job && (ready() || Boolean(failed[state.encoding]));
    find(".headline").classList.toggle("late", !complete);
    if (toWrite && ready() && main().finished) write();
    if (complete || performance.now() - drawn > BETWEEN) draw();
    if (job || toWrite) later();
  }

  function later() {
    if (!frame) frame = requestAnimationFrame(go);
  }

  const ready = () => work !== null && work.model === loaded[state.encoding];
  const main = () => (state.method === "none" ? work.plain : work.shown);
  const found = () => ({ state, tokens, shown: main().loss, plain: work.plain.loss, pieces: work.pieces.loss });

  // ------------------------------------------------------------------ the state

  const address = () => `#${posenc.chosen.write(state)}`;

  function take(cleaned) {
    ({ state, notes } = cleaned);
    tokens = posenc.chosen.bytes(state);
    timing.begun = performance.now();
    complete = false;
    const note = find(".note");
    note.hidden = notes.length === 0;
    note.textContent = notes.length ? t`Some settings cannot be shown: ${notes.join("; ")}. Defaults replace them.` : "";
    show();
    later();
  }

  function change(part) {
    const asked = { ...posenc.chosen.plain(state), ...part };
    if ("passage" in part && part.passage !== TYPED) delete asked.text;
    if ("passage" in part && part.passage === TYPED) asked.text = state.text;
    if (("text" in part || "passage" in part) && !("at" in part)) delete asked.at;
    if (part.encoding && part.encoding !== "rope") delete asked.method;
    take(posenc.chosen.clean(asked));
    step(Object.keys(part).join());
  }

  function step(what) {
    if (address() === (location.hash || "#")) return;
    const at = performance.now(), again = what === stepped.what && at - stepped.at < TOGETHER;
    stepped = { what, at };
    try {
      history[again ? "replaceState" : "pushState"](null, "", address());
    } catch {
      // a page without an address of its own, such as a preview, has no history to keep
    }
  }

  function refuse(sentence) {
    const note = find(".note");
    note.hidden = false;
    note.textContent = sentence;
    find(".headline").textContent = "";
  }

  // ------------------------------------------------------------------ controls

  const controls = {};

  for (const [name, field] of Object.entries(FIELDS)) {
    const id = `predict-${name}`, label = element("label", { htmlFor: id }, field.label), box = element("div", { className: "field" }, label);
    if (field.kind === "choice") {
      controls[name] = element("select", { id }, ...field.choices.map(([value, title]) => element("option", { value }, title)));
      controls[name].addEventListener("change", event => change({ [name]: event.target.value }));
      box.append(controls[name]);
    } else {
      const { min, max, step } = field, hint = element("p", { className: "hint", id: `${id}-hint`, hidden: true }, t`${field.label}: ${posenc.chosen.wanted(field)}`);
      const range = element("input", { type: "range", id, min, max, step });
      const exact = element("input", { type: "number", min, max, step, ariaLabel: t`${field.label}, as a number` });
      exact.setAttribute("aria-describedby", hint.id);
      for (const input of [range, exact]) {
        input.addEventListener("input", () => {
          const value = posenc.chosen.read(field, input.value);
          hint.hidden = value !== undefined;
          exact.ariaInvalid = String(value === undefined);
          if (value !== undefined) change({ [name]: value });
        });
      }
      controls[name] = [range, exact];
      box.append(element("div", { className: "both" }, range, exact), hint);
    }
    (name === "passage" ? find(".source") : find(".fields")).append(box);
  }

  function show() {
    for (const [name, field] of Object.entries(FIELDS)) {
      const control = controls[name];
      if (field.kind === "choice") control.value = state[name];
      else {
        control[0].closest(".field").hidden = !METHODS[state.method].includes(name);
        for (const input of control) if (document.activeElement !== input || Number(input.value) !== state[name]) input.value = state[name];
      }
    }
    controls.method.closest(".field").hidden = state.encoding !== "rope";
    const area = find("#predict-text");
    if (area.value !== state.text) area.value = state.text;
    spell();
  }

  find("#predict-text").addEventListener("input", event => change({ text: event.target.value }));
  find("form").addEventListener("submit", event => event.preventDefault());

  const buttons = {
    reset() {
      take(posenc.chosen.clean({}));
      step("reset");
      say(t`Back to where it started.`);
    },
    async link() {
      const url = new URL(address(), location.href).href;
      try {
        await navigator.clipboard.writeText(url);
        say(t`The ${t`link`} is copied.`);
      } catch {
        say(t`This page may not write to the clipboard. The ${t`link`}: ${url}`);
      }
    },
    write() {
      if (!tokens.length) return say(t`The text is empty: type a word for it to begin with.`);
      toWrite = WRITTEN;
      later();
    },
    language: () => location.replace(`#${posenc.chosen.write(state, posenc.language.other)}`),
  };
  for (const button of root.querySelectorAll("[data-do]")) button.addEventListener("click", () => buttons[button.dataset.do]());

  function say(sentence) {
    find(".status").textContent = sentence;
  }

  function write() {  // the likeliest byte that can be shown by itself, behind the text
    if (tokens.length >= most) {
      toWrite = 0;
      say(t`The page reads ${most} bytes, and the text has as many.`);
      return;
    }
    const shares = main().next(tokens.length - 1);
    let best = 32;
    for (let byte = 33; byte < 127; byte++) if (shares[byte] > shares[best]) best = byte;
    if (shares[10] > shares[best]) best = 10;
    toWrite -= 1;
    change({ text: state.text + String.fromCharCode(best), at: tokens.length + 1 });
  }

  // ------------------------------------------------------------------ the text, byte by byte

  const strip = find(".bytes");
  strip.dataset.empty = t`no text`;

  function spell() {
    const spans = strip.children;
    while (spans.length > tokens.length) strip.lastChild.remove();
    while (spans.length < tokens.length) strip.append(element("span"));
    tokens.forEach((byte, at) => {
      const shown = words.character(tokens, at);
      if (spans[at].textContent !== shown) spans[at].textContent = shown;
      spans[at].className = `${byte === 10 ? "line " : ""}${at === trained ? "limit " : ""}${at === state.at - 1 ? "chosen" : ""}`;
    });
    const chosen = spans[state.at - 1], top = chosen ? chosen.offsetTop : 0;
    if (top < strip.scrollTop || top + 24 > strip.scrollTop + strip.clientHeight) strip.scrollTop = top - strip.clientHeight / 2;
    strip.setAttribute("aria-valuemax", Math.max(tokens.length, 1));
    strip.setAttribute("aria-valuenow", state.at);
    strip.setAttribute("aria-valuetext", tokens.length ? t`byte ${state.at}, ${words.spoken(words.character(tokens, state.at - 1))}` : t`no bytes`);
  }

  function choose(at) {
    change({ at: Math.max(1, Math.min(at, tokens.length)) });
  }

  strip.addEventListener("pointerdown", event => {
    const at = [...strip.children].indexOf(event.target.closest("span"));
    if (at >= 0) choose(at + 1);
  });
  strip.addEventListener("keydown", event => {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -32, PageUp: 32, Home: -most, End: most }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    choose(state.at + by);
  });

  // ------------------------------------------------------------------ drawing

  const figures = Object.fromEntries([...root.querySelectorAll(".view")].map(figure => [figure.dataset.view, figure]));
  const probes = {}, tables = {};

  function figure(name, probe, legend, table) {
    const place = figures[name];
    probes[name] = probe;
    tables[name] = table;
    place.querySelector(".legend").replaceChildren(...legend.map(posenc.plot.legend));
    if (place.querySelector("details").open) posenc.plot.table(place.querySelector("table"), table());
  }

  for (const [name, place] of Object.entries(figures)) {
    place.querySelector("details").addEventListener("toggle", event => {
      if (event.target.open && tables[name]) posenc.plot.table(place.querySelector("table"), tables[name]());
    });
  }

  let rows = null;
  posenc.plot.readable(figures.loss, () => probes.loss, (row, column) => words.read(found(), posenc.draw.theme(root), row, column));
  posenc.plot.readable(figures.attention, () => probes.attention, (row, column) => (rows && rows[row] ? words.looksAt(work.model, tokens, rows, state.at - 1, row, column) : ""));

  function draw() {
    drawn = performance.now();
    if (!ready()) {
      find(".headline").textContent = failed[state.encoding] ? "" : t`Loading the weights of ${named[state.encoding].title} …`;
      return;
    }
    const colours = posenc.draw.theme(root), now = found();
    figure("loss", words.draw(figures.loss.querySelector("canvas"), colours, now), words.legend(now, colours), () => words.table(found(), colours));
    if (!complete) return;
    if (notes.length === 0) find(".note").hidden = true;
    find(".headline").textContent = words.headline(now);
    find(".about").textContent = about();
    tint(colours, now.shown);
    guesses();
    attention(colours);
  }

  const about = () => {
    const { dim, layers, heads, steps, read, corpus } = work.model;
    const size = Object.values(work.model.matrices).reduce((sum, one) => sum + one.length, 0);
    return t`${posenc.draw.number(Math.round(size / 1000))} thousand weights: ${layers} layers of width ${dim}, ${heads} heads, every byte a token; trained for ${steps} steps on ${posenc.draw.number(read)} bytes of ${posenc.language.say(corpus)}.`;
  };

  function tint(colours, loss) {  // the costlier a byte, the stronger its ground
    [...strip.children].forEach((span, at) => {
      const cost = loss(at), share = Number.isNaN(cost) ? 0 : Math.min(cost / 8, 1);
      span.style.background = share ? `color-mix(in srgb, ${colours.past} ${Math.round(45 * share)}%, transparent)` : "";
    });
  }

  function guesses() {
    const at = state.at - 1, body = find(".guesses tbody");
    find("#predict-next-see").textContent = "";
    body.replaceChildren();
    if (!tokens.length) return;
    const shares = main().next(at), list = words.guesses(shares, tokens, at), top = list[0].share;
    find("#predict-next-see").textContent = words.expects(shares, tokens, at);
    for (const { byte, share, followed } of list) {
      const shown = words.character(Uint8Array.of(byte), 0), bar = element("i", { style: `width: ${(100 * share) / top}%` });
      const line = element("tr", { className: followed ? "followed" : "" }, element("th", { scope: "row" }, byte < 128 ? shown : t`byte ${byte}`),
        element("td", {}, words.percent(share)), element("td", {}, element("span", { className: "bar" }, bar)), element("td", {}, followed ? t`what followed` : ""));
      body.append(line);
    }
  }

  function attention(colours) {
    const at = state.at - 1, place = figures.attention;
    rows = tokens.length ? main().attention(at) : null;
    place.hidden = !rows;
    if (!rows) return;
    place.querySelector(".see").textContent = words.looks(rows, at);
    const legend = [{ ramp: posenc.draw.gradient(colours.up), texts: ["0", t`the head's most`] }];
    figure("attention", words.heat(place.querySelector("canvas"), colours, work.model, rows, at), legend, () => words.tableOf(work.model, tokens, rows, at));
  }

  // ------------------------------------------------------------------ everything that is shown, as data

  function values() {
    const list = of => Array.from({ length: tokens.length }, (_, at) => of(at));
    const here = complete && ready();
    return {
      state: posenc.chosen.plain(state), address: address(), notes, tokens: Array.from(tokens), complete, passes, milliseconds: timing.milliseconds,
      headline: find(".headline").textContent,
      ...(here && { loss: list(main().loss), plain: list(work.plain.loss), pieces: list(work.pieces.loss), next: tokens.length ? Array.from(main().next(state.at - 1)) : [] }),
      attention: here && rows ? rows.map(row => Array.from(row)) : [],
    };
  }

  addEventListener("hashchange", () => {
    const asked = posenc.chosen.parse(location.hash.slice(1));
    if (posenc.language.of(location.hash) !== posenc.language.name) location.reload();  // every word is of one language
    else if (posenc.chosen.write(asked.state) !== posenc.chosen.write(state)) take(asked);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  new ResizeObserver(later).observe(root);
  find(".layout").hidden = false;
  take(posenc.chosen.parse(location.hash.slice(1)));
  return { values, change, complete: () => complete };
})();
