"use strict";
// The page: its state is in the address, "method=yarn&factor=4&seed=3&begin=...&lang=zh&path=WebGPU"; a worker writes, this file shows.
posenc.story = (() => {
  const given = JSON.parse(document.getElementById("story-data").textContent), { trained, length, rotations, recorded } = given;
  const root = document.getElementById("story"), find = selector => root.querySelector(selector);
  const PAIRS = [4, 9, 13, 18], TURN = 2 * Math.PI, LEAST = 3, MOST = 8, SMOOTH = 16;  // shown pairs; nats of the first and the full colour; tokens of a mean
  const QUICK = 140, SLOW = 30;  // tokens a second of the recorded story, up to the context length and past it
  const SVG = "http://www.w3.org/2000/svg", still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const limits = { seed: 2 ** 31 };
  let state, words, written = recorded, worker = null, loading = null, run = 0, asked = null, frame = 0, steps = 0, played = still ? length : 0, last = 0;

  const element = (tag, properties = {}, ...children) => {
    const found = Object.assign(document.createElement(tag), properties);
    found.append(...children);
    return found;
  };
  const drawn = (tag, attributes) => {
    const found = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
    return found;
  };
  const mean = values => values.reduce((sum, one) => sum + one, 0) / values.length;

  // ------------------------------------------------------------------ the state

  const USUAL = { method: recorded.method, factor: String(recorded.factor), seed: String(recorded.seed), begin: "", lang: "en", name: given.names[0], path: "" };

  function read(text) {
    const found = { ...USUAL, lang: (navigator.language || "").startsWith("zh") ? "zh" : "en", ...posenc.address.read(text).asked };
    const among = (name, choices) => { if (!choices.includes(found[name])) found[name] = USUAL[name]; };
    among("method", given.methods.filter(name => name !== "none"));
    among("factor", given.factors.map(String));
    among("lang", ["en", "zh"]);
    among("name", given.names);
    among("path", ["", "WebGPU", "WebAssembly", "JavaScript"]);
    if (!(/^\d+$/u.test(found.seed) && Number(found.seed) < limits.seed)) found.seed = USUAL.seed;
    found.begin = String(found.begin).slice(0, 200);
    return found;
  }

  const address = () => `#${Object.keys(USUAL).filter(name => name === "lang" || state[name] !== USUAL[name])
    .map(name => `${name}=${encodeURIComponent(state[name])}`).join("&")}`;
  const keyOf = (method, factor) => (given.scaled.includes(method) ? `${method}:${factor}` : method);
  const factorOf = (method, factor) => (given.scaled.includes(method) ? factor : null);

  function change(part, stay = false) {
    Object.assign(state, part);
    try {
      history.replaceState(null, "", address());
    } catch {
      // a page without an address of its own, such as a preview
    }
    if (!stay) controls();
  }

  // ------------------------------------------------------------------ words and controls

  function controls() {
    words = posenc.storyWords[state.lang];
    document.documentElement.lang = state.lang === "zh" ? "zh-Hans" : "en";
    document.title = words.title;
    for (const place of document.querySelectorAll("[data-word]")) place.textContent = words[place.dataset.word];
    document.getElementById("story-lead").textContent = words.lead(given);
    const options = (select, values, titles) => {
      select.replaceChildren(...values.map(value => element("option", { value }, titles(value))));
    };
    options(find("#story-method"), given.methods.filter(name => name !== "none"), name => words.methods[name]);
    options(find("#story-factor"), given.factors.map(String), factor => `${factor}×`);
    options(find("#story-name"), given.names, name => name);
    for (const name of ["method", "factor", "name", "begin"]) find(`#story-${name}`).value = state[name];
    find("#story-begin").placeholder = words.placeholder;
    find("#story-factor").closest(".field").hidden = !given.scaled.includes(state.method);
    find(".language").textContent = words.other;
    const ready = worker && worker.ready;
    find("[data-do=tell]").textContent = ready ? words.tell : words.load(given.megabytes);
    find("[data-do=ask]").textContent = ready ? words.ask : words.asks(given.megabytes);
    const [head, ...rest] = words.why;
    find(".why").replaceChildren(element("h2", {}, head), ...rest.map(text => element("p", { className: "see" }, text)));
    for (const name of ["tell", "fresh", "ask"]) find(`[data-do=${name}]`).disabled = !given.sources.length;
    build();
    show();
    questions();
  }

  for (const name of ["method", "factor", "name"]) find(`#story-${name}`).addEventListener("change", event => change({ [name]: event.target.value }));
  find("#story-begin").addEventListener("input", event => change({ begin: event.target.value }, true));
  find("form").addEventListener("submit", event => { event.preventDefault(); buttons.tell(); });
  const buttons = {
    language: () => change({ lang: state.lang === "zh" ? "en" : "zh" }),
    tell: () => tell(),
    fresh() {
      change({ seed: String(crypto.getRandomValues(new Uint32Array(1))[0] % limits.seed) });
      tell();
    },
    ask: () => ask(),
    stop() {
      run += 1;
      if (worker) worker.send({ do: "stop" });
      written.done = true;
      show();
    },
    replay() {
      played = 0;
      replay();
    },
    async share() {
      const url = new URL(address(), location.href).href;
      try {
        await navigator.clipboard.writeText(url);
        say(words.copied);
      } catch {
        say(words.link(url));
      }
    },
    async record() {
      say(words.recording);
      say(await posenc.storyVideo(written, words, { trained, headings: headings(), least: LEAST, most: MOST, style: getComputedStyle(root), place: find(".scene") }) ? words.saved : words.unrecordable);
    },
  };
  for (const button of root.querySelectorAll("[data-do]")) button.addEventListener("click", () => buttons[button.dataset.do]());

  function say(sentence) {
    find(".status").textContent = sentence;
  }

  function tells(sentence) {
    find(".status.of-name").textContent = sentence;
  }

  function refuse(sentence) {
    find(".note").textContent = sentence;
    find(".note").hidden = !sentence;
  }

  // ------------------------------------------------------------------ the model

  // A worker, or the page itself where there is none.
  function made() {
    const source = document.getElementById("story-worker").textContent;
    let send;
    try {
      const made = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
      made.onmessage = ({ data }) => answered(data);
      made.onerror = event => {
        written = recorded;
        build();
        show();
        refuse(words.broken(event.message));
      };
      send = message => made.postMessage(message);
    } catch {
      send = posenc.work(answered);
    }
    return { send, ready: false };
  }

  function script(src) {
    return new Promise((done, failed) => {
      const found = element("script", { src, onload: () => { found.remove(); done(); } });
      found.onerror = () => { found.remove(); failed(new Error(src)); };
      document.head.append(found);
    });
  }

  function ready() {
    loading = loading || (async () => {
      const bar = find("progress");
      let came = 0;
      bar.hidden = false;
      try {
        const made_ = made();
        posenc.weights = (about, vocabulary) => {
          came += 1;
          made_.send({ do: "make", model: about, methods: rotations, kernel: given.kernel, shaders: given.shaders, trained, most: length, path: state.path });
          posenc.spelling = posenc.pieces(vocabulary);
        };
        posenc.part = text => {
          came += 1;
          made_.send({ do: "part", text });
        };
        for (const [index, source] of given.sources.entries()) {
          await script(source);
          if (came === index) throw new Error(source);  // some servers answer with a page of their own
          bar.value = came / given.sources.length;
          say(words.loading(bar.value));
        }
        worker = made_;
        worker.ready = true;
        bar.hidden = true;
        find("[data-do=tell]").textContent = words.tell;
        find("[data-do=ask]").textContent = words.ask;
      } catch (error) {
        loading = null;
        bar.hidden = true;
        say("");
        refuse(words.failed(error.message));
        throw error;
      }
    })();
    return loading;
  }

  async function tell() {
    const mine = (run += 1);
    refuse("");
    await ready().then(() => {
      if (mine !== run) return;
      const tokens = state.begin ? posenc.spelling.encoded(state.begin) : [posenc.spelling.BOS];
      played = length;
      written = { ...state, factor: Number(state.factor), tokens: [[], []], text: [[], []], surprise: [[], []] };
      build();
      worker.send({ do: "tell", run, seed: Number(state.seed), names: ["none", keyOf(state.method, state.factor)], tokens, length });
    }, () => {});
  }

  const candidates = () => given.names.map(name => posenc.spelling.encoded(`a ${name}`)[2]);

  async function ask() {
    const mine = (run += 1);
    refuse("");
    await ready().then(() => {
      if (mine !== run) return;
      const names = [...new Set(["none", keyOf(state.method, state.factor), "truncation"])];
      asked = { name: state.name, names, shares: {} };
      questions();
      worker.send({ do: "ask", run, names, tokens: given.prompts[state.name], candidates: candidates() });
    }, () => {});
  }

  function answered(answer) {
    if (answer.run !== run) return;
    if (answer.step) {
      answer.step.forEach(({ token, surprise }, which) => {
        written.tokens[which].push(token);
        written.surprise[which].push(surprise);
      });
      written.rate = answer.rate;
      written.kind = answer.kind;
      steps += 1;
      if (!frame) frame = requestAnimationFrame(() => { frame = 0; show(); });
    } else if (answer.shares) {
      asked.shares[answer.name] = answer.shares;
      questions();
    } else if (answer.name) {
      tells(words.reading(title(answer.name), answer.read));
    } else if (answer.done) {
      tells("");
      written.done = true;
      show();
    }
  }

  // ------------------------------------------------------------------ a column

  const columns = [];

  function title(key) {
    const [method, factor] = key.split(":");
    return words.as(method, factor);
  }

  const headings = () => [words.as("none"), words.as(written.method, factorOf(written.method, written.factor))];

  function build() {
    if (!columns.length) {
      for (let which = 0; which < 2; which++) {
        const head = element("h3", { id: `story-ending-${which}` }), curve = drawn("svg", { viewBox: `0 0 ${length} 72`, preserveAspectRatio: "none", class: "curve", role: "img" });
        const line = drawn("polyline", {}), faces = element("ul", { className: "faces" }), text = element("p", { className: "text ending", tabIndex: 0 });
        text.setAttribute("aria-labelledby", head.id);
        curve.append(drawn("rect", { x: trained, y: 0, width: length - trained, height: 72 }), line);
        const each = PAIRS.map(face);
        faces.append(...each.map(({ item }) => item));
        columns.push({ head, curve, line, faces: each, text });
        find(".row.pair").append(element("section", {}, head, text));
        find(".row.curves").append(element("section", {}, curve, faces));
      }
    }
    headings().forEach((text, which) => {
      columns[which].head.textContent = text;
      columns[which].curve.setAttribute("aria-label", `${text}: ${words.surprise}`);
    });
    find(".limit").textContent = words.mark(trained);
  }

  function face(pair) {
    const parts = {
      rim: drawn("circle", { class: "rim", cx: 50, cy: 50, r: 38 }), trained: drawn("path", { class: "trained" }), reach: drawn("path", { class: "reach" }),
      hand: drawn("line", { class: "hand", x1: 50, y1: 50, x2: 50, y2: 14 }),
    };
    const drawing = drawn("svg", { viewBox: "0 0 100 100", "aria-hidden": "true" }), name = element("b"), says = element("span");
    drawing.append(...Object.values(parts), drawn("circle", { class: "middle", cx: 50, cy: 50, r: 2.5 }));
    return { pair, ...parts, name, says, item: element("li", {}, drawing, name, says) };
  }

  const tip = (angle, radius) => `${(50 + radius * Math.sin(angle)).toFixed(2)} ${(50 - radius * Math.cos(angle)).toFixed(2)}`;

  function arc(from, to) {  // clockwise; a circle from a turn on
    const end = Math.min(to, from + TURN - 1e-3);
    return end - from < 1e-6 ? "" : `M${tip(from, 44)}A44 44 0 0 1 ${tip((from + end) / 2, 44)}A44 44 0 0 1 ${tip(end, 44)}`;
  }

  // The relative position of the newest token, at t, and the oldest one that it sees.
  function farthest(key, t) {
    const { far } = rotations[key], half = trained >> 1;
    if (key === "truncation") return t < trained ? t : half + ((t - trained) % half);
    if (!far || t < far.nearest) return t;
    return Math.max(far.nearest - 1, far.q[t] - far.k[0]);
  }

  // What a pair shows at token t: {angle, known: the end of the angles of training, fresh}.
  function hand(key, pair, t) {
    const known = (trained - 1) * rotations.none.inv_freq[pair], angle = farthest(key, t) * rotations[key].inv_freq[pair];
    return { angle, known, fresh: known < TURN && angle > known + 1e-9 };
  }

  function clocks({ faces }, key, t) {
    for (const { pair, trained: green, reach, hand: line, name, says, item } of faces) {
      const { angle, known, fresh } = hand(key, pair, t);
      green.setAttribute("d", arc(0, Math.min(known, TURN)));
      reach.setAttribute("d", fresh ? arc(known, Math.min(angle, TURN)) : "");
      line.setAttribute("transform", `rotate(${((angle * 180) / Math.PI % 360).toFixed(2)} 50 50)`);
      item.className = fresh ? "past" : "";
      name.textContent = words.pair(Math.round(TURN / rotations[key].inv_freq[pair]));
      says.textContent = fresh ? words.fresh_angle : words.known_angle;
    }
  }

  // A text grows to `count` tokens from `from` on, and its newest token is followed.
  function grow(text, which, from, count) {
    if (text.of !== written || text.childElementCount > Math.max(0, count - from)) text.replaceChildren();
    text.of = written;
    const follows = text.scrollTop + text.clientHeight > text.scrollHeight - 40;
    for (let at = from + text.childElementCount; at < count; at++) {
      const share = Math.min(1, (written.surprise[which][at] - LEAST) / (MOST - LEAST)), span = element("span", {}, written.text[which][at]);
      span.dataset.at = at;
      if (share > 0) span.style.background = `color-mix(in srgb, var(--past) ${Math.round(20 + 30 * share)}%, transparent)`;
      text.append(span);
    }
    if (follows) text.scrollTop = text.scrollHeight;
  }

  function show() {
    if (written.tokens[0].length && posenc.spelling) written.text = written.tokens.map(posenc.spelling.spelled);
    const writing = written !== recorded && !written.done, all = written.text[0].length, count = Math.min(all, Math.floor(played)), visible = still && writing ? 0 : count;
    grow(find(".beginning"), 0, 0, Math.min(visible, trained));
    columns.forEach((column, which) => {
      grow(column.text, which, trained, visible);
      const surprise = written.surprise[which].slice(0, count), smooth = surprise.map((_, at) => mean(surprise.slice(Math.max(1, at - SMOOTH + 1), at + 1).concat(at ? [] : [0])));
      column.line.setAttribute("points", smooth.map((one, at) => `${at},${(70 - (68 * Math.min(one, MOST)) / MOST).toFixed(1)}`).join(" "));
      if (count) clocks(column, which ? keyOf(written.method, written.factor) : "none", count - 1);
    });
    const past = count >= trained + SMOOTH, after = which => mean(written.surprise[which].slice(trained, count));
    find(".finding").textContent = past ? words.finding(trained, headings()[1], mean(written.surprise[0].slice(1, trained)), after(0), after(1)) : "";
    find("[data-do=stop]").hidden = !writing;
    find("[data-do=replay]").hidden = still || written !== recorded;
    if (written === recorded) say(given.sources.length ? words.recorded(recorded.seed) : words.missing);
    else if (written.rate) say(words.writing(all, length, written.rate, written.kind) + (written.rate < 4 ? words.slow(written.rate) : ""));
  }

  // The recorded story, as if it were written now.
  function replay() {
    last = performance.now();
    const next = now => {
      if (written !== recorded || played >= length) return;
      played += ((now - last) / 1000) * (played < trained ? QUICK : SLOW);
      last = now;
      show();
      requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
  }

  // ------------------------------------------------------------------ the second scene

  function questions() {
    const { name } = state, shown = given.shown[name];
    find(".question").textContent = words.question(name, given.asked);
    find(".prompt").replaceChildren(...shown.split("…").flatMap((part, index) => (index ? [element("em", {}, ` ${words.unread(given.asked)} `), part] : part.split(new RegExp(`(${name})`, "u")).map(text => (text === name ? element("b", {}, text) : text)))));
    const current = asked && asked.name === name ? asked : null;
    find(".answers").replaceChildren(...(current ? current.names.filter(key => current.shares[key]) : []).map(key => {
      const shares = current.shares[key], total = shares.reduce((sum, one) => sum + one, 0);
      const order = given.names.map((one, index) => [one, shares[index] / total]).sort((a, b) => b[1] - a[1]), right = order[0][0] === name;
      const bars = order.slice(0, 4).map(([one, share]) => {
        const bar = element("i");
        bar.style.width = `${100 * share}%`;
        return element("li", {}, element("span", {}, one), bar, element("span", {}, `${Math.round(100 * share)} %`));
      });
      return element("section", {}, element("h2", {}, title(key)), element("p", { className: `big ${right ? "yes" : "no"}` }, `${order[0][0]}: ${right ? words.right : words.wrong}`), element("p", { className: "see" }, words.ofTen), element("ol", {}, ...bars));
    }));
    const rows = Object.entries(recorded.asked || {}), table = find(".measured");
    table.hidden = !rows.length;
    table.replaceChildren(
      element("caption", {}, words.table(given.names.length, given.asked)),
      element("thead", {}, element("tr", {}, ...words.columns.map(text => element("th", { scope: "col" }, text)))),
      element("tbody", {}, ...rows.map(([key, { right, probability }]) => element("tr", {}, element("th", { scope: "row" }, title(key)), element("td", {}, String(right)), element("td", {}, `${(100 * probability).toFixed(1)} %`)))),
    );
  }

  // ------------------------------------------------------------------ at first

  state = read(location.hash.slice(1));
  find(".live").hidden = false;
  controls();
  if (!still) replay();
  window.addEventListener("hashchange", () => {
    state = read(location.hash.slice(1));
    controls();
  });

  return { hand, ready, steps: () => steps, written: () => written, asked: () => asked, state: () => state };
})();
