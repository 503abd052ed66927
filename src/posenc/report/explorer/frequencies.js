"use strict";
// posenc.frequencies in the browser: what a schedule makes of RoPE's frequencies, formula for formula. Options have the
// names, defaults and meanings that they have in Python; a test holds every number against the library's.
var posenc = posenc || {};

posenc.frequencies = (() => {
  const { number, integer, flag, choice, schedule, required, fail, check, atLeastOne, positive, even, complete, lookup } =
    posenc.options;

  const CURVES = {
    geometric: (t, base) => base ** -t,
    power: (t, base, exponent) => t ** exponent,
  };

  // The dim/2 angular frequencies theta(t_c), t_c = 2c/dim (Vaswani et al. 2017, section 3.5); with endpoint
  // t_c = c/(dim/2 - 1), so that the last one is theta(1). Curves other than base^-t: Su, kexue.fm/archives/8231.
  function curve({ dim, base = 10000, curve: name = "geometric", exponent = 1, endpoint = false }) {
    const pairs = even("dim", dim) / 2;
    const theta = lookup("curve", CURVES, name);
    positive("base", base);
    check("exponent", exponent, name !== "power" || exponent > 0, "t^exponent needs a positive exponent");
    const steps = endpoint ? Math.max(pairs - 1, 1) : pairs;
    return Float64Array.from({ length: pairs }, (_, c) => theta(c / steps, base, exponent));
  }

  const plain = (headDim, base) => curve({ dim: headDim, base });
  const frequencies = (invFreq, attentionFactor = 1) => ({ invFreq, attentionFactor });

  // Positions per turn; infinite for a pair that stands still.
  const wavelengths = invFreq => invFreq.map(theta => (2 * Math.PI) / theta);

  // How often each pair turns over so many positions.
  const turns = (invFreq, length) => invFreq.map(theta => (theta * length) / (2 * Math.PI));

  function ofWidth(invFreq, headDim) {
    const rule = `has ${headDim / 2} pairs, but ${invFreq.length} frequencies were given`;
    check("head_dim", headDim, 2 * invFreq.length === headDim, rule);
    return invFreq;
  }

  const aLength = (length, name = "original_max_positions", meaning = "the context length") =>
    check(name, length, length >= 1 && length < Infinity, `${meaning}, at least 1`);

  // ------------------------------------------------------------------ all pairs alike, or more from pair to pair

  // Position interpolation (Chen et al. 2023, eq. 4).
  const linear = (headDim, base, { factor }) =>
    frequencies(plain(headDim, base).map(theta => theta / atLeastOne(factor)));

  // Xiong et al. 2023, section 4.1.
  function abf(headDim, base, { new_base: newBase }) {
    plain(headDim, base); // which must be right, though it is replaced
    return frequencies(plain(headDim, positive("new_base", newBase)));
  }

  // bloc97 2023: the fastest frequency stays and the slowest is divided by factor.
  function ntk(headDim, base, { factor }) {
    check("head_dim", headDim, headDim !== 2, "NTK scaling needs at least two frequencies (head_dim >= 4)");
    return abf(headDim, base, { new_base: base * atLeastOne(factor) ** (headDim / (headDim - 2)) });
  }

  // Su, kexue.fm/archives/9675: the slowest frequency is divided by less than factor.
  const ntkOld = (headDim, base, { factor }) => abf(headDim, base, { new_base: base * atLeastOne(factor) });

  // Su, kexue.fm/archives/9706: frequency c is divided by factor^((2(c+1)/d)^exponent).
  function ntkMixed(headDim, base, { factor, exponent }) {
    check("exponent", exponent, exponent >= 0 && exponent <= 1, "from 0 (linear) to 1 (ntk_fixed)");
    const pairs = headDim / 2;
    const divisor = c => atLeastOne(factor) ** (((c + 1) / pairs) ** exponent);
    return frequencies(plain(headDim, base).map((theta, c) => theta / divisor(c)));
  }

  const ntkFixed = (headDim, base, { factor }) => ntkMixed(headDim, base, { factor, exponent: 1 });

  // ------------------------------------------------------------------ slow pairs, with a ramp

  // The authors' code: interpolated from the pair that turns beta_slow times on, blended between frequencies.
  function yarn(headDim, base, o) {
    const ramp = rampByPair(headDim / 2, base, o);
    const temperature = amplitude(o.factor, o.mscale, o.mscale_all_dim, o.attention_factor);
    return frequencies(blend(plain(headDim, base), o.factor, ramp), temperature);
  }

  // jquesnelle/yarn issue 24: blended between wavelengths.
  function yarnRevised(headDim, base, o) {
    const ramp = rampByPair(headDim / 2, base, o);
    const divided = plain(headDim, base).map((theta, c) => theta / (1 - ramp[c] + atLeastOne(o.factor) * ramp[c]));
    return frequencies(divided, amplitude(o.factor, 1, 0, o.attention_factor));
  }

  // Peng et al. 2023, eq. 18 to 20: the change is linear in the number of turns.
  function yarnPaper(headDim, base, o) {
    const trained = plain(headDim, base);
    const ramp = rampByTurns(trained, o.original_max_positions, "beta_slow", "beta_fast", o);
    return frequencies(blend(trained, o.factor, ramp), amplitude(o.factor, 1, 0, o.attention_factor));
  }

  // Tian et al. 2026, MrRoPE: of n pairs between the ends, the t-th is divided by factor^(t(t+1)/(n(n+1))), or factor^(t/n).
  function mrrope(headDim, base, o) {
    const [low, high] = rampEnds(headDim / 2, base, { ...o, truncate: true });
    const n = Math.max(high - low, 0.001);
    const exponent = t => (o.progressive ? (t * (t * n + 1)) / (n + 1) : t);
    const divisors = ramp(headDim / 2, low, high).map(t => atLeastOne(o.factor) ** exponent(t));
    return frequencies(plain(headDim, base).map((theta, c) => theta / divisors[c]),
      amplitude(o.factor, 1, 0, o.attention_factor));
  }

  // Meta, llama-models: yarn_paper with other limits and no temperature.
  function llama3(headDim, base, o) {
    const trained = plain(headDim, base);
    const ramp = rampByTurns(trained, o.original_max_positions, "low_freq_factor", "high_freq_factor", o);
    return frequencies(blend(trained, o.factor, ramp));
  }

  const blend = (trained, factor, ramp) =>
    trained.map((theta, c) => theta * (1 - ramp[c]) + (theta / atLeastOne(factor)) * ramp[c]);

  const clamp01 = x => Math.min(Math.max(x, 0), 1);

  // 0 up to the pair that turns beta_fast times over the context length, 1 from the one that turns beta_slow times.
  const rampByPair = (pairs, base, o) => ramp(pairs, ...rampEnds(pairs, base, o));

  const ramp = (pairs, low, high) =>
    Float64Array.from({ length: pairs }, (_, c) => clamp01((c - low) / (high - low)));

  function rampEnds(pairs, base, o) {
    inOrder("beta_slow", "beta_fast", o);
    check("base", base, base > 1, "this schedule needs a base above 1");
    const length = aLength(o.original_max_positions);
    const pairThatTurns = times => (pairs * Math.log(length / (times * 2 * Math.PI))) / Math.log(base);
    let [low, high] = [pairThatTurns(o.beta_fast), pairThatTurns(o.beta_slow)];
    if (o.truncate) [low, high] = [Math.floor(low), Math.ceil(high)];
    [low, high] = [Math.max(low, 0), Math.min(high, 2 * pairs - 1)];
    return [low, low === high ? high + 0.001 : high]; // the authors' way out of a division by zero
  }

  // 1 for pairs that turn at most `slow` times over the context length, 0 from `fast` times on.
  function rampByTurns(trained, length, slow, fast, o) {
    inOrder(slow, fast, o);
    return turns(trained, aLength(length)).map(times => 1 - clamp01((times - o[slow]) / (o[fast] - o[slow])));
  }

  function inOrder(slow, fast, o) {
    const ordered = o[slow] > 0 && o[slow] < o[fast];
    if (!ordered) fail(`${slow}=${o[slow]}, ${fast}=${o[fast]}: turns over the context length, 0 < ${slow} < ${fast}`);
  }

  // What cos and sin are multiplied by: m(mscale) / m(mscale_all_dim) with m(x) = 0.1 x ln(factor) + 1.
  function amplitude(factor, mscale, mscaleAllDim, given) {
    if (given === null) return m(factor, mscale, "mscale") / m(factor, mscaleAllDim, "mscale_all_dim");
    return check("attention_factor", given, given > 0 && given < Infinity,
      "multiplies cos and sin, so it must be positive");
  }

  function m(factor, weight, name) {
    check(name, weight, weight >= 0 && weight < Infinity, "the weight of ln(factor) in the temperature, at least 0");
    return 0.1 * weight * Math.log(atLeastOne(factor)) + 1;
  }

  // ------------------------------------------------------------------ by the length of the text

  // 1 up to the context length, then factor * length / trained - (factor - 1) (emozilla 2023).
  function dynamicFactor(length, trained, factor = 1) {
    const times = Math.max(aLength(length, "length", "positions in the complete text") / aLength(trained), 1);
    return atLeastOne(factor) * times - (factor - 1);
  }

  const dynamic = (headDim, base, o) =>
    ntk(headDim, base, { factor: dynamicFactor(o.length, o.original_max_positions, o.factor) });

  // ------------------------------------------------------------------ applied to another

  // Only the first floor(fraction * pairs) frequencies are not zero (p-RoPE, Barbero et al. 2024, section 6).
  function fastest({ invFreq, attentionFactor }, fraction) {
    const rule = "the part of the frequencies that rotates, from 0 to 1";
    check("fraction", fraction, fraction >= 0 && fraction <= 1, rule);
    const rotating = Math.floor(fraction * invFreq.length);
    return frequencies(invFreq.map((theta, c) => (c < rotating ? theta : 0)), attentionFactor);
  }

  const proportional = (headDim, base, { fraction, factor }) => fastest(linear(headDim, base, { factor }), fraction);

  // Wavelengths rounded to integers (Wang et al. 2024).
  function resonance(headDim, base, { of }) {
    const { invFreq, attentionFactor } = given(headDim, base, of);
    const rounded = wavelengths(invFreq).map(length => Math.max(Math.round(length), 1));
    return frequencies(rounded.map(length => (2 * Math.PI) / length), attentionFactor);
  }

  // The slowest pairs faded out by (1 + cos t) / 2, t from 0 to pi over them (Li et al. 2026, "clipped RoPE").
  function tapered(headDim, base, o) {
    const { invFreq, attentionFactor } = given(headDim, base, o.of);
    let { pairs } = o;
    if (pairs === null) {
      const length = o.original_max_positions;
      if (length === null) fail("tapered: pass pairs, or original_max_positions to fade what makes no full rotation in it");
      pairs = wavelengths(invFreq).filter(wave => wave > aLength(length)).length;
    }
    const unfaded = invFreq.length - pairs;
    check("pairs", pairs, pairs >= 0 && unfaded >= 0, `there are ${invFreq.length} pairs`);
    const phase = c => (Math.PI * (c - unfaded)) / Math.max(pairs - 1, 1); // of a single one 0: not faded
    const weight = c => (c < unfaded ? 1 : o.hard ? 0 : (1 + Math.cos(phase(c))) / 2);
    return frequencies(invFreq.map((theta, c) => theta * weight(c)), attentionFactor);
  }

  function given(headDim, base, of) {
    if (of === null) return frequencies(plain(headDim, base));
    const found = of.invFreq ? of : create(of, headDim, base);
    return frequencies(ofWidth(found.invFreq, headDim), found.attentionFactor);
  }

  // ------------------------------------------------------------------ the registry

  const factor = required(number(4, 1, 64, "the new length over the trained one"));
  const trained = integer(4096, 1, 1048576, "original_max_positions: the context length");
  const temperature = number(null, 0.1, 4, "multiplies cos and sin; unless given, 0.1 ln(factor) + 1");
  const betas = {
    beta_fast: number(32, 2, 128, "pairs that turn so often over the context length stay"),
    beta_slow: number(1, 0.1, 16, "pairs that turn at most so often are interpolated"),
  };
  const long = { factor, original_max_positions: required(trained) };
  const truncate = flag(true, "round the ramp's ends outwards to integers");
  const of = schedule("the schedule it is applied to, the default if none");

  const SCHEDULES = registered({
    default: ["base^(-2c/head_dim), plain RoPE", {}, (headDim, base) => frequencies(plain(headDim, base))],
    linear: ["every frequency divided by factor: position interpolation", { factor }, linear],
    ntk: ["a base so much larger that the slowest pair is divided by factor: NTK-aware", { factor }, ntk],
    ntk_old: ["base times factor", { factor }, ntkOld],
    ntk_fixed: ["pair c divided by factor^(2(c+1)/d): every digit of the position", { factor }, ntkFixed],
    ntk_mixed: ["between linear and ntk_fixed: divided by factor^((2(c+1)/d)^exponent)", {
      factor, exponent: number(0.625, 0, 1, "0 is linear, 1 is ntk_fixed"),
    }, ntkMixed],
    abf: ["plain RoPE of a new base", { new_base: required(number(500000, 1, 1e8, "replaces the base")) }, abf],
    yarn: ["slow pairs interpolated, fast ones unchanged, a ramp over the pairs between", {
      ...long, ...betas, truncate,
      mscale: number(1, 0, 2, "weight of ln(factor) in the temperature"),
      mscale_all_dim: number(0, 0, 2, "weight in what the temperature is divided by (DeepSeek)"),
      attention_factor: temperature,
    }, yarn],
    yarn_paper: ["YaRN as its paper states it: a ramp over the turns", {
      ...long, ...betas, attention_factor: temperature,
    }, yarnPaper],
    yarn_revised: ["YaRN with a ramp between wavelengths", {
      ...long, ...betas, truncate, attention_factor: temperature,
    }, yarnRevised],
    mrrope: ["slow pairs interpolated, between them and the fast ones a radix that grows from pair to pair", {
      ...long, ...betas, progressive: flag(true, "off: all radixes are the same"), attention_factor: temperature,
    }, mrrope],
    llama3: ["Llama 3.1's: slow pairs interpolated, a ramp over the turns, no temperature", {
      ...long,
      low_freq_factor: number(1, 0.1, 16, "pairs that turn at most so often are interpolated"),
      high_freq_factor: number(4, 0.2, 64, "pairs that turn so often stay"),
    }, llama3],
    dynamic: ["NTK by what the text's length needs, nothing up to the trained one", {
      length: required(integer(16384, 1, 4194304, "of the complete text")),
      original_max_positions: required(trained),
      factor: number(1, 1, 64, "1 is length over context length; more than the text needs for others"),
    }, dynamic],
    proportional: ["the fastest fraction of the pairs, the others do not turn: p-RoPE", {
      fraction: number(0.75, 0, 1, "of the pairs that turn"), factor: number(1, 1, 64, "they are divided by it"),
    }, proportional],
    tapered: ["the slowest pairs faded out", {
      pairs: integer(null, 0, 128, "how many; unless given, those that make no full rotation in the context length"),
      original_max_positions: { ...trained, default: null },
      hard: flag(false, "zeros instead of a fade"), of,
    }, tapered],
    resonance: ["wavelengths rounded to integers", { of }, resonance],
  });

  function registered(entries) {
    return Object.fromEntries(Object.entries(entries).map(([name, [summary, options, formula]]) => {
      const make = (headDim, base, given) => formula(headDim, base, complete(`schedule '${name}'`, options, given));
      return [name, { summary, options, make }];
    }));
  }

  // The frequencies of a schedule as data, {name: "resonance", of: {name: "ntk", factor: 4}}.
  const create = ({ name, ...options }, headDim, base = 10000) =>
    lookup("schedule", SCHEDULES, name).make(headDim, base, options);

  return { CURVES, SCHEDULES, curve, create, fastest, wavelengths, turns };
})();
