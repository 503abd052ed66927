"use strict";
// Rotation as clock hands: a face per pair of channels, with the key's hand and the query's at their positions, the angle
// between them, and around them the angles that training had; under an extension method, as trained and extended side by side.
posenc.clocks = (() => {
  const { say, t } = posenc.language, { number } = posenc.draw, { element } = posenc.plot;
  const FACES = 10, FEW = 4, TURN = 2 * Math.PI;
  const degrees = angle => (angle * 180) / Math.PI;
  const around = angle => ((angle % TURN) + TURN) % TURN;

  // An angle with its sign; of more than half a turn, as turns and the rest.
  function shown(angle) {
    const size = Math.round(degrees(Math.abs(angle)) * 10) / 10, turns = Math.floor(size / 360), sign = angle < 0 ? "−" : "";
    if (turns > 0) return say(`{0}{1} turn${turns === 1 ? "" : "s"} {2} {3}°`, sign, turns, sign || "+", Math.round(size - 360 * turns));
    return `${sign}${size < 1 ? Number(degrees(Math.abs(angle)).toPrecision(1)) : size}°`;
  }

  // The hands of every pair for the chosen query and key, in radians, or null where nothing turns: {query, key: positions, seen: the
  // relative position, hidden, pairs: [{wavelength, query, key, between, trained, reach: the angles from the key's hand (of a code: from
  // 0) that training had, and that the length shown has, known: training had it, goesPast: the length
  // shown has angles that training had not}], plain: the same as trained, under a method}.
  function angles(state, m) {
    if (!m.waves || state.tokens.length < 2) return null;
    const query = state.at[state.token - 1], key = state.at[state.key - 1], seen = m.seenAt(query, key), hidden = Number.isNaN(seen);
    const [at, from] = m.map ? [seen, 0] : [query, key];  // a map replaces the distance, whatever the positions are
    const farthest = (top, distance) => (m.rotates ? Math.max(top, Math.abs(hidden ? 0 : distance)) : Math.max(m.n - 1, query, key));
    const fresh = (turned, c, away) => posenc.model.newAngle({ turned, plain: m.plain, state }, c, away);
    const hands = (turned, at, from, top) => Array.from(turned.invFreq, (theta, c) => ({
      wavelength: TURN / theta, query: theta * at, key: theta * from, between: theta * (at - from),
      trained: m.plain.invFreq[c] * (state.trained - 1), reach: theta * farthest(top, at - from),
      known: hidden || !fresh(turned, c, Math.abs(m.rotates ? at - from : Math.max(query, key))), goesPast: fresh(turned, c, farthest(top, at - from)),
    }));
    return { query, key, seen, hidden, pairs: hands(m.turned, at, from, m.rotates ? m.seen.top : 0), plain: m.changed ? hands(m.plain, query, key, m.n - 1) : null };
  }

  // The pairs that have a face: all, or so many from the fastest to the slowest.
  function chosen(count, most) {
    if (count <= most) return Array.from({ length: count }, (_, c) => c);
    return Array.from({ length: most }, (_, k) => Math.round((k * (count - 1)) / (most - 1)));
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
      key: svg("line", { class: "key", x1: 50, y1: 50 }), query: svg("line", { class: "query", x1: 50, y1: 50 }),
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
    const rest = pair.between % TURN;
    const set = (part, angle, length) => {
      const [x, y] = tip(angle, length);
      part.setAttribute("x2", x.toFixed(2));
      part.setAttribute("y2", y.toFixed(2));
    };
    parts.trained.setAttribute("d", arc(from, from + side * pair.trained, 44));
    parts.reach.setAttribute("d", !pair.goesPast ? "" : arc(from + side * pair.trained, from + side * Math.min(pair.reach, TURN), 44));
    parts.between.setAttribute("d", hidden || Math.abs(rest) < 1e-6 ? "" : `${arc(pair.key, pair.key + rest, 24)}L50 50Z`);
    parts.query.style.display = parts.key.style.display = hidden ? "none" : "";
    if (!hidden) {
      set(parts.key, pair.key, 25);
      set(parts.query, pair.query, 36);
    }
    item.className = pair.known ? "" : "past";
    name.textContent = t`pair ${c}`;
    says.textContent = hidden ? t`hidden` : `${shown(pair.between)}${pair.known ? "" : t`, new`}`;
  }

  // The dot product of two vectors of ones as what it is made of: a bar for the cosine of each pair's angle.
  function cosines(sum, pairs, which) {
    const values = pairs.map(pair => Math.cos(pair.between)), total = values.reduce((a, b) => a + b, 0), wide = 100 / values.length;
    const bars = values.map((value, c) => svg("rect", {
      x: (c * wide + wide * 0.1).toFixed(2), width: (wide * 0.8).toFixed(2), y: (12 - 11 * Math.max(value, 0)).toFixed(2), height: (11 * Math.abs(value)).toFixed(2), class: which.includes(c) ? "drawn" : "",
    }));
    const drawing = svg("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" });
    drawing.append(...bars, svg("line", { x1: 0, x2: 100, y1: 12, y2: 12 }));
    sum.replaceChildren(drawing, element("p", { className: "hint" }, t`Of equal vectors, q · k is the sum of the cosines of these angles, over all ${pairs.length} pairs: ${number(Number(total.toFixed(2)))}, and ${pairs.length} at distance 0.`));
  }

  // ------------------------------------------------------------------ the panel

  function made(root, change) {
    const find = selector => root.querySelector(selector), select = find("select"), details = find("details");
    const sides = [...root.querySelectorAll(".side")].map(place => ({ place, faces: [] }));
    let latest = null, words = "";
    select.addEventListener("change", () => change({ key: Number(select.value) }));
    details.addEventListener("toggle", () => table());

    function show(state, model, colours) {
      const found = angles(state, model);
      latest = found && { found, model, state };
      root.hidden = !found;
      if (!found) return;
      keys(state);
      const which = chosen(found.pairs.length, found.plain || state.step || state.view === "line" ? FEW : FACES), adds = model.rotates && state.encoding !== "xpos" && !found.hidden;
      root.classList.toggle("two", Boolean(found.plain));
      root.classList.toggle("few", which.length <= FEW);
      [found.plain, found.pairs].forEach((pairs, at) => {
        const side = sides[at], title = side.place.querySelector("h5"), sum = side.place.querySelector(".sum");
        side.place.hidden = !pairs;
        if (!pairs) return;
        if (side.faces.length !== which.length) {
          side.faces = which.map(face);
          side.place.querySelector(".faces").replaceChildren(...side.faces.map(({ item }) => item));
        }
        title.hidden = !found.plain;
        title.textContent = at ? t`With ${state.method}` : t`As trained`;
        const seen = at ? found : { ...found, seen: found.query - found.key };
        which.forEach((c, k) => draw(side.faces[k], pairs[c], c, seen, model.rotates));
        sum.hidden = !adds;
        if (adds) cosines(sum, pairs, which);
      });
      find(".see").textContent = sentence(found, state, model);
      find(".legend").replaceChildren(...legend(colours).map(posenc.plot.legend));
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
        caption: t`In degrees; a turn is 360. The angle between the hands has a sign and counts turns`,
        head: [t`pair`, t`wavelength`, t`key’s hand`, t`query’s hand`, t`between`, model.rotates ? t`in training` : t`both in training`],
        rows: pairs.map((pair, c) => [String(c), pair.wavelength, cell(pair.key), cell(pair.query), hidden ? NaN : degrees(pair.between), hidden ? "hidden" : pair.known ? "yes" : "no"]),
      });
    }

    return { show };
  }

  function sentence({ pairs, query, key, seen, hidden }, state, model) {
    const per = angle => `${number(degrees(angle))}°`, first = model.turned.invFreq[0], last = model.turned.invFreq.at(-1);
    const lead = t`Each pair of channels is a hand that turns with the position, clockwise from twelve: pair 0 by ${per(first)} a position, pair ${pairs.length - 1} by ${per(last)}.`;
    if (hidden) return t`${lead} The key at ${key} is hidden from the query at ${query}.`;
    const fresh = pairs.filter(pair => !pair.known).length;
    const where = model.map ? t`the score sees the query at ${number(seen)} and the key at 0` : t`the query stands at position ${query}, the key at ${key}`;
    const what = model.rotates ? t`angle between the hands` : t`angle of a hand`;
    if (fresh === 0) return t`${lead} Here ${where}, and training on ${state.trained} positions had the ${what} in every pair.`;
    return t`${lead} Here ${where}, and in ${fresh} of ${pairs.length} pairs the ${what} is one that training on ${state.trained} positions did not have.`;
  }

  function legend(colours) {
    return [
      { stroke: colours.accent, text: t`query` }, { stroke: colours.palette[3], text: t`key` },
      { stroke: colours.palette[2], text: t`angles of training` }, { stroke: colours.past, text: t`never trained, at the length shown` },
    ];
  }

  return { made, angles, shown };
})();
