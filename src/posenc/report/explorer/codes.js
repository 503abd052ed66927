"use strict";
// What posenc.analysis.codes_of gives, in the browser: a vector for each position, and what its dot products say.
var posenc = posenc || {};

posenc.codes = (() => {
  const { number, integer, flag, choice, schedule, required, learned, trained, fail, check, positive, even, pick, lookup } =
    posenc.options;
  const { curve, create, fastest } = posenc.frequencies;

  // ------------------------------------------------------------------ naive codes

  // A number per position in channel 0. The library spreads it along a learned direction unless first_channel is given.
  function inFirstChannel(positions, dim, numberOf) {
    const codes = new Float64Array(positions.length * dim);
    positions.forEach((position, row) => { codes[row * dim] = numberOf(position); });
    return codes;
  }

  const positionItself = (positions, { dim }) => inFirstChannel(positions, dim, position => position);

  // k / (length - 1); without a length, the number of positions given.
  const normalized = (positions, { dim, length }) =>
    inFirstChannel(positions, dim, position => position / Math.max((length ?? positions.length) - 1, 1));

  // Binary digits, least significant first.
  function binary(positions, { dim, bits: given, signed }) {
    const most = Math.min(dim, 62);
    const bits = given ?? Math.min(dim, 16);
    check("bits", bits, bits >= 1 && bits <= most, `must lie between 1 and ${most} (dim=${dim})`);
    const codes = new Float64Array(positions.length * dim);
    positions.forEach((position, row) => {
      check("position", position, Number.isInteger(position), "binary digits exist for integers only");
      for (let bit = 0; bit < bits; bit++) {
        const digit = Math.abs(Math.floor(position / 2 ** bit) % 2);
        codes[row * dim + bit] = signed ? 2 * digit - 1 : digit;
      }
    });
    return codes;
  }

  // A learned row for each position of training, and none for any other.
  function table(positions, { dim }) {
    const rows = trained("learned/table"), count = rows.length / TABLE;
    check("dim", dim, dim === TABLE, `the table was trained with ${TABLE} channels`);
    const codes = new Float64Array(positions.length * dim);
    positions.forEach((position, row) => {
      const known = Number.isInteger(position) && position >= 0 && position < count;
      check("position", position, known, `there is a row for each of the ${count} positions of training`);
      codes.set(rows.subarray(position * dim, (position + 1) * dim), row * dim);
    });
    return codes;
  }

  const TABLE = 128;

  // ------------------------------------------------------------------ waves

  // The channels of pair c, of so many pairs from channel `first` on: neighbours, or one in each half.
  const pairing = (layout, pairs, first = 0) =>
    layout === "interleaved" ? c => [first + 2 * c, first + 2 * c + 1] : c => [first + c, first + pairs + c];

  // sin(k theta_c), cos(k theta_c) (Vaswani et al. 2017, section 3.5).
  function sinusoidal(positions, o) {
    const theta = waves(o);
    const channels = pairing(o.layout, theta.length);
    const codes = new Float64Array(positions.length * o.dim);
    theta.forEach((speed, c) => {
      const [sine, cosine] = channels(c);
      positions.forEach((position, row) => {
        codes[row * o.dim + sine] = o.amplitude * Math.sin(position * speed);
        codes[row * o.dim + cosine] = o.amplitude * Math.cos(position * speed);
      });
    });
    return codes;
  }

  const waves = o => o.invFreq || curve(o);

  // A rotation's frequencies and where they act: the schedule's, unless invFreq and attentionFactor are given.
  function rotation(o) {
    const width = o.rotary_dim ?? o.dim;
    even("head_dim", o.dim);
    check("rotary_dim", width, width <= o.dim, `cannot exceed head_dim=${o.dim}`);
    const given = o.invFreq && { invFreq: o.invFreq, attentionFactor: o.attentionFactor ?? 1 };
    const found = given || create(o.schedule ?? { name: "default" }, even("rotary_dim", width), o.rope_theta);
    return adjusted(found, o);
  }

  // Frequencies of which a part turns (p-RoPE), or that were learned: theta_c = f_c exp(s_c).
  function adjusted(found, { fraction, log_scale: scale }) {
    if (fraction !== undefined) return fastest(found, fraction);
    if (scale !== "trained") return found;
    const learned = trained("learned_rope/log_scale"), pairs = found.invFreq.length;
    check("dim", 2 * pairs, pairs === learned.length, `its speeds were trained for ${learned.length} pairs of channels`);
    return { ...found, invFreq: found.invFreq.map((theta, c) => theta * Math.exp(learned[c])) };
  }

  // What rotation makes of a vector (Su et al. 2021, section 3.2): in each pair (x, y) turns by k theta_c. vector: of ones
  // unless given. first: the first channel that turns. scale: of a pair's code, besides the attention factor (xPos).
  function rope(positions, o, vector = new Float64Array(o.dim).fill(1), first = () => 0, scale = () => 1) {
    const { invFreq, attentionFactor } = rotation(o);
    const channels = pairing(o.layout, invFreq.length, first(o.dim - 2 * invFreq.length));
    const codes = new Float64Array(positions.length * o.dim);
    for (let row = 0; row < positions.length; row++) codes.set(vector, row * o.dim);
    invFreq.forEach((theta, c) => {
      const [a, b] = channels(c);
      positions.forEach((position, row) => {
        const cos = Math.cos(position * theta), sin = Math.sin(position * theta);
        const factor = attentionFactor * scale(c, position);
        codes[row * o.dim + a] = factor * (vector[a] * cos - vector[b] * sin);
        codes[row * o.dim + b] = factor * (vector[b] * cos + vector[a] * sin);
      });
    });
    return codes;
  }

  const turned = (positions, o, vector) => rope(positions, o, vector);

  // Latent attention (DeepSeek-AI 2024, section 2.1.3): the last channels turn, a third by default.
  const decoupled = o => ({ ...o, rotary_dim: o.rotary_dim ?? Math.max(2, Math.floor(o.dim / 6) * 2) });

  // xPos (Sun et al. 2022, section 2.2): queries fade by zeta_c^(m / scale_base), and keys grow by as much.
  const xpos = (positions, o, vector, sign = 1) => {
    const fades = fading(o);
    return rope(positions, o, vector, undefined, (c, position) => fades(c, sign * position));
  };

  // zeta_c^(distance / scale_base), of pair c.
  function fading(o) {
    positive("gamma", o.gamma);
    positive("scale_base", o.scale_base);
    const pairs = rotation(o).invFreq.length;
    return (c, distance) => ((c / pairs + o.gamma) / (1 + o.gamma)) ** (distance / o.scale_base);
  }

  // ------------------------------------------------------------------ products as functions of the distance

  // sum_c cos(distance theta_c), for each distance, each pair with its weight.
  const cosines = (distances, theta, weight = () => 1) => Float64Array.from(distances).map(distance =>
    theta.reduce((sum, speed, c) => sum + weight(c, distance) * Math.cos(distance * speed), 0));

  const sinusoidalKernel = (distances, o) => cosines(distances, waves(o)).map(sum => o.amplitude ** 2 * sum);

  function ropeKernel(distances, o, weight) {
    const { invFreq, attentionFactor } = rotation(o);
    return cosines(distances, invFreq, weight).map(sum => 2 * attentionFactor ** 2 * sum + o.dim - 2 * invFreq.length);
  }

  const turnedKernel = (distances, o) => ropeKernel(distances, o);

  // ------------------------------------------------------------------ the registry

  const theta = number(10000, 1, 1e8, "rope_theta: base of the frequencies");
  const layouts = (first, choices) => choice(first, choices, "which channels form a pair");
  const rotary = first => ({
    rope_theta: theta, layout: layouts(first, ["half", "interleaved"]),
    rotary_dim: integer(null, 2, 256, "channels that turn; unless given, all"),
    schedule: schedule("the frequencies, posenc.frequencies; unless given, plain RoPE's"),
  });
  const { rotary_dim: rotaryDim, ...wholeHead } = rotary("half");

  // How scores become weights. scale: what a query's scores are multiplied by, of its position. sink: what something beside the keys
  // scores. sticks: instead of the softmax each key, from the nearest on, takes sigmoid(score) of what is left; current: the
  // query's own key too.
  const SOFTMAX = { scale: () => 1, sink: -Infinity, sticks: false, current: true };

  // Chiang and Cholak 2022, section 5.3: ln(n) / ln(L) for a query that sees n keys.
  const logN = ({ train_length: length, clip }) => {
    check("train_length", length, length >= 2, "at least 2");
    return { ...SOFTMAX, scale: at => Math.max(Math.log(at + 1) / Math.log(length), clip ? 1 : 0) };
  };

  // Meta 2025, llama-models: 1 + beta ln(1 + floor((i + first) / L)).
  const stepped = ({ train_length: length, beta, first }) =>
    ({ ...SOFTMAX, scale: at => 1 + beta * Math.log1p(Math.floor((at + first) / check("train_length", length, length >= 1, "at least 1"))) });


  const ENCODINGS = registered({
    none: ["no positional encoding", "nothing", {}, null],
    normalized: ["k / (length - 1), drawn in channel 0: the library learns a direction", "position", {
      length: integer(null, 1, 4096, "to divide by; unless given, that of the text"),
    }, normalized],
    integer: ["the position itself, drawn in channel 0: the library learns a direction", "position", {}, positionItself],
    learned: ["a learned vector per position; here as trained with 128 channels on 128 positions", "position", {}, table, {
      limits: { dim: [TABLE, TABLE], trained: [128, 128], length: [8, 128], line: [12, 128] },
    }],
    binary: ["binary digits, least significant first", "position", {
      bits: integer(null, 1, 62, "how many; unless given, 16 or the width"),
      signed: flag(false, "-1 and 1 instead of 0 and 1"),
    }, binary],
    sinusoidal: ["sines and cosines of geometric frequencies", "position", {
      base: number(10000, 1, 1e8, "of the frequencies"),
      layout: layouts("interleaved", ["interleaved", "concat"]),
      amplitude: number(1, 0, 2, "multiplies the code"),
      curve: choice("geometric", ["geometric", "power"], "theta(t): base^-t, or t^exponent"),
      exponent: number(1, 0.1, 4, "of the power curve"),
      endpoint: flag(false, "the last frequency is exactly theta(1)"),
    }, sinusoidal, { kernel: sinusoidalKernel }],
    rope: ["RoPE: pair c turns by position times theta_c", "position", rotary("half"), turned, { kernel: turnedKernel }],
    p_rope: ["p-RoPE: only the fastest frequencies turn", "position", {
      ...wholeHead, fraction: number(0.75, 0, 1, "of the pairs that turn"),
    }, turned, { kernel: turnedKernel }],
    learned_rope: ["RoPE with learned speeds; here as trained on 128 positions, or as they start", "position", {
      ...wholeHead, log_scale: learned(choice("trained", ["trained", "zero"], "the learned part of each speed")),
    }, turned, { kernel: turnedKernel, limits: { dim: [48, 48], trained: [128, 128] } }],
    decoupled_rope: ["the last channels turn, the others are content only (DeepSeek)", "position", {
      ...rotary("interleaved"), rotary_dim: { ...rotaryDim, meaning: "channels that turn; unless given, a third" },
    }, (p, o, vector) => rope(p, decoupled(o), vector, still => still), { kernel: (d, o) => ropeKernel(d, decoupled(o)) }],
    xpos: ["RoPE whose scores fade with the distance; the codes are the queries', keys grow instead", "position", {
      ...rotary("interleaved"),
      gamma: number(0.4, 0.01, 4, "how little the fast pairs fade"),
      scale_base: number(512, 16, 4096, "positions over which they do"),
    }, xpos, { kernel: (distances, o) => ropeKernel(distances, o, fading(o)) }],
    stick_breaking: ["each key, from the nearest on, takes its share of what nearer ones have left", "nothing", {
      attend_current: flag(false, "a query also sees its token's key"),
    }, null, { causal: true, softmax: o => ({ ...SOFTMAX, sticks: true, current: o.attend_current }) }],
    sink: ["a learned logit that takes a part of the attention; here at 0, where it starts", "nothing", {
      logit: learned(number(0, -8, 8, "what the sink scores")),
    }, null, { softmax: o => ({ ...SOFTMAX, sink: o.logit }) }],
    softmax_n: ["n more in the softmax's denominator, so that a query may attend to nothing", "nothing", {
      n: number(1, 0, 16, "0 is the softmax"),
    }, null, { softmax: o => ({ ...SOFTMAX, sink: Math.log(check("n", o.n, o.n >= 0, "at least 0")) }) }],
    temperature: ["every score times one factor", "nothing", {
      beta: number(1, 0.1, 8, "above 1 is sharper"),
    }, null, { softmax: o => ({ ...SOFTMAX, scale: () => positive("beta", o.beta) }) }],
    log_n: ["scores grow with the logarithm of the keys that a query sees: all before it, in a causal text", "nothing", {
      train_length: required(integer(512, 2, 131072, "where the factor is 1")), clip: flag(true, "never less than 1"),
    }, null, { causal: true, softmax: logN }],
    step_temperature: ["scores grow by a step for each training length, as in Llama 4", "nothing", {
      train_length: required(integer(512, 1, 131072, "of a step")), beta: number(0.1, 0, 4, "how large steps are"),
      first: integer(1, 0, 1, "1 counts tokens, 0 positions"),
    }, null, { softmax: stepped }],
  });

  // codes: positions -> (n, dim), with settings {dim, ...options}; dim is the model's width, or the head's. kernel:
  // distances -> product of the later position's code (a query's) and the earlier one's (a key's), where the distance
  // alone decides it, else null. turn: of a rotation, a vector at a position, as a query (sign 1) or a key (-1); else null.
  // biases.js adds those of "distance": distances -> (n, num_heads), with settings {num_heads, ...options}. limits: of fields of
  // the page, [least, most], where an encoding is drawn as trained. as: of options, what they change of these; fixed: others that it does not read.
  function registered(entries) {
    return Object.fromEntries(Object.entries(entries).map(([name, [summary, of, options, formula, more = {}]]) => {
      const settings = given => {
        const { dim, invFreq, attentionFactor } = given;
        check("dim", dim, Number.isInteger(dim) && dim >= 1, "must be an integer number of channels, at least 1");
        return { ...pick(options, given), dim, invFreq, attentionFactor };
      };
      return [name, {
        summary, of, options, limits: more.limits || {}, causal: Boolean(more.causal),
        softmax: given => (more.softmax ? more.softmax(pick(options, given)) : SOFTMAX),
        codes: (positions, given) => (formula ? formula(Float64Array.from(positions), settings(given)) : fail(`${name}: it has no code per position or distance`)),
        turn: options.schedule
          ? (vector, position, given, sign) => formula([position], settings(given), vector, sign) : null,
        kernel: more.kernel ? (distances, given) => more.kernel(distances, settings(given)) : null,
      }];
    }));
  }

  // ------------------------------------------------------------------ all pairs

  const range = n => Float64Array.from({ length: n }, (_, index) => index);

  // The (n, n) dot products of n codes (n, dim), by symmetry half of them; four keys at once, so that a query's number
  // is read once for four products.
  function dots(codes, n, dim) {
    const found = new Float64Array(n * n);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j <= i; j += 4) {
        const p = i * dim, last = (n - 1) * dim; // keys past the last one are the last again, and their products are not stored
        const q = j * dim, r = Math.min(q + dim, last), s = Math.min(r + dim, last), t = Math.min(s + dim, last);
        let a = 0, b = 0, c = 0, d = 0;
        for (let k = 0; k < dim; k++) {
          const x = codes[p + k];
          a += x * codes[q + k];
          b += x * codes[r + k];
          c += x * codes[s + k];
          d += x * codes[t + k];
        }
        const four = [a, b, c, d];
        for (let m = 0; m < 4 && j + m <= i; m++) found[i * n + j + m] = found[(j + m) * n + i] = four[m];
      }
    }
    return found;
  }

  // The (n, n) matrix of a function of the distance, row's position less column's: its values for 0 .. n-1 and, unless
  // they are the same, for 0 .. 1-n.
  function ofDistance(values, negative = values) {
    const n = values.length;
    const found = new Float64Array(n * n);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) found[i * n + j] = j <= i ? values[i - j] : negative[j - i];
    }
    return found;
  }

  // The products of positions 0 .. n-1 under an encoding, queries in rows, from 2n values where these suffice.
  function allPairs(name, n, settings) {
    const { codes, kernel } = lookup("encoding", ENCODINGS, name);
    const at = range(n);
    if (!kernel) return dots(codes(at, settings), n, settings.dim);
    return ofDistance(kernel(at, settings), kernel(at.map(distance => -distance), settings));
  }

  // The mean and the spread (standard deviation) of an (n, n) matrix over the pairs at each distance, the row's less
  // the column's; hidden ones, NaN, do not count, and a distance without any is NaN.
  function byDistance(matrix, n) {
    const [mean, spread, count] = [new Float64Array(n), new Float64Array(n), new Float64Array(n)];
    const each = found => {  // row by row, as the matrix lies in memory
      for (let i = 0; i < n; i++) {
        for (let at = i * n, distance = i; distance >= 0; at++, distance--) {
          if (!Number.isNaN(matrix[at])) found(distance, matrix[at]);
        }
      }
    };
    each((distance, value) => {
      count[distance] += 1;
      mean[distance] += value;
    });
    for (let distance = 0; distance < n; distance++) mean[distance] /= count[distance];
    each((distance, value) => { spread[distance] += (value - mean[distance]) ** 2; });
    return { mean, spread: spread.map((squares, distance) => Math.sqrt(squares / count[distance])) };
  }

  // What a kernel gives at relative positions, (n, n) as of posenc.maps.grid; NaN where the key is hidden. Few of them
  // differ, mostly not along a diagonal, so the kernel is asked once for each.
  function scores(relative, n, kernel) {
    if (!distinct.has(relative)) distinct.set(relative, places(relative, n));
    const { keys, place } = distinct.get(relative), values = kernel(keys);
    return relative.map((r, at) => (Number.isNaN(r) ? NaN : values[place[at]]));
  }

  const distinct = new WeakMap();  // of a grid, its values and which of them each pair has: other frequencies do not change it

  function places(relative, n) {
    const found = new Map(), placeOf = r => found.get(r) ?? found.set(r, found.size).get(r);
    const place = new Int32Array(n * n);
    for (let distance = 0; distance < n; distance++) {
      let latest = NaN, index = 0;
      for (let at = distance * n; at < n * n; at += n + 1) {
        const r = relative[at];
        if (r !== latest && !Number.isNaN(r)) index = placeOf(r);
        latest = r;
        place[at] = index;
      }
    }
    return { keys: Float64Array.from(found.keys()), place };
  }

  return { ENCODINGS, SOFTMAX, range, adjusted, dots, ofDistance, allPairs, byDistance, scores };
})();
