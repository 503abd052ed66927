"use strict";
// Rotation as clock hands: a face per pair of channels, with the key's hand and the query's at their positions, the angle
// between them, and around them the angles that training had.
posenc.clocks = (() => {
  const { number } = posenc.draw, { element } = posenc.plot;
  const FACES = 10, TURN = 2 * Math.PI;
  const degrees = angle => (angle * 180) / Math.PI;
  const around = angle => ((angle % TURN) + TURN) % TURN;
  const shown = angle => `${Number(degrees(around(angle)).toFixed(1)) % 360}°`;

  // The hands of every pair for the chosen query and key, in radians, or null where nothing turns: {query, key: positions, seen: the
  // relative position, hidden, pairs: [{wavelength, query, key, between, plain: the query's as trained, trained, reach: the
  // angles from the key's hand (of a code: from 0) that training had, and that the length shown has, known: training had it}]}.
  function angles(state, m) {
    if (!m.waves || state.tokens.length < 2) return null;
    const query = state.at[state.token - 1], key = state.at[state.key - 1], seen = m.seenAt(query, key), hidden = Number.isNaN(seen);
    const [at, from] = m.map ? [seen, 0] : [query, key];  // a map replaces the distance, whatever the positions are
    const farthest = m.rotates ? Math.max(m.seen.top, Math.abs(hidden ? 0 : seen)) : Math.max(m.n - 1, query, key);
    const away = m.rotates ? seen : Math.max(query, key);
    const pairs = Array.from(m.turned.invFreq, (theta, c) => {
      const plain = m.plain.invFreq[c];
      return {
        wavelength: TURN / theta, query: theta * at, key: theta * from, between: theta * (at - from),
        plain: plain * (query - key) === theta * (at - from) ? null : theta * from + plain * (query - key),
        trained: plain * (state.trained - 1), reach: theta * farthest, known: hidden || !posenc.model.newAngle(m, c, Math.abs(away)),
      };
    });
    return { query, key, seen, hidden, pairs };
  }

  // The pairs that have a face: all, or so many from the fastest to the slowest.
  function chosen(count) {
    if (count <= FACES) return Array.from({ length: count }, (_, c) => c);
    return Array.from({ length: FACES }, (_, k) => Math.round((k * (count - 1)) / (FACES - 1)));
  }

  // ------------------------------------------------------------------ a face, in SVG of 100 by 100

  const svg = (name, attributes = {}) => {
    const found = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    return found;
  };
  const tip = (angle, length) => [50 + length * Math.sin(angle), 50 - length * Math.cos(angle)];  // 0 at twelve, clockwise

  function face() {
    const parts = {
      circle: svg("circle", { class: "rim", cx: 50, cy: 50, r: 38 }), between: svg("path", { class: "between" }),
      trained: svg("path", { class: "trained" }), reach: svg("path", { class: "reach" }),
      plain: svg("line", { class: "plain", x1: 50, y1: 50 }), key: svg("line", { class: "key", x1: 50, y1: 50 }), query: svg("line", { class: "query", x1: 50, y1: 50 }),
    };
    const drawing = svg("svg", { viewBox: "0 0 100 100", "aria-hidden": "true" }), name = element("b"), says = element("span");
    drawing.append(...Object.values(parts), svg("circle", { class: "middle", cx: 50, cy: 50, r: 2.5 }));
    const item = element("li", {});
    item.append(drawing, name, says);
    return { item, parts, name, says };
  }

  function arc(from, to, radius) {  // clockwise if to is more than from; a circle from a turn on
    const sweep = Math.max(-TURN, Math.min(TURN, to - from)), steps = [from, from + sweep / 2, from + sweep];
    if (Math.abs(sweep) < 1e-6) return "";
    const [start, ...rest] = steps.map(angle => tip(angle, radius).map(x => x.toFixed(2)).join(" "));
    return `M${start}${rest.map(end => `A${radius} ${radius} 0 0 ${sweep > 0 ? 1 : 0} ${end}`).join("")}`;
  }

  function draw({ item, parts, name, says }, pair, c, { hidden, seen }, rotates) {
    const side = rotates && seen < 0 ? -1 : 1, from = rotates ? pair.key : 0;  // a key after its query: angles the other way
    const full = pair.trained >= TURN, rest = pair.between % TURN;
    const set = (part, angle, length) => {
      const [x, y] = tip(angle, length);
      part.setAttribute("x2", x.toFixed(2));
      part.setAttribute("y2", y.toFixed(2));
    };
    parts.trained.setAttribute("d", arc(from, from + side * pair.trained, 44));
    parts.reach.setAttribute("d", full || pair.reach <= pair.trained ? "" : arc(from + side * pair.trained, from + side * Math.min(pair.reach, TURN), 44));
    parts.between.setAttribute("d", hidden || Math.abs(rest) < 1e-6 ? "" : `${arc(pair.key, pair.key + rest, 24)}L50 50Z`);
    parts.plain.style.display = pair.plain === null || hidden ? "none" : "";
    parts.query.style.display = parts.key.style.display = hidden ? "none" : "";
    if (!hidden) {
      set(parts.key, pair.key, 25);
      set(parts.query, pair.query, 36);
      if (pair.plain !== null) set(parts.plain, pair.plain, 36);
    }
    item.className = pair.known ? "" : "past";
    name.textContent = `pair ${c}`;
    says.textContent = hidden ? "hidden" : `${shown(pair.between)}${pair.known ? "" : ", new"}`;
  }

  // ------------------------------------------------------------------ the panel

  function made(root, change) {
    const find = selector => root.querySelector(selector), select = find("select"), details = find("details");
    let faces = [], latest = null, words = "";
    select.addEventListener("change", () => change({ key: Number(select.value) }));
    details.addEventListener("toggle", () => table());

    function show(state, model, colours) {
      const found = angles(state, model);
      latest = found && { found, model, state };
      root.hidden = !found;
      if (!found) return;
      keys(state);
      const which = chosen(found.pairs.length);
      if (faces.length !== which.length) {
        faces = which.map(face);
        find(".faces").replaceChildren(...faces.map(({ item }) => item));
      }
      which.forEach((c, k) => draw(faces[k], found.pairs[c], c, found, model.rotates));
      find(".see").textContent = sentence(found, state, model);
      find(".legend").replaceChildren(...legend(found, model, colours).map(posenc.plot.legend));
      table();
    }

    function keys(state) {
      const others = state.tokens.map((word, index) => [word, index + 1]).filter(([, index]) => index !== state.token);
      const now = JSON.stringify(others);
      if (now !== words) select.replaceChildren(...others.map(([word, index]) => element("option", { value: index }, `${index}. ${word}`)));
      words = now;
      select.value = state.key;
    }

    function table() {
      if (!latest || !details.open) return;
      const { found: { pairs, hidden }, model } = latest, cell = angle => (hidden ? NaN : degrees(around(angle)));
      posenc.plot.table(find("table"), {
        caption: "In degrees; a turn is 360",
        head: ["pair", "wavelength", "key’s hand", "query’s hand", "between", model.rotates ? "in training" : "both in training"],
        rows: pairs.map((pair, c) => [String(c), pair.wavelength, cell(pair.key), cell(pair.query), cell(pair.between), hidden ? "hidden" : pair.known ? "yes" : "no"]),
      });
    }

    return { show };
  }

  function sentence({ pairs, query, key, seen, hidden }, state, model) {
    const per = angle => `${number(degrees(angle))}°`, first = model.turned.invFreq[0], last = model.turned.invFreq.at(-1);
    const lead = `Each pair of channels is a hand that turns with the position, clockwise from twelve: pair 0 by ${per(first)} a position, pair ${pairs.length - 1} by ${per(last)}.`;
    if (hidden) return `${lead} The key at ${key} is hidden from the query at ${query}.`;
    const fresh = pairs.filter(pair => !pair.known).length;
    const where = model.map ? `the score sees the query at ${number(seen)} and the key at 0` : `the query stands at position ${query}, the key at ${key}`;
    const what = model.rotates ? "angle between the hands" : "angle of a hand";
    if (fresh === 0) return `${lead} Here ${where}, and training on ${state.trained} positions had the ${what} in every pair.`;
    return `${lead} Here ${where}, and in ${fresh} of ${pairs.length} pairs the ${what} is one that training on ${state.trained} positions did not have.`;
  }

  function legend({ pairs }, model, colours) {
    const found = [
      { stroke: colours.accent, text: "query" }, { stroke: colours.palette[3], text: "key" },
      { stroke: colours.palette[2], text: "angles of training" }, { stroke: colours.past, text: "never trained, at the length shown" },
    ];
    return pairs.some(pair => pair.plain !== null) ? [...found, { stroke: colours.soft, dashed: true, text: `the query without ${model.state.method}` }] : found;
  }

  return { made, angles };
})();
