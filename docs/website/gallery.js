// The gallery of encodings: filters with counts, a search, and two of them side by side. What is chosen is in the address:
// #compare=rope,alibi&family=rotary,bias&search=decay. The cards are the page's; without this they are a list.
{
  const box = document.querySelector(".gallery"), words = JSON.parse(box.dataset.words), cards = [...box.querySelectorAll(".cards > li")];
  const { curves, distances } = posencCurves, facets = Object.keys(words.facets), byName = new Map(cards.map(card => [card.dataset.name, card]));
  const state = { search: "", compare: [], ...Object.fromEntries(facets.map(facet => [facet, []])) };
  const COLOURS = ["var(--first)", "var(--second)"], WIDEST = 640, HIGH = 280, LEFT = 56, TOP = 30, LOW = 34;

  function element(tag, given = {}, ...children) {
    const { dataset, ...others } = given, found = Object.assign(document.createElement(tag), others);
    Object.assign(found.dataset, dataset);
    found.append(...children);
    return found;
  }

  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

  // ------------------------------------------------------------------ the address

  function read() {
    const given = new URLSearchParams(location.hash.slice(1)), list = name => (given.get(name) || "").split(",").filter(Boolean);
    for (const facet of facets) state[facet] = list(facet).filter(value => value in words.facets[facet]);
    state.search = given.get("search") || "";
    state.compare = [...new Set(list("compare"))].filter(name => byName.has(name)).slice(0, 2);
  }

  function write() {
    const parts = Object.entries(state).map(([name, value]) => [name, Array.isArray(value) ? value.join(",") : value.trim()]).filter(([, value]) => value);
    const hash = parts.map(([name, value]) => `${name}=${encodeURIComponent(value).replaceAll("%2C", ",")}`).join("&");
    try {
      history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
    } catch {
      // a preview without an address of its own
    }
  }

  // ------------------------------------------------------------------ filters

  const search = element("input", { type: "search", placeholder: words.search, ariaLabel: words.search });
  const groups = element("div"), boxes = new Map(), counts = new Map();
  const folded = element("details", { open: innerWidth > 600 }, element("summary", {}, words.filters), groups);  // a phone shows cards first
  const form = element("form", { className: "filters", autocomplete: "off" }, search, folded);
  for (const facet of facets) {
    const group = element("fieldset", {}, element("legend", {}, words[facet]));
    for (const [value, label] of Object.entries(words.facets[facet])) {
      const check = element("input", { type: "checkbox", name: facet, value }), count = element("span", { className: "count" });
      boxes.set(`${facet} ${value}`, check);
      counts.set(`${facet} ${value}`, count);
      group.append(element("label", {}, check, ` ${label} `, count));
    }
    groups.append(group);
  }
  const clear = element("button", { type: "button" }, words.clear), shown = element("p", { className: "shown", role: "status" });
  const status = element("div", { className: "bar" }, shown, clear), versus = element("section", { className: "versus", tabIndex: -1, hidden: true });
  box.prepend(form, versus, status);
  for (const card of cards) {
    const pick = element("input", { type: "checkbox" }), name = card.dataset.name;
    pick.setAttribute("aria-label", `${words.compare}: ${name}`);
    card.append(element("label", { className: "pick" }, pick, ` ${words.compare}`));
    pick.addEventListener("change", () => {
      state.compare = pick.checked ? [...state.compare, name].slice(-2) : state.compare.filter(one => one !== name);
      changed();
      if (state.compare.length === 2 && pick.checked) versus.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    });
  }

  form.addEventListener("submit", event => event.preventDefault());
  search.addEventListener("input", () => {
    state.search = search.value;
    changed();
  });
  form.addEventListener("change", event => {
    const { name, value, checked } = event.target;
    if (!facets.includes(name)) return;
    state[name] = checked ? [...state[name], value] : state[name].filter(one => one !== value);
    changed();
  });
  clear.addEventListener("click", () => {
    for (const name of Object.keys(state)) state[name] = name === "search" ? "" : [];
    changed();
    search.focus();
  });

  const searched = card => state.search.toLowerCase().split(/\s+/).every(word => card.dataset.words.toLowerCase().includes(word));
  const within = (card, facet) => state[facet].length === 0 || state[facet].includes(card.dataset[facet]);

  function show() {
    if (search.value !== state.search) search.value = state.search;
    const found = cards.filter(searched);
    for (const card of cards) card.hidden = !(found.includes(card) && facets.every(facet => within(card, facet)));
    for (const facet of facets) {
      const others = found.filter(card => facets.every(other => other === facet || within(card, other)));
      for (const value of Object.keys(words.facets[facet])) {
        const count = others.filter(card => card.dataset[facet] === value).length, check = boxes.get(`${facet} ${value}`);
        counts.get(`${facet} ${value}`).textContent = count;
        check.checked = state[facet].includes(value);
        check.closest("label").classList.toggle("empty", count === 0);
      }
    }
    const left = cards.filter(card => !card.hidden).length, chosen = facets.some(facet => state[facet].length) || state.search || state.compare.length;
    const pick = state.compare.length === 1 ? fill(words.second, { name: state.compare[0] }) : state.compare.length ? "" : words.pick;
    shown.textContent = left ? `${fill(words.shown, { shown: left, all: cards.length })} ${pick}` : words.none;
    clear.hidden = !chosen;
    for (const card of cards) {
      const chosen = state.compare.includes(card.dataset.name);
      card.classList.toggle("picked", chosen);
      card.querySelector(".pick input").checked = chosen;
    }
    compare();
  }

  function changed() {
    show();
    write();
  }

  // ------------------------------------------------------------------ two of them

  function compare() {
    versus.hidden = state.compare.length !== 2;
    if (versus.hidden) return;
    const both = state.compare.map(name => byName.get(name)), [one, other] = state.compare;
    const close = element("button", { type: "button" }, words.close), bare = state.compare.filter(name => curves[name].length === 0);
    close.addEventListener("click", () => {
      state.compare = [];
      changed();
    });
    const head = element("tr", {}, element("td"), ...both.map((card, at) => {
      const name = element("th", { scope: "col" }, ...[...card.querySelector(".name").cloneNode(true).childNodes]);
      name.style.setProperty("--own", COLOURS[at]);
      return name;
    }));
    const row = (title, cells) => element("tr", {}, element("th", { scope: "row" }, title), ...cells.map(cell => element("td", {}, cell)));
    const rows = [
      row(words.picture, both.map(card => card.querySelector(".thumb").cloneNode(true))),
      ...facets.map(facet => row(words[facet], both.map(card => words.facets[facet][card.dataset[facet]]))),
      row(words.acts_on, both.map(card => card.dataset.acts)),
      row(words.source, both.map(card => card.dataset.source)),
      row(words.use, both.map(card => card.dataset.use)),
    ];
    const notes = bare.length ? [element("p", {}, fill(words.without, { names: bare.join(", ") }))] : [];
    const drawing = bare.length === 2 ? [] : [element("div", { className: "plot" }, figure(state.compare)), element("p", { className: "note" }, words.figure)];
    const title = fill(words.between, { one, other });
    versus.setAttribute("aria-label", title);
    versus.replaceChildren(element("div", { className: "head" }, element("p", { className: "title" }, title), close), ...drawing, ...notes, element("div", { className: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
  }

  function svg(tag, given, text) {
    const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(given)) found.setAttribute(name, value);
    if (text !== undefined) found.textContent = text;
    return found;
  }

  function ticks(low, high) {
    const rough = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find(m => m * power >= rough) * power, found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(6)));
    return found;
  }

  function figure(names) {
    const WIDE = Math.max(260, Math.min(WIDEST, box.clientWidth - 36)), own = names.map(name => curves[name]), shared = own.flat(), points = shared.flat().filter(value => value !== null);
    const inPatches = line => line.length < 16, at = (line, index) => (inPatches(line) ? index : distances[index]);
    const most = Math.max(...shared.map(line => at(line, line.length - 1))), low = Math.min(0, ...points), high = Math.max(0, ...points, low + 1e-6);
    const x = value => LEFT + (value / most) * (WIDE - LEFT - 12), y = value => TOP + (1 - (value - low) / (high - low)) * (HIGH - TOP - LOW);
    const found = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${names.join(", ")}: ${words.figure}` });
    for (const value of ticks(low, high)) {
      found.append(svg("line", { x1: LEFT, x2: WIDE - 12, y1: y(value), y2: y(value), class: value === 0 ? "zero" : "grid" }));
      found.append(svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, String(value).replace("-", "−")));
    }
    for (const value of ticks(0, most)) found.append(svg("text", { x: x(value), y: HIGH - 8, "text-anchor": "middle" }, value));
    own.forEach((lines, which) => {
      for (const line of lines) {
        const places = line.flatMap((value, index) => (value === null ? [] : [`${x(at(line, index)).toFixed(1)},${y(value).toFixed(1)}`]));
        found.append(svg("polyline", { points: places.join(" "), class: which ? "second" : "first" }));
      }
      if (!lines.length) return;
      const from = LEFT + (which ? (WIDE - LEFT) / 2 : 0), style = which ? "second" : "first";
      found.append(svg("polyline", { points: `${from},14 ${from + 26},14`, class: style }), svg("text", { x: from + 32, y: 18, class: style }, names[which]));
    });
    return found;
  }

  addEventListener("hashchange", () => {
    if (!location.hash || location.hash.includes("=")) {  // others are headings of the page
      read();
      folded.open ||= facets.some(facet => state[facet].length);
      show();
    }
  });
  read();
  folded.open ||= facets.some(facet => state[facet].length);
  show();
  box.classList.add("live");
}
