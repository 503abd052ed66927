"use strict";
// posenc.position_maps in the browser: the relative position at which a query at i scores a key at j. Maps are causal:
// NaN where the key is hidden, which is every key after the query and, for some maps, what lies between.
var posenc = posenc || {};

posenc.maps = (() => {
  const { number, integer, required, check, positive, complete, lookup } = posenc.options;
  const floor = Math.floor;

  // Each formula takes the map's options and gives (i, j) -> relative position for keys that are not after the query.

  // Su 2023, kexue.fm/archives/9708: far keys are all at the same distance.
  const rerope = ({ window }) => (i, j) => Math.min(i - j, window);

  // Su 2023, the same: beyond the window, positions run `factor` times slower.
  const leakyRerope = ({ window, factor }) => (i, j) => (i - j < window ? i - j : window + (i - j - window) / factor);

  // Su 2023, kexue.fm/archives/9728: for training; beyond the window, positions run `factor` times faster.
  const inverseLeaky = ({ window, factor }) => (i, j) => (i - j < window ? i - j : window + (i - j - window) * factor);

  // Jin et al. 2024, section 3: far tokens share positions by groups.
  const selfExtend = ({ window, group }) => {
    const shift = window - window / group;
    return (i, j) => (i - j < window ? i - j : floor(i / group) + shift - floor(j / group));
  };

  // Tang et al. 2026, arXiv 2607.07740: groups grow with the query's position, and far positions are not shifted.
  function jetLong({ window, trained, groups, least }) {
    check("least", least, least <= groups, "at most groups");
    check("window", window, window <= trained, "at most trained");
    const group = i => Math.min(Math.max(least, floor(i / trained) + 1), groups);
    return (i, j) => (i - j < window ? i - j : floor(i / group(i)) - floor(j / group(i)));
  }

  // An et al. 2024, section 3: by chunks of s tokens, none farther than `chunk`.
  function dualChunk({ chunk, local }) {
    const rule = "at most half of chunk, so that near keys are in two chunks";
    check("local", local, 2 * local <= chunk, rule);
    const size = chunk - local;
    const farthest = Math.min(2 * size - 1, chunk);
    return (i, j) => {
      const apart = floor(i / size) - floor(j / size);
      const query = apart === 0 ? i % size : apart === 1 ? Math.min((i % size) + size, chunk) : farthest;
      return query - (j % size);
    };
  }

  // An et al. 2025, section 4: long distances give way to shorter ones, which training met more often.
  const string = ({ shift, window }) => (i, j) => (i - j < shift ? i - j : i - j - shift + window);

  // Zhang et al. 2025, arXiv 2508.02308: beyond the window, positions are scaled so that `length` tokens use `used`.
  function lampe({ window, used, length }) {
    check("length", length, length >= 2, "of the text, at least 2 tokens");
    const scaled = p => floor((p * used) / (length - 1));
    const shift = window - 1 - scaled(window);
    return (i, j) => (i - j < window ? i - j : scaled(i) + shift - scaled(j));
  }

  // Xiao et al. 2024, section 3.2: places in a cache that holds the first tokens and the most recent ones.
  const streaming = ({ sinks, recent }) => (i, j) =>
    i - j < recent ? i - j : j < sinks ? Math.min(i, sinks + recent - 1) - j : NaN;

  // Han et al. 2024, section 3.2: the first tokens at a distance of window.
  const lmInfinite = ({ sinks, window }) => (i, j) => (i - j < window ? i - j : j < sinks ? window : NaN);

  // ------------------------------------------------------------------ the registry

  const tokens = (start, meaning) => required(integer(start, 1, 4096, meaning));
  const sinks = required(integer(4, 0, 64, "first tokens that stay visible"));
  const times = meaning => required(number(4, 1, 64, meaning));
  const near = tokens(128, "distances below it are unchanged");

  const MAPS = registered({
    rerope: ["ReRoPE: min(r, window)", { window: near }, rerope],
    leaky_rerope: ["Leaky ReRoPE: r, beyond the window slower", {
      window: near, factor: times("how much slower far positions run"),
    }, leakyRerope],
    inverse_leaky: ["Inverse Leaky ReRoPE, for training: r, beyond the window faster", {
      window: near, factor: times("how much faster far positions run"),
    }, inverseLeaky],
    self_extend: ["Self-Extend: r, beyond the window by groups of tokens", {
      window: near, group: tokens(4, "tokens per position"),
    }, selfExtend],
    jet_long: ["Jet-Long: r, beyond the window by groups that grow with the text", {
      window: near, trained: tokens(256, "the context length"), groups: tokens(4, "most tokens per position"),
      least: integer(1, 1, 4096, "fewest tokens per position"),
    }, jetLong],
    dual_chunk: ["dual chunk attention: by chunks, none farther than chunk", {
      chunk: tokens(192, "no distance exceeds it"), local: tokens(32, "distances below it are unchanged"),
    }, dualChunk],
    string: ["STRING: r, from shift on r - shift + window", {
      shift: tokens(256, "from where distances move down"), window: tokens(64, "where they land"),
    }, string],
    lampe: ["LaMPE: r, beyond the window scaled to the length of the text", {
      window: near, used: tokens(256, "positions that the text is to use"), length: tokens(512, "of the text"),
    }, lampe],
    streaming: ["StreamingLLM: the first and the last tokens, by their places in the cache", {
      sinks, recent: tokens(128, "last tokens, the query's own with them"),
    }, streaming],
    lm_infinite: ["LM-Infinite: the last tokens, and the first at a distance of window", {
      sinks, window: tokens(128, "last tokens, the query's own with them"),
    }, lmInfinite],
  });

  // Encodings that hide keys and leave distances as they are, in a causal text.
  const VISIBLE = registered({
    window: ["a query sees so many tokens before it", { before: integer(127, 0, 4096, "tokens before it that a query sees") },
      ({ before }) => (i, j) => (i - j <= before ? i - j : NaN)],
    chunks: ["a query sees the keys of its chunk", { size: integer(128, 1, 4096, "tokens of a chunk") },
      ({ size }) => (i, j) => (floor(i / size) === floor(j / size) ? i - j : NaN)],
  });

  // A map is made once from its options, `of(options)`, for many pairs.
  function registered(entries) {
    return Object.fromEntries(Object.entries(entries).map(([name, [summary, options, formula]]) => {
      const of = given => {
        const chosen = complete(`position map '${name}'`, options, given);
        Object.entries(chosen).forEach(([option, value]) => allowed(option, value));
        return formula(chosen);
      };
      return [name, { summary, options, of }];
    }));
  }

  function allowed(option, value) {
    if (option === "factor") return positive(option, value);
    if (option === "sinks" || option === "before") return check(option, value, value >= 0, "a number of tokens, from 0 on");
    return check(option, value, value >= 1, "an integer number of tokens, at least 1");
  }

  // The relative positions of n queries (rows) and keys, (n, n): of the map of that name, or plain distances if null. The
  // latest are at hand while other choices change; nobody writes to them.
  let latest = { key: "", found: null };
  function grid(name, n, options) {
    const key = JSON.stringify([name, n, options]);
    if (latest.key !== key) latest = { key, found: filled(name, n, options) };
    return latest.found;
  }

  function filled(name, n, options) {
    const map = name === null ? null : lookup("position map", { ...MAPS, ...VISIBLE }, name);
    const relative = map ? map.of(options) : (i, j) => i - j;
    const found = new Float64Array(n * n).fill(NaN);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j <= i; j++) found[i * n + j] = relative(i, j);
    }
    return found;
  }

  return { MAPS, VISIBLE, grid };
})();
