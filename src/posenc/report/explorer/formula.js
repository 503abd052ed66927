"use strict";
// The formulas of what is chosen, which the library writes in LaTeX, as MathML, with their letters linked to the views and the
// controls: pointing at one shows the others.
posenc.formula = (() => {
  const { t } = posenc.language;
  const { element } = posenc.plot;
  const LETTERS = { alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ϵ", zeta: "ζ", theta: "θ", mu: "μ", pi: "π", rho: "ρ", sigma: "σ", tau: "τ", varphi: "φ", psi: "ψ", omega: "ω", Delta: "Δ", ell: "ℓ" };
  const SIGNS = { cdot: "·", le: "≤", ge: "≥", odot: "⊙", lfloor: "⌊", rfloor: "⌋", lceil: "⌈", rceil: "⌉", bmod: "mod", sum: "∑", prod: "∏", infty: "∞", in: "∈", times: "×", top: "⊤", lVert: "‖", rVert: "‖", dots: "…", ldots: "…" };
  const NAMES = ["sin", "cos", "ln", "min", "max", "sinh", "tanh", "log"], SPACES = { quad: 1, ",": 0.17, ";": 0.28, " ": 0.3 };

  const ACCENTS = { bar: "¯", hat: "ˆ" }, BOARD = { R: "ℝ" };

  // What a letter stands for and where it is: fields of the state, options of what is chosen, and views.
  const SYMBOLS = {
    "\\theta_c": { says: t`speed of pair c: radians per position`, fields: ["base", "curve", "exponent", "method"], views: ["waves", "codes"] },
    "c": { says: t`a pair of channels`, fields: ["dim"], views: ["waves", "codes"] },
    "i": { says: t`the query’s position`, fields: [], views: ["line", "products", "relative"] },
    "j": { says: t`the key’s position`, fields: [], views: ["line", "products", "relative"] },
    "b": { says: t`base of the speeds`, fields: ["base"], views: ["waves"] },
    "d": { says: "channels", fields: ["dim"], views: ["codes"] },
    "p": { says: t`the code of a position`, fields: [], views: ["codes"] },
    "R": { says: t`turns every pair by position times speed`, fields: [], views: ["codes"] },
    "q": { says: t`a query`, fields: [], views: ["products"] },
    "k": { says: t`a key`, fields: [], views: ["products"] },
    "s_{ij}": { says: t`the score of a query and a key`, fields: [], views: ["products", "bias"] },
    "m_h": { says: t`slope of head h`, fields: ["heads", "head"], views: ["bias"] },
    "h": { says: t`a head`, fields: ["head"], views: ["bias"] },
    "H": { says: t`the number of heads`, fields: ["heads"], views: ["bias"] },
    "s": { says: t`the factor`, fields: ["factor"], views: ["waves", "relative"] },
    "L": { says: t`the training length`, fields: ["trained"], views: ["waves", "relative", "decay"] },
    "N": { says: t`the length`, fields: ["length"], views: ["relative", "products"] },
    "r": { says: t`distance of the pair, i − j`, fields: [], views: ["relative", "decay"] },
    "r'": { says: t`the distance that the score sees`, fields: [], views: ["relative"] },
    "\\beta_f": { says: t`turns in training from which a pair stays as it was`, fields: ["beta_fast", "high_freq_factor"], views: ["waves"] },
    "\\beta_s": { says: t`turns in training below which a pair is slowed by the factor`, fields: ["beta_slow", "low_freq_factor"], views: ["waves"] },
    "t_c": { says: t`how far pair c is on the ramp from 0, as before, to 1, slowed`, fields: ["beta_fast", "beta_slow"], views: ["waves"] },
    "A": { says: t`factor of the queries’ and keys’ size`, fields: ["mscale", "attention_factor"], views: ["decay"] },
    "w": { says: t`the window`, fields: ["window"], views: ["relative"] },
    "G": { says: t`tokens of a group`, fields: ["group", "groups"], views: ["relative"] },
    "f": { says: t`share of the pairs that turn`, fields: ["fraction"], views: ["waves"] },
    "D": { says: t`the distance from which all share a bucket`, fields: ["max_distance"], views: ["bias"] },
    "B": { says: t`a learned number per head and bucket`, fields: [], views: ["bias"] },
    "\\zeta": { says: t`how a pair fades with the distance`, fields: ["gamma", "scale_base"], views: ["decay"] },
    "p_h": { says: t`the learned shape of head h`, fields: ["heads", "head"], views: ["bias"] },
    "a_h": { says: t`the learned steepness of head h`, fields: ["heads", "head"], views: ["bias"] },
  };
  // Letters that stand for something else in one formula.
  const PLACE = { i: { says: t`the position`, fields: [], views: ["line", "codes"] } };
  const OWN = {
    sinusoidal: PLACE,
    learned: { ...PLACE, P: { says: t`the table, a learned row for each position`, fields: [], views: ["codes"] }, L: { says: t`its rows, as many as positions in training`, fields: ["length"], views: ["codes"] } },
    learned_rope: { s_c: { says: t`what pair c learned: 0 leaves its speed`, fields: ["log_scale"], views: ["waves"] } },
    fire: { c: { says: t`learned: how much near distances count`, fields: [], views: ["bias"] }, "L'": { says: t`the learned position up to which all queries share a curve`, fields: [], views: ["bias", "products"] }, f_h: { says: t`the learned function of head h`, fields: ["head"], views: ["bias"] } },
    fox: { f_t: { says: t`the gate of a token, made of its content`, fields: [], views: ["bias"] } },
    sink: { z_h: { says: t`the logit of the sink`, fields: ["logit"], views: ["line"] } },
    softmax_n: { n: { says: t`what is added to the denominator`, fields: ["n"], views: ["line"] } },
    temperature: { "\\beta": { says: t`the factor`, fields: ["beta"], views: ["line"] } },
    step_temperature: { "\\beta": { says: t`how large steps are`, fields: ["beta"], views: ["line"] }, L: { says: t`the length of a step`, fields: ["trained"], views: ["line"] }, n_i: { says: t`training lengths before the query`, fields: [], views: ["line"] } },
    log_n: { n_i: { says: t`keys that the query sees`, fields: [], views: ["line"] }, L: { says: t`keys at which the factor is 1`, fields: ["trained"], views: ["line"] } },
    stick_breaking: { "\\beta_{ij}": { says: t`the share that a key takes of what is left`, fields: [], views: ["line"] }, "p_{ij}": { says: t`its weight`, fields: [], views: ["line"] } },
    window: { b_h: { says: t`tokens before the query that it sees`, fields: ["before"], views: ["relative"] } },
    chunks: { c: { says: t`tokens of a chunk`, fields: ["size"], views: ["relative"] } },
    t5: { m: { says: t`half the buckets of a direction`, fields: ["num_buckets"], views: ["bias"] }, "\\beta": { says: t`the bucket of a distance`, fields: ["num_buckets"], views: ["bias", "products"] } },
    integer: { ...PLACE, w: { says: t`a learned direction`, fields: [], views: ["codes"] } },
    normalized: { ...PLACE, w: { says: t`a learned direction`, fields: [], views: ["codes"] } },
    binary: { ...PLACE, c: { says: t`a channel: a binary digit`, fields: ["dim"], views: ["codes"] } },
    sines: { w: { says: t`learned numbers of head h`, fields: ["heads", "head"], views: ["bias"] } },
    streaming: { n: { says: t`the recent tokens`, fields: ["recent"], views: ["relative"] }, m: { says: t`the first tokens`, fields: ["sinks"], views: ["relative"] } },
    lm_infinite: { m: { says: t`the first tokens`, fields: ["sinks"], views: ["relative"] } },
    dual_chunk: { c: { says: t`the size of a chunk and what is local to it`, fields: ["chunk"], views: ["relative"] }, "\\ell": { says: t`the local part`, fields: ["local"], views: ["relative"] } },
    xpos: { "S": { says: t`positions over which pairs fade`, fields: ["scale_base"], views: ["decay"] }, "\\gamma": { says: t`how little fast pairs fade`, fields: ["gamma"], views: ["decay"] } },
    tapered: { n: { says: t`the slowest pairs, which fade`, fields: ["pairs"], views: ["waves"] } },
    abf: { b_1: { says: t`the new base`, fields: ["new_base"], views: ["waves"] } },
    dynamic: { "\\ell": { says: t`the length of the text`, fields: ["length"], views: ["waves"] } },
    string: { "S": { says: t`the distance from which the shift begins`, fields: ["shift"], views: ["relative"] } },
  };

  const named = name => `<mspace width="0.17em"/><mi mathvariant="normal">${name}</mi><mspace width="0.17em"/>`;
  const escaped = text => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  // LaTeX, as far as the library's formulas use it, as MathML. known: whether a letter, with its index or without, has a meaning.
  function mathml(latex, known = () => false) {
    const tokens = latex.match(/\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|'+|\s+|[^]/g);
    let at = 0;
    const skip = () => { while (/^\s+$/.test(tokens[at] || "")) at += 1; };
    const sign = (text, fence = "false") => `<mo stretchy="${fence}">${escaped(text)}</mo>`;

    function until(end) {
      let found = "";
      for (skip(); at < tokens.length && !end.includes(tokens[at]); skip()) found += scripted();
      at += 1;
      return found;
    }

    function raw() {  // the text of {...}
      let found = "";
      skip();
      for (at += 1; tokens[at] !== "}"; at += 1) found += tokens[at];
      at += 1;
      return found;
    }

    function group() {
      skip();
      if (tokens[at] !== "{") return atom()[0];
      at += 1;
      return `<mrow>${until("}")}</mrow>`;
    }

    function scripted() {  // an atom with its primes, its index and its power; a letter with its meaning
      skip();
      const letter = tokens[at];
      let [base, name] = atom(), below = "", above = "", index = "", prime = "";
      for (; ["_", "^"].includes(tokens[at]) || /^'+$/.test(tokens[at] || ""); ) {
        const which = tokens[at], start = ++at;
        if (which === "_") {
          below = group();
          index = tokens.slice(start, at).join("");
        } else if (which === "^") above += group();
        else {
          prime = "'";
          base = `<mrow>${base}<mo lspace="0" rspace="0">${"′".repeat(which.length)}</mo></mrow>`;
        }
      }
      const full = name && [`${name}_${index}${prime}`, `${name}_${index}`].find(each => index && known(each)), single = name && !full && [`${name}${prime}`, name].find(known);
      const mark = key => ` data-symbol="${escaped(key)}" class="symbol"`;
      if (single) base = base.replace(/^<(\w+)/, `<$1${mark(single)}`);
      const tag = letter === "\\sum" || letter === "\\prod" ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"], own = full ? mark(full) : "";
      if (below && above) return `<${tag[2]}${own}>${base}${inner(below, full)}<mrow>${above}</mrow></${tag[2]}>`;
      if (below) return `<${tag[0]}${own}>${base}${inner(below, full)}</${tag[0]}>`;
      return above ? `<${tag[1]}>${base}<mrow>${above}</mrow></${tag[1]}>` : base;
    }

    const inner = (html, full) => (full ? html.replace(/ data-symbol="[^"]*" class="symbol"/g, "") : html);

    function atom() {  // MathML, and the letter if it is one
      skip();
      const token = tokens[at++];
      const name = token[0] === "\\" ? token.slice(1) : "";
      if (token === "{") return [`<mrow>${until("}")}</mrow>`];
      if (name === "frac") return [`<mfrac>${group()}${group()}</mfrac>`];
      if (name === "sqrt") return [`<msqrt>${group()}</msqrt>`];
      if (ACCENTS[name]) return [`<mover>${group()}${sign(ACCENTS[name])}</mover>`];
      if (name === "mathbb") return [`<mi>${BOARD[raw()]}</mi>`];
      if (name === "text") return [`<mtext>${escaped(raw().replace(/^ | $/g, "\u00a0"))}</mtext>`];
      if (name === "operatorname" || name === "mathrm") return [named(raw())];
      if (name === "left") return [`<mrow>${sign(bracket(), "true")}${until("\\right")}${sign(bracket(), "true")}</mrow>`];
      if (name === "begin") return [cases()];
      if (name in SPACES) return [`<mspace width="${SPACES[name]}em"/>`];
      if (LETTERS[name]) return [`<mi>${LETTERS[name]}</mi>`, token];
      if (SIGNS[name]) return [sign(SIGNS[name])];
      if (NAMES.includes(name)) return [named(name)];
      if (name) throw new TypeError(`${latex}: ${token} is not known here`);
      if (/\d/.test(token)) return [`<mn>${token}</mn>`];
      if (/[a-zA-Z]/.test(token)) return [`<mi>${token}</mi>`, token];
      return [sign(token === "-" ? "−" : token)];
    }

    function bracket() {
      skip();
      const token = tokens[at++];
      return SIGNS[token.slice(1)] || token;
    }

    function cases() {
      raw();
      const rows = [];
      for (let cells = []; ; ) {
        let cell = "";
        for (skip(); !["&", "\\\\", "\\end"].includes(tokens[at]); skip()) cell += scripted();
        cells.push(`<mtd>${cell}</mtd>`);
        const end = tokens[at++];
        if (end === "&") continue;
        rows.push(`<mtr>${cells.join("")}</mtr>`);
        cells = [];
        if (end === "\\end") break;
      }
      raw();
      return `<mrow>${sign("{", "true")}<mtable columnalign="left">${rows.join("")}</mtable></mrow>`;
    }

    return `<math>${until("")}</math>`;
  }

  const parts = latex => latex.split(/,\s*\\quad\s+/);  // equations that stand in one line
  // Formulas share these letters; the others of SYMBOLS have their meaning in formulas that name controls of the page.
  const COMMON = ["i", "j", "q", "k", "h", "s_{ij}", "m_h", "\\theta_c"];
  const short = name => {
    const known = posenc.codes.ENCODINGS[name];
    return ["fire", "learned"].includes(name) || (known && (known.measured || (known.of === "nothing" && name !== "none")));
  };
  const meaning = (name, key) => (OWN[name] && OWN[name][key]) || (!short(name) || COMMON.includes(key) ? SYMBOLS[key] : undefined);

  // docs: where the documentation's pages are, "" where there are none.
  function made(root, docs) {
    const place = root.querySelector(".formula"), lines = element("div", { className: "lines", tabIndex: 0, role: "group", ariaLabel: t`Formula` });
    const letters = element("div", { className: "letters" }), says = element("p", { className: "says", ariaLive: "polite" }), links = element("p", { className: "links" });
    place.append(lines, letters, says, links);
    let shape = "", symbols = {}, pinned = null;

    function show(state) {
      const key = `${state.encoding} ${state.method}`;
      if (key !== shape) {
        shape = key;
        symbols = {};
        pinned = null;
        lines.innerHTML = [state.encoding, ...(state.method === "none" ? [] : [state.method])].flatMap(name => (posenc.formulas[name] || []).flatMap(parts).map(latex => {
          const html = mathml(latex, letter => Boolean(meaning(name, letter)));
          for (const [, letter] of html.matchAll(/data-symbol="([^"]*)"/g)) symbols[letter] ??= meaning(name, letter);
          return html;
        })).join("");
        letters.replaceChildren(...Object.entries(symbols).map(([letter, symbol]) => {
          const chip = element("button", { type: "button", className: "symbol" });
          chip.dataset.symbol = letter;
          chip.setAttribute("aria-pressed", false);
          chip.innerHTML = mathml(letter);
          chip.ariaLabel = t`${chip.textContent}: ${symbol.says}`;
          chip.addEventListener("click", () => pin(pinned === letter ? null : letter));
          return chip;
        }));
        light([], false);
        const pages = docs ? [[`${docs}encodings/${state.encoding}.html`, state.encoding], ...ofMethod(state.method), [`${docs}position_from_scratch.html`, t`Position, from scratch`]] : [];
        links.replaceChildren(...(pages.length ? [t`Read more: `, ...pages.flatMap(([href, text], k) => [k ? " · " : "", element("a", { href }, text)])] : []));
        links.hidden = pages.length === 0;
      }
    }

    function ofMethod(name) {
      if (name === "none") return [];
      return [[`${docs}${posenc.maps.MAPS[name] ? "position_maps" : "frequencies"}.html#${name}`, name]];
    }

    function pin(letter) {
      pinned = letter;
      for (const chip of letters.children) chip.setAttribute("aria-pressed", chip.dataset.symbol === letter);
      light(letter ? [letter] : [], true);
    }

    // The letters that are lit, and, where one is pointed at, what they stand for.
    function light(lit, withPlaces) {
      for (const part of place.querySelectorAll("[data-symbol]")) part.classList.toggle("lit", lit.includes(part.dataset.symbol));
      const wanted = withPlaces ? lit.map(letter => symbols[letter]) : [];
      says.replaceChildren(wanted.length ? `${letters.querySelector(`[data-symbol="${CSS.escape(lit[0])}"]`).ariaLabel}.` : t`Point at a letter or tap it: what it stands for is marked.`);
      for (const part of root.querySelectorAll(".view, .line")) part.classList.toggle("lit", wanted.some(({ views }) => views.includes(part.dataset.view)));
      for (const part of root.querySelectorAll(".field")) part.classList.toggle("lit", wanted.some(({ fields }) => fields.includes(nameOf(part))));
    }

    const nameOf = part => part.dataset.field || part.dataset.option;

    function pointed({ target }) {
      if (!(target instanceof Element)) return;
      const symbol = target.closest(".formula [data-symbol]"), part = target.closest(".view, .field") || target.closest(".line");
      if (symbol) return light([symbol.dataset.symbol], true);
      const of = ([, { views, fields }]) => (part.matches(".field") ? fields.includes(nameOf(part)) : views.includes(part.dataset.view));
      if (part) return light(Object.entries(symbols).filter(of).map(([letter]) => letter), false);
      light(pinned ? [pinned] : [], true);
    }

    for (const seen of ["pointerover", "focusin"]) root.addEventListener(seen, pointed);
    root.addEventListener("pointerleave", () => light(pinned ? [pinned] : [], true));
    return { show };
  }

  return { made, mathml, SYMBOLS, OWN };
})();
