"use strict";
// The controls: one for each field of the state, and one for each option that the chosen encoding or method has.
posenc.controls = (() => {
  const { sentence, t } = posenc.language, { FIELDS } = posenc.state, { element } = posenc.plot;
  const CURVES = { "geometric:1": t`base⁻ᵗ, as usual`, "power:1": "t", "power:0.5": "√t", "power:2": "t²", power: t`t to another power` };
  const PLACES = { ".controls .fields": ["encoding", "dim", "heads", "head", "length", "trained", "curve", "exponent", "base", "method", "factor"], ".own .fields": ["tokens", "line", "bidirectional", "position_only"] };

  // change(part of a state, done): done is false while a slider is still moving.
  function made(root, change) {
    let shape = "";

    const controls = {};
    for (const [place, names] of Object.entries(PLACES)) {
      const fields = root.querySelector(place);
      for (const name of names) fields.append((controls[name] = field(name, FIELDS[name])));
    }
    const more = element("details", { className: "more" }, element("summary", {}, t`Options of this encoding`));
    const extra = { encoding: element("div", { className: "fields" }), method: element("div", { className: "fields wide" }) };
    more.append(extra.encoding);
    controls.factor.after(extra.method);
    root.querySelector(".controls > .fields").append(more);

    function field(name, data) {
      const id = `explorer-${name}`, wrap = element("div", { className: `field ${["encoding", "method", "tokens", "curve"].includes(name) ? "wide" : ""}` });
      wrap.dataset.field = name;
      wrap.append(...titled(id, data.label, data.meaning));
      if (name === "encoding" || name === "method") wrap.append(select(id, name === "encoding" ? encodings() : methods(), value => change({ [name]: starting(name, value) }, true)));
      else if (name === "curve") wrap.append(select(id, Object.entries(CURVES), value => change(ofCurve(value), true)));
      else if (data.kind === "boolean") wrap.append(checkbox(id, value => change({ [name]: value }, true)));
      else if (data.kind === "text") wrap.append(text(id, value => change({ [name]: value, at: "" }, true)));
      else wrap.append(numeric(id, data, (value, done) => change({ [name]: value }, done)));
      wrap.append(element("p", { className: "hint", hidden: true }));
      return wrap;
    }


    function ofCurve(value) {
      const [curve, exponent] = value.split(":");
      return { curve, ...(exponent ? { exponent: Number(exponent) } : { exponent: 3 }) };
    }

    function starting(of, name) {  // T5's learned numbers say more than its buckets; maps and windows start for 512 trained positions
      if (name === "t5") return "t5:shows=trained";
      const trained = root.explorerState().trained, parts = [name];
      if (!posenc.maps.MAPS[name] && !posenc.maps.VISIBLE[name]) return name;
      for (const [option, data] of Object.entries(posenc.state.options(of, name))) {
        if (data.kind !== "integer" || data.default <= 16) continue;
        parts.push(`${option}=${Math.max(1, Math.min(data.max, Math.round((data.default * trained) / 512)))}`);
      }
      return parts.join(":");
    }

    function show(state) {
      const encoding = posenc.state.entry(state), bias = state.encoding in posenc.biases.BIASES;
      const key = JSON.stringify([state.encoding, state.method]);
      if (key !== shape) {
        for (const of of ["encoding", "method"]) {
          const own = Object.entries(posenc.state.options(of, state[of]));
          extra[of].replaceChildren(...own.map(([name, data]) => option(of, name, data)));
          (of === "encoding" ? more : extra[of]).hidden = own.length === 0;
        }
        shape = key;
      }
      for (const [name, wrap] of Object.entries(controls)) {
        limit(wrap, posenc.state.range(name, state));
        const value = name === "curve" ? curveOf(state, controls.curve) : name === "tokens" ? state.tokens.join(" ") : state[name];
        set(wrap, value);
      }
      for (const of of ["encoding", "method"]) {
        for (const wrap of extra[of].children) {
          set(wrap, state[`${of}Options`][wrap.dataset.option]);
          wrap.hidden = of === "encoding" && (encoding.fixed || []).includes(wrap.dataset.option);
        }
      }
      const model = posenc.model.of(state), uses = name => Object.keys((posenc.state.method(state.method) || {}).options || {}).includes(name);
      const codes = model.kind === "position", free = name => new Set(posenc.state.range(name, state)).size > 1;
      for (const [name, shown] of Object.entries({
        dim: codes && free("dim"), trained: free("trained"), heads: bias && !encoding.bucketed && free("heads"), head: bias && !encoding.bucketed && state.heads > 1, curve: model.waves, exponent: model.waves && state.curve === "power",
        bidirectional: !model.mapped && !encoding.causal, base: (model.waves && state.curve === "geometric") || "base" in (encoding.options || {}), factor: uses("factor"),
      })) controls[name].hidden = !shown;
      stepping = state.step > 0;
      mark();
      hint(controls.method, model.refused || (state.method === "none" ? "" : posenc.state.method(state.method).summary));
      hint(controls.encoding, encoding.summary);
      controls.base.querySelector("label").textContent = model.rotates ? t`Base (rope_theta)` : t`Base`;
      controls.dim.querySelector("label").textContent = model.rotates ? t`Channels (head_dim)` : t`Channels (dim)`;
    }

    function limit(wrap, [least, most]) {
      for (const input of wrap.querySelectorAll("input[type=range], input[type=number]")) {
        const as = input.dataset.log ? Math.log2 : Number;
        Object.assign(input, { min: as(least), max: as(most) });
      }
    }

    function hint(wrap, words) {
      const place = wrap.querySelector(".hint:not(.meaning)");
      place.hidden = !words;
      place.textContent = words ? sentence(words) : "";
    }

    function curveOf(state, wrap) {
      const value = `${state.curve}:${state.exponent}`, known = [...wrap.querySelectorAll("option")].map(o => o.value);
      return state.curve === "geometric" ? "geometric:1" : known.includes(value) ? value : "power";
    }

    function option(of, name, data) {
      const id = `explorer-${of}-${name}`, wrap = element("div", { className: "field" });
      wrap.dataset.option = name;
      const put = (value, done = true) => change({ [of]: { [name]: value } }, done);
      wrap.append(...titled(id, name.replaceAll("_", " "), data.meaning));
      if (data.kind === "boolean") {
        wrap.append(checkbox(id, put));
      } else if (data.kind === "choice") wrap.append(select(id, data.choices.map(c => [c, c]), put));
      else if (data.kind === "schedule") wrap.append(select(id, applicable(), value => put(value || null)));
      else wrap.append(numeric(id, { ...data, log: data.max / Math.max(data.min, 1) > 100 && data.min > 0 }, put));
      return wrap;
    }

    // On a narrow screen the form is a bar at the bottom with the field that was used last, and opens to all of them.
    const form = root.querySelector(".controls"), opener = root.querySelector("[data-do=settings]");
    let current = "encoding", stepping = false;

    function open(wanted = !form.classList.contains("open")) {
      form.classList.toggle("open", wanted);
      opener.setAttribute("aria-expanded", wanted);
      opener.textContent = wanted ? t`Close` : t`Settings`;
    }
    form.addEventListener("keydown", event => {
      if (event.key !== "Escape" || !form.classList.contains("open")) return;
      open(false);
      opener.focus();
    });
    for (const [seen, wanted] of Object.entries({ pointerdown: true, pointerup: false, pointercancel: false })) {
      form.addEventListener(seen, event => {
        if (!wanted || event.target.type === "range") sliding(wanted ? event.target.closest(".field") : null);
      });
    }

    function sliding(moved) {  // an open form lets the picture behind it be seen while a slider moves
      form.classList.toggle("sliding", Boolean(moved));
      for (const wrap of form.querySelectorAll(".field")) wrap.classList.toggle("moved", wrap === moved);
    }

    function touched(part) {
      const names = Object.entries(part).flatMap(([name, value]) => (value && typeof value === "object" ? Object.keys(value) : [name]));
      const known = names.filter(name => form.querySelector(`.fields > [data-field="${name}"], .fields .wide > [data-option="${name}"]`));
      if (known.length) current = known[0];
      else if (names.includes("at")) current = "at";
    }

    function mark() {
      for (const wrap of form.querySelectorAll(".field")) wrap.classList.toggle("current", [wrap.dataset.field, wrap.dataset.option].includes(shownNow()));
    }

    function shownNow() {
      const wrap = form.querySelector(`[data-field="${current}"], [data-option="${current}"]`);
      return (wrap && !wrap.hidden) || (current === "at" && stepping) ? current : "encoding";  // a step that asks to drag needs no field
    }

    // The field that the play button moves: the one used last, if it is a number of the page and is shown.
    function played() {
      const data = FIELDS[current];
      return data && data.kind !== "text" && data.kind !== "choice" && shownNow() === current ? current : "at";
    }

    return { show, open, touched, played };
  }

  function titled(id, label, meaning) {  // a label, and what it means behind a button, since a finger finds no tooltip
    const name = element("label", { htmlFor: id }, label);
    if (!meaning) return [name];
    const explanation = element("p", { className: "hint meaning", id: `${id}-meaning`, hidden: true }, sentence(meaning));
    const ask = element("button", { type: "button", className: "help", ariaLabel: t`What is ${label}?`, ariaExpanded: "false" }, "?");
    ask.setAttribute("aria-controls", explanation.id);
    ask.addEventListener("click", () => {
      explanation.hidden = !explanation.hidden;
      ask.ariaExpanded = String(!explanation.hidden);
    });
    return [element("div", { className: "label" }, name, ask), explanation];
  }

  function set(wrap, value) {
    for (const input of wrap.querySelectorAll("input, select")) {
      if (input.type === "checkbox") input.checked = value;
      else if (input.type === "range") {
        input.value = input.dataset.log ? Math.log2(value) : (value ?? input.min);
        input.setAttribute("aria-valuetext", value ?? t`by itself`);
      }
      else if (input !== document.activeElement || input.tagName === "SELECT" || Number(input.value) !== value) input.value = value ?? "";
      input.removeAttribute("aria-invalid");
    }
  }

  function select(id, options, put) {
    const found = element("select", { id });
    for (const [value, label] of options) {
      if (Array.isArray(label)) found.append(element("optgroup", { label: value }, ...label.map(([v, l]) => element("option", { value: v }, l))));
      else found.append(element("option", { value }, label));
    }
    found.addEventListener("change", () => put(found.value));
    return found;
  }

  function checkbox(id, put) {
    const found = element("input", { type: "checkbox", id });
    found.addEventListener("change", () => put(found.checked));
    return found;
  }

  function text(id, put) {
    const found = element("input", { type: "text", id, maxLength: 320, spellcheck: false });
    found.addEventListener("input", () => put(found.value));
    return found;
  }

  function numeric(id, data, put) {
    const step = data.step || (data.kind === "integer" ? 1 : "any"), free = data.default === null;
    const box = element("input", { type: "number", id, min: data.min, max: data.max, step: data.kind === "integer" ? step : "any", placeholder: free ? t`by itself` : "" });
    const take = done => {
      const value = box.value === "" ? (free && !box.validity.badInput ? null : undefined) : posenc.state.checked(data, box.value);
      if (value === undefined) box.setAttribute("aria-invalid", true);
      else put(value, done);
    };
    box.addEventListener("input", () => take(true));
    if (free) return element("div", { className: "both" }, box);
    const slide = element("input", { type: "range", min: data.log ? Math.log2(data.min) : data.min, max: data.log ? Math.log2(data.max) : data.max });
    slide.step = data.log ? "any" : typeof step === "number" ? step : (data.max - data.min) / 200;
    slide.setAttribute("aria-label", t`${data.label || id.split("-").pop().replaceAll("_", " ")}, slider`);
    if (data.log) slide.dataset.log = "yes";
    const moved = done => {
      const raw = data.log ? 2 ** Number(slide.value) : Number(slide.value);
      put(posenc.state.checked(data, rounded(raw, data)) ?? data.default, done);
    };
    slide.addEventListener("input", () => moved(false));
    slide.addEventListener("change", () => moved(true));
    slide.addEventListener("keydown", event => {  // a step of a log slider is a quarter of a doubling
      const way = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -4, PageUp: 4 }[event.key];
      if (!data.log || !way) return;
      event.preventDefault();
      const now = Number(box.value), next = rounded(2 ** (Number(slide.value) + way / 4), data);
      slide.value = Math.log2(next === now ? rounded(now + Math.sign(way) * (data.step || 1), data) : next);
      moved(true);
    });
    return element("div", { className: "both" }, slide, box);
  }

  function rounded(value, { kind, min, max, step, log }) {
    if (kind === "integer") return Math.max(min, Math.min(max, Math.round(value / (step || 1)) * (step || 1)));
    return Math.max(min, Math.min(max, log ? Number(value.toPrecision(3)) : Number(value.toFixed(4))));
  }

  function encodings() {
    const name = key => [key, posenc.settings.names[key]];
    return Object.entries(posenc.settings.encodings).map(([group, keys]) => [group, keys.map(name)]);
  }

  function methods() {
    const named = registry => Object.keys(registry).filter(name => name !== "default").map(name => [name, name]);
    return [["none", t`none`], [t`Frequency schedules`, named(posenc.frequencies.SCHEDULES)], [t`Position maps`, named(posenc.maps.MAPS)]];
  }

  function applicable() {  // schedules that others can be applied to
    const fits = Object.entries(posenc.frequencies.SCHEDULES).filter(([, s]) => !s.options.of && !s.options.new_base);
    return [["", t`plain RoPE`], ...fits.filter(([name]) => name !== "default").map(([name]) => [name, name])];
  }

  return { made };
})();
