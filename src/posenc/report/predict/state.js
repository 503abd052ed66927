"use strict";
// What is chosen on the page, its text in the address, "encoding=rope&method=yarn&factor=4&at=300&lang=zh", and what it makes of
// positions. What cannot be shown gives way to the default, with a note that says so; nothing here throws.
posenc.chosen = (() => {
  const { shortened } = posenc.address, { say, t } = posenc.language;
  const given = JSON.parse(document.getElementById("predict-data").textContent);
  const { length: trained, most, texts, models } = given, TYPED = "typed";
  const named = Object.fromEntries(models.map(one => [one.name, { ...one, title: say(one.title) }]));

  const METHODS = {  // of RoPE: what it is called, and with which of the fields
    none: [t`none, as trained`],
    linear: [t`position interpolation`, "factor"],
    ntk: ["NTK-aware", "factor"],
    yarn: ["YaRN", "factor"],
    llama3: [t`Llama 3's`, "factor"],
    dynamic: [t`dynamic NTK`],
    rerope: ["ReRoPE", "window"],
    leaky_rerope: ["Leaky ReRoPE", "window", "factor"],
    self_extend: ["Self-Extend", "window", "group"],
  };
  const FIELDS = {
    encoding: { kind: "choice", label: t`Encoding`, choices: Object.values(named).map(one => [one.name, one.title]), default: models[0].name },
    method: { kind: "choice", label: t`Extension of RoPE`, choices: Object.entries(METHODS).map(([name, [title]]) => [name, title]), default: "none" },
    factor: { kind: "number", label: t`Factor`, min: 1, max: 16, step: 0.1, default: 4 },
    window: { kind: "number", label: t`Window`, min: 2, max: trained, step: 1, default: Math.max(2, trained >> 2) },
    group: { kind: "number", label: t`Group`, min: 1, max: 16, step: 1, default: 4 },
    passage: {
      kind: "choice", label: t`Text`, default: "1",
      choices: [...texts.map((text, at) => [String(at + 1), `${at + 1}: ${excerpt(text)}`]), [TYPED, t`what you type`]],
    },
  };

  const LANGUAGE = { kind: "choice", choices: [["en"], ["zh"]] };  // of the page, see language.js

  function excerpt(text) {
    const words = text.replace(/\s+/gu, " ").trim();
    return words.length > 34 ? `${words.slice(0, 34)}…` : words;
  }

  const wanted = ({ kind, choices, min, max, step }) => (kind === "choice"
    ? t`one of ${choices.map(([name]) => name).join(", ")}` : step === 1 ? t`an integer from ${min} to ${max}` : t`a number from ${min} to ${max}`);

  // The value of a field, or undefined where the text is none.
  function read({ kind, choices, min, max, step }, text) {
    if (kind === "choice") return choices.some(([name]) => name === text) ? text : undefined;
    const value = String(text).trim() === "" ? NaN : Number(text);
    return value >= min && value <= max && (step !== 1 || Number.isInteger(value)) ? value : undefined;
  }

  // A state from anything that looks like one, with notes on what was not taken.
  function clean(asked) {
    const state = {}, notes = [], isNot = (name, field) => notes.push(t`${name}=${shortened(asked[name])} is not ${wanted(field)}`);
    for (const [name, field] of Object.entries(FIELDS)) {
      const value = Object.hasOwn(asked, name) ? read(field, asked[name]) : field.default;
      if (value === undefined) isNot(name, field);
      state[name] = value ?? field.default;
    }
    for (const name of Object.keys(asked)) {
      if (!Object.hasOwn(FIELDS, name) && !["text", "at", "lang"].includes(name)) notes.push(t`there is no “${shortened(name)}”`);
    }
    if (Object.hasOwn(asked, "lang") && read(LANGUAGE, asked.lang) === undefined) isNot("lang", LANGUAGE);
    if (Object.hasOwn(asked, "text")) state.passage = TYPED;
    else if (state.passage === TYPED) state.passage = FIELDS.passage.default;
    const cut = within(state.passage === TYPED ? String(asked.text) : texts[state.passage - 1]);
    if (cut.more) notes.push(t`the page reads ${most} bytes; what follows is left out`);
    state.text = cut.text;
    const last = Math.max(cut.bytes.length, 1), usual = Math.min(last, Math.max(1, Math.floor(2.5 * trained)));
    const at = Object.hasOwn(asked, "at") ? read({ kind: "number", min: 1, max: last, step: 1 }, asked.at) : usual;
    if (at === undefined) notes.push(t`at=${shortened(asked.at)} is not an integer from 1 to ${last}, the bytes of the text`);
    state.at = at ?? usual;
    if (state.encoding !== "rope" && state.method !== "none") {
      notes.push(t`${state.method} extends RoPE, and ${named[state.encoding].title} has no rotation to extend`);
      state.method = "none";
    }
    return { state, notes };
  }

  // A text as bytes, of which the page reads the first ones; no character is cut.
  function within(text) {
    const bytes = new Uint8Array(most), { read: taken, written } = new TextEncoder().encodeInto(text, bytes);
    return { text: text.slice(0, taken), bytes: bytes.slice(0, written), more: taken < text.length };
  }

  const bytes = state => within(state.text).bytes;

  // A state as `clean` takes it, without what is as usual.
  function plain(state) {
    const found = {}, typed = state.passage === TYPED;
    for (const [name, field] of Object.entries(FIELDS)) if (state[name] !== field.default && !(typed && name === "passage")) found[name] = state[name];
    if (typed) found.text = state.text;
    const usual = clean({ ...found }).state.at;
    if (state.at !== usual) found.at = state.at;
    return found;
  }

  // As an address: lang is in it where it is not that of the file.
  const write = (state, lang = posenc.language.name) => Object.entries({ ...plain(state), ...(lang !== posenc.language.usual && { lang }) }).map(([name, value]) => `${name}=${encodeURIComponent(value).replaceAll("%20", "+")}`).join("&");

  function parse(address) {
    const { asked, unreadable } = posenc.address.read(address), found = clean(asked);
    return { state: found.state, notes: [...unreadable.map(part => t`“${part}” is not readable`), ...found.notes] };
  }

  // ------------------------------------------------------------------ what it makes of positions

  // Where a model has the positions of a text of so many bytes, see `posenc.network.reading`.
  function positions(model, state, count) {
    const { name, base, width, dim } = model;
    if (name === "sinusoidal") return { codes: posenc.codes.ENCODINGS.sinusoidal.codes(posenc.codes.range(most), { dim }) };
    if (name !== "rope") return {};
    const map = posenc.maps.MAPS[state.method], schedule = map || state.method === "none" ? undefined : state.method;
    const known = { ...state, original_max_positions: trained, length: count };
    const options = of => Object.fromEntries(Object.keys(of).filter(option => Object.hasOwn(known, option)).map(option => [option, known[option]]));
    const chosen = schedule ? { name: schedule, ...options(dynamicFactor(schedule)) } : { name: "default" };
    return { rotation: posenc.frequencies.create(chosen, width, base), map: map ? map.of(options(map.options)) : null };
  }

  function dynamicFactor(schedule) {  // dynamic NTK takes its factor from the text's length
    const { factor, ...others } = posenc.frequencies.SCHEDULES[schedule].options;
    return METHODS[schedule].includes("factor") ? { factor, ...others } : others;
  }

  // In words: "YaRN at factor 4".
  function method(state) {
    const [title, ...fields] = METHODS[state.method];
    const words = { factor: t`factor ${state.factor}`, window: t`window ${state.window}`, group: t`groups of ${state.group}` };
    return fields.length ? t`${title} at ${fields.map(name => words[name]).join(say(", "))}` : title;
  }

  return { FIELDS, METHODS, TYPED, trained, most, texts, named, clean, plain, write, parse, read, wanted, within, bytes, positions, method };
})();
