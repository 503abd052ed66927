"use strict";
// How the registries of this folder describe an option, how they refuse a value: with a sentence, as the library does, and
// how they read learned numbers. Loaded before frequencies.js, maps.js, codes.js and biases.js.
var posenc = posenc || {};

posenc.options = (() => {
  // An option is {kind, default, meaning} with what a control on a page needs: min and max, or choices. null as default
  // means that none is needed, or that it follows from the others. Python's min is often open; here it is a good least.
  const number = (value, min, max, meaning) => ({ kind: "number", default: value, min, max, meaning });
  const integer = (value, min, max, meaning) => ({ kind: "integer", default: value, min, max, meaning });
  const flag = (value, meaning) => ({ kind: "boolean", default: value, meaning });
  const choice = (value, choices, meaning) => ({ kind: "choice", default: value, choices, meaning });
  const schedule = meaning => ({ kind: "schedule", default: null, meaning });
  // The library has no default for it: `default` is where a page starts.
  const required = option => ({ ...option, required: true });
  // The library draws it at random and learns it: the default is the middle of where it starts.
  const learned = option => ({ ...option, learned: true });

  const KINDS = {
    number: ["must be a number", value => typeof value === "number"],
    integer: ["must be an integer", Number.isInteger],
    boolean: ["must be true or false", value => typeof value === "boolean"],
    choice: ["must be one of", (value, { choices }) => choices.includes(value)],
    schedule: ["must be a schedule, {name, ...options}, or its frequencies", value => typeof value === "object"],
  };

  const fail = sentence => { throw new Error(sentence); };
  const written = value => (typeof value === "string" ? `'${value}'` : String(value));

  // The value, if `holds`; NaN never does, as comparisons with it are false.
  function check(name, value, holds, rule) {
    return holds ? value : fail(`${name}=${written(value)}: ${rule}`);
  }

  const atLeastOne = factor =>
    check("factor", factor, factor >= 1 && factor < Infinity, "the new length over the trained one, at least 1");
  const positive = (name, value) => check(name, value, value > 0 && value < Infinity, "must be a positive number");
  const even = (name, value) =>
    check(name, value, value >= 2 && value % 2 === 0,
      "positions act on pairs of channels, so it must be even and at least 2");

  // The options given, with the defaults of those that are not; `what` names their owner in an error.
  function complete(what, options, given = {}) {
    for (const name of Object.keys(given)) {
      const known = Object.keys(options).join(", ") || "nothing";
      if (!(name in options)) fail(`${what} does not take ${name}: it takes ${known}`);
    }
    const missing = Object.keys(options).filter(name => options[name].required && given[name] === undefined);
    if (missing.length) fail(`${what} needs ${missing.join(" and ")}`);
    return pick(options, given);
  }

  // Of what is given, the options, with the defaults of those that are not: `complete` for settings that hold more.
  function pick(options, given = {}) {
    return Object.fromEntries(Object.entries(options).map(([name, option]) => [name, read(name, option, given[name])]));
  }

  function read(name, option, value = option.default) {
    if (value === null && option.default === null) return value;
    const [rule, holds] = KINDS[option.kind];
    return check(name, value, holds(value, option), option.choices ? `${rule} ${option.choices.join(", ")}` : rule);
  }

  function lookup(kind, registry, name) {
    return Object.hasOwn(registry, name)
      ? registry[name]
      : fail(`unknown ${kind} ${written(name)}: known are ${Object.keys(registry).join(", ")}`);
  }

  // What the library's encoding has learned or does after training, from trained.js: float16, in base64.
  const decoded = {};
  const trained = key => (decoded[key] ??= halves(posenc.trained[key]));

  function halves(text) {
    const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0)), view = new DataView(bytes.buffer);
    return Float64Array.from({ length: bytes.length / 2 }, (_, at) => {
      const bits = view.getUint16(2 * at, true), power = (bits >> 10) & 31, rest = bits & 1023;
      return (bits >> 15 ? -1 : 1) * (power ? 2 ** (power - 25) * (1024 + rest) : 2 ** -24 * rest);
    });
  }

  return {
    number, integer, flag, choice, schedule, required, learned, trained,
    fail, check, atLeastOne, positive, even, complete, pick, lookup,
  };
})();
