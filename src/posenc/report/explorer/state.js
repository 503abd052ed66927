"use strict";
// What is chosen, and its text in the address: "encoding=rope&method=yarn:beta_fast=16&factor=4". What a text asks for
// that cannot be shown gives way to the default, with a note that says so; nothing here throws.
posenc.state = (() => {
  const { shortened } = posenc.address, { say } = posenc.language;
  const { fields: FIELDS, presets: PRESETS, path: PATH } = posenc.settings;
  for (const [list, keys] of [[PATH, ["title", "says", "ask"]], [PRESETS, ["name", "says"]], [Object.values(FIELDS), ["label", "meaning"]]]) {
    for (const one of list) for (const key of keys) if (one[key]) one[key] = say(one[key]);
  }
  posenc.settings.encodings = Object.fromEntries(Object.entries(posenc.settings.encodings).map(([family, names]) => [say(family), names]));
  const MOST_TOKENS = 12, LONGEST_TOKEN = 24, LONGEST_TEXT = 2000;
  const own = (registry, name) => (Object.hasOwn(registry, name) ? registry[name] : undefined);

  function encoding(name) {
    return own(posenc.codes.ENCODINGS, name) || own(posenc.biases.BIASES, name);
  }

  // The encoding of a state, with what its options change of it.
  function entry(state) {
    const found = encoding(state.encoding);
    return found.as ? { ...found, ...found.as(state.encodingOptions) } : found;
  }

  // [least, most] of a number of the page, for the encoding of a state.
  function range(name, state) {
    return entry(state).limits[name] || [FIELDS[name].min, FIELDS[name].max];
  }

  function method(name) {  // a schedule or a map; "none" is neither
    return own(posenc.maps.MAPS, name) || (name === "default" ? undefined : own(posenc.frequencies.SCHEDULES, name));
  }

  const LOOKUPS = { encoding: { of: encoding, none: undefined }, method: { of: method, none: { options: {} } } };

  // Options that a control of the page already sets.
  const SHARED = {
    factor: "factor", original_max_positions: "trained", length: "length",
    train_length: "trained", base: "base", rope_theta: "base", curve: "curve", exponent: "exponent",
    dim: "dim", head_dim: "dim", num_heads: "heads", heads: "heads",
  };
  const sharedBy = { encoding: SHARED, method: { ...SHARED, exponent: undefined } };

  // The options of what is chosen that have a control of their own: name -> option.
  function options(of, name) {
    const found = LOOKUPS[of].of(name);
    const all = Object.entries((found && found.options) || {});
    const own = ([option, data]) => !sharedBy[of][option] && !(of === "encoding" && data.kind === "schedule");
    return Object.fromEntries(all.filter(own));
  }

  // What follows from other choices unless it is given. Extension methods are for long inputs: under one, the line is as long
  // as the text, and tokens are spread over it. The query is the last token where keys after it are hidden.
  const FOLLOWS = {
    line: s => (s.method === "none" ? FIELDS.line.default : Math.max(FIELDS.line.min, Math.min(FIELDS.line.max, s.length))),
    token: s => (s.method === "none" && s.bidirectional && !entry(s).causal ? FIELDS.token.default : s.tokens.length),
    key: s => (s.token === FIELDS.key.default ? s.tokens.length : FIELDS.key.default),
  };

  // A state from anything that looks like one: {encoding: "t5:num_buckets=16", dim: 64, ...}. Notes: what was not taken.
  function clean(asked) {
    const step = checked(FIELDS.step, asked.step ?? 0), notes = [], state = {}, given = { ...(step ? PATH[step - 1].state : {}), ...asked };
    if ("tokens" in asked && !("at" in asked)) delete given.at;
    for (const [name, value] of Object.entries(given)) {
      if (!Object.hasOwn(FIELDS, name)) notes.push(`there is no “${shortened(name)}”`);
      else if (value === undefined || value === null) delete given[name];
    }
    for (const of of ["encoding", "method"]) spread(of, given);
    const read = name => (Object.hasOwn(given, name) ? given[name] : FIELDS[name].default);
    for (const [name, field] of Object.entries(FIELDS)) {
      if (field.kind === "text") continue;
      state[name] = checked(field, read(name));
      if (state[name] === undefined) {
        notes.push(`${name}=${shortened(read(name))} is not ${wanted(field)}`);
        state[name] = field.default;
      }
    }
    for (const of of ["encoding", "method"]) {
      const found = named(of, String(read(of)), notes);
      state[of] = found.name;
      state[`${of}Options`] = found.options;
    }
    for (const name of Object.keys(entry(state).limits)) {
      const [least, most] = range(name, state);
      const fits = Math.min(Math.max(state[name], least), most);
      const valid = Object.hasOwn(asked, name) && checked(FIELDS[name], asked[name]) !== undefined;
      if (valid && state[name] !== fits) notes.push(`${name}=${state[name]}: ${state.encoding} is drawn ${least === most ? `at ${most}` : `from ${least} to ${most}`}`);
      state[name] = fits;
    }
    for (const option of entry(state).fixed || []) {
      const usual = options("encoding", state.encoding)[option].default, given = state.encodingOptions[option];
      if (given !== usual) notes.push(`${option}=${given}: what training found is drawn with ${usual}`);
      state.encodingOptions[option] = usual;
    }
    state.head = Math.min(state.head, state.heads);
    state.tokens = words(read("tokens"), notes);
    for (const name of Object.keys(FOLLOWS)) if (!Object.hasOwn(given, name)) state[name] = FOLLOWS[name](state);
    state.token = Math.min(state.token, state.tokens.length);
    state.key = state.key > state.tokens.length || state.key === state.token ? FOLLOWS.key(state) : state.key;
    state.at = places(read("at"), state, notes);
    return { state, notes };
  }

  // Options in a text that a control of the page sets go there: "yarn:factor=8" is "yarn" with factor 8.
  function spread(of, given) {
    const [name, ...parts] = String(given[of] ?? "").split(":"), found = LOOKUPS[of].of(name);
    if (!found) return;
    const others = parts.filter(part => {
      const [option, value] = part.split("="), field = own(found.options, option) && sharedBy[of][option];
      if (!field || value === undefined) return true;
      if (!Object.hasOwn(given, field)) given[field] = value;
      return false;
    });
    given[of] = [name, ...others].join(":");
  }

  function wanted({ kind, min, max, step, choices }) {
    if (kind === "boolean") return "true or false";
    if (kind === "choice") return `one of ${choices.join(", ")}`;
    return `${step === 2 ? "an even number" : kind === "integer" ? "an integer" : "a number"} from ${min} to ${max}`;
  }

  function checked({ kind, min, max, step, choices }, value) {
    if (kind === "choice") return choices.includes(value) ? value : undefined;
    if (kind === "boolean") return { true: true, false: false }[value];
    const number = typeof value === "number" ? value : String(value).trim() === "" ? NaN : Number(value);
    const fits = number >= min && number <= max && (kind !== "integer" || Number.isInteger(number));
    return fits && (step !== 2 || number % 2 === 0) ? number : undefined;
  }

  // "yarn:beta_fast=16" -> {name: "yarn", options: {beta_fast: 16, ...}}; only options with controls of their own
  function named(of, text, notes) {
    const [name, ...given] = text.split(":");
    if (name !== "none" && !LOOKUPS[of].of(name)) {
      const why = of === "encoding" && Object.entries(posenc.settings.undrawn).find(([, names]) => names.includes(name));
      notes.push(why ? `${name} is not drawn: ${why[0]}` : `there is no ${of} “${shortened(name)}” here`);
      return named(of, FIELDS[of].default, notes);
    }
    const known = options(of, name), found = {};
    for (const [option, data] of Object.entries(known)) found[option] = data.default;
    for (const part of given) {
      const [option, ...rest] = part.split("="), data = own(known, option), value = rest.join("=");
      const read = data && ofOption(data, value);
      if (read === undefined) notes.push(`${shortened(name)} does not take “${shortened(part)}”`);
      else found[option] = read;
    }
    return { name, options: found };
  }

  // The value of an option as its registry describes it, or undefined.
  function ofOption(data, text) {
    if (text === "" || text === "none") return data.default === null ? null : undefined;
    if (data.kind === "schedule") return own(posenc.frequencies.SCHEDULES, text) ? text : undefined;
    return checked(data, text);
  }

  function words(text, notes) {
    const found = String(text).slice(0, LONGEST_TEXT).split(/\s+/u).filter(Boolean);
    if (found.length < 1) return FIELDS.tokens.default.split(" ");
    if (found.length > MOST_TOKENS) notes.push(`only the first ${MOST_TOKENS} tokens are shown`);
    return found.slice(0, MOST_TOKENS).map(word => [...word].slice(0, LONGEST_TOKEN).join(""));
  }

  function places(text, state, notes) {
    const { tokens: { length: count }, line } = state, usual = inOrder(state);
    if (text === "") return usual;
    const found = (Array.isArray(text) ? text : String(text).split(",")).map(at => (at === "" ? NaN : Number(at)));
    const fit = found.every(at => Number.isInteger(at) && at >= 0 && at < line) && new Set(found).size === found.length;
    if (fit && found.length === count) return found;
    notes.push(`at=${shortened(text)} is not ${count} different positions below ${line}`);
    return usual;
  }

  function inOrder({ tokens: { length: count }, line, method }) {
    const apart = method === "none" ? 1 : Math.floor((line - 1) / Math.max(count - 1, 1));
    return Array.from({ length: count }, (_, index) => index * apart);
  }

  // A state as `clean` reads it, without what follows from the rest: from its step of the path, and from the defaults.
  function plain(state) {
    const found = {};
    for (const name of Object.keys(FIELDS)) {
      const now = shown(name, state);
      if (shown(name, clean(found).state) !== now || (name === "lang" && now !== posenc.language.usual)) found[name] = now;
    }
    return found;
  }

  function shown(name, state) {
    if (name === "encoding" || name === "method") return written(name, state);
    return Array.isArray(state[name]) ? state[name].join(name === "at" ? "," : " ") : state[name];
  }

  function written(of, state) {
    const known = options(of, state[of]), parts = [state[of]];
    for (const [option, value] of Object.entries(state[`${of}Options`])) {
      if (Object.hasOwn(known, option) && value !== known[option].default) parts.push(`${option}=${value === null ? "none" : value}`);
    }
    return parts.join(":");
  }

  function write(state) {
    return spelled(plain(state));
  }

  // The same with the encoding's name, though it is the usual one: for what leaves the page.
  function withEncoding(state) {
    return spelled({ encoding: shown("encoding", state), ...plain(state) });
  }

  function spelled(found) {
    const parts = Object.entries(found).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
    return parts.join("&").replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%20", "+").replaceAll("%3D", "=");
  }

  // A state from the text of an address, with notes.
  function parse(text) {
    const { asked, unreadable } = posenc.address.read(text.slice(0, LONGEST_TEXT)), found = clean(asked);
    return { state: found.state, notes: [...unreadable.map(part => `“${part}” is not readable`), ...found.notes] };
  }

  // What a schedule, a map or an encoding is made with: its own options and those that the page's controls set.
  function arguments_(of, state, registered) {
    const shared = {};
    for (const option of Object.keys(registered.options || {})) {
      const field = sharedBy[of][option];
      if (field) shared[option] = state[field];
    }
    const given = Object.fromEntries(Object.entries(state[`${of}Options`]).filter(([, value]) => value !== null));
    if (typeof given.of === "string") {
      const inner = posenc.frequencies.SCHEDULES[given.of];
      const inside = arguments_("method", { ...state, methodOptions: {} }, inner);
      given.of = { name: given.of, ...inside };
    }
    return { ...shared, ...given };
  }

  return {
    FIELDS, PRESETS, PATH, encoding, entry, range, method, options, clean, plain, parse, write, withEncoding,
    checked, arguments: arguments_,
  };
})();
