"use strict";
// The biases of the distance alone in the browser: what a head adds to the score of a query and a key; the distance is
// the query's position minus the key's. Where the library learns weights, options of their own hold them, in the middle
// of where they start.
var posenc = posenc || {};

posenc.biases = (() => {
  const { number, integer, flag, choice, required, learned, trained, check, pick, lookup } = posenc.options;

  const aCount = (name, value) => check(name, value, Number.isInteger(value) && value >= 1, "must be at least 1");
  const each = (count, of) => Float64Array.from({ length: count }, (_, index) => of(index));

  // ALiBi's slopes, for any number of heads (Press et al. 2022, section 3): powers of two, and for other counts every
  // second slope of the next power, as in the authors' code.
  function alibiSlopes(numHeads) {
    const lower = 2 ** Math.floor(Math.log2(aCount("num_heads", numHeads)));
    const geometric = (h, count) => 2 ** ((-8 * (h + 1)) / count);
    return each(numHeads, h => (h < lower ? geometric(h, lower) : geometric(2 * (h - lower), 2 * lower)));
  }

  // T5's bucket of a distance (Raffel et al. 2020, section 2.1): half of a direction's buckets hold one distance each,
  // the other half grow logarithmically. The library's function takes key minus query; here all is query minus key.
  function t5Bucket(distance, { bidirectional = true, num_buckets: buckets = 32, max_distance: longest = 128 } = {}) {
    const perSide = bidirectional ? Math.floor(buckets / 2) : buckets;
    const exact = Math.floor(perSide / 2);
    const rule = `needs at least ${bidirectional ? 4 : 2} buckets and max_distance above ${exact}`;
    check("num_buckets", buckets, exact >= 1 && longest > exact, `max_distance=${longest}: ${rule}`);
    const side = bidirectional && distance < 0 ? perSide : 0;
    const away = bidirectional ? Math.abs(distance) : Math.max(distance, 0);
    if (away < exact) return side + away;
    // float32 on purpose: T5's own logarithms are, and the edges are to be the same
    const { fround, log } = Math;
    const growth = fround(fround(log(fround(away / exact))) / fround(log(longest / exact)));
    return side + Math.min(exact + Math.trunc(fround(growth * (perSide - exact))), perSide - 1);
  }

  // ------------------------------------------------------------------ formulas: options -> (head, distance) -> bias

  // Press et al. 2022, section 3.
  function alibi({ num_heads: numHeads }) {
    const slopes = alibiSlopes(numHeads);
    return (head, distance) => -slopes[head] * Math.abs(distance);
  }

  // Chi et al. 2022: -p log(1 + a r), or -a r^p. In use p and a are clamped to their bounds.
  function kerple({ kind, bound, p, a }) {
    check("bound", bound, bound > 0 && bound < 1, "must lie between 0 and 1, where a starts");
    const power = Math.min(Math.max(p ?? (bound + 2) / 2, bound), kind === "power" ? 2 : Infinity);
    const slope = Math.max(a ?? (bound + 1) / 2, bound);
    if (kind === "log") return (head, distance) => -power * Math.log1p(slope * Math.abs(distance));
    return (head, distance) => -slope * Math.abs(distance) ** power;
  }

  // Chi et al. 2023: products of sinusoidal codes, flatter from head to head.
  function sandwich({ num_heads: numHeads, dim_bar: dim, base }) {
    const theta = posenc.frequencies.curve({ dim, base });
    const flatter = flatness(numHeads);
    return (head, distance) => theta.reduce((sum, speed) => sum + Math.cos(distance * speed), 0) * flatter[head];
  }

  const flatness = numHeads => each(aCount("num_heads", numHeads), head => numHeads / (8 * (head + 1)));

  // (sin, cos)(pi r / train_length), combined by two weights per head.
  function sines({ train_length: longest, sin, cos }) {
    const speed = Math.PI / aCount("train_length", longest);
    return (head, distance) => sin * Math.sin(distance * speed) + cos * Math.cos(distance * speed);
  }

  const t5 = options => (options.shows === "trained" ? t5Trained() : (head, distance) => t5Bucket(distance, options));

  function t5Trained() {  // in a causal model
    const table = trained("t5/table"), count = table.length / HEADS;
    return (head, distance) => (distance < 0 ? NaN : table[head * count + t5Bucket(distance, { bidirectional: false, num_buckets: count })]);
  }

  // Li et al. 2024: a learned function of psi(distance) / psi(query's position, at least L), psi(x) = ln(|c x| + 1), of the first layer
  // as trained. Where no query is given, it is one within L.
  function fire() {
    const of = name => trained(`fire/${name}`), hidden = of("mlp.bias_in").length / 2, eps = 1e-6;
    const [c] = of("c"), least = Math.abs(of("multiple")[0] * (128 / 4)), psi = x => Math.log1p(Math.abs(c * x));
    const [into, shift, out, last] = ["mlp.weight_in", "mlp.bias_in", "mlp.weight_out", "mlp.bias_out"].map(of);
    return (head, distance, query = 0) => {
      const share = psi(distance) / (psi(Math.max(query, least)) + eps);
      let sum = last[head];
      for (let k = 0; k < hidden; k++) sum += out[head * hidden + k] * Math.max(into[k] * share + shift[k], 0);
      return sum;
    };
  }

  // The mean of what position adds to the scores of a trained model's first layer, at each distance (docs/website/trained.py).
  const measured = name => () => {
    const means = trained(`${name}/distance`), farthest = means.length / HEADS;
    return (head, distance) => (distance >= 0 && distance < farthest ? means[head * farthest + distance] : NaN);
  };

  const HEADS = 4;  // of the models that were trained

  // ------------------------------------------------------------------ the registry

  const MEASURED = Object.keys(posenc.trained).filter(key => key.endsWith("/distance")).map(key => key.split("/")[0]);
  const SUMMARY = "what it adds depends on the words; here its mean at each distance, in a model of two layers that was trained with it";
  const LIMITS = { heads: [HEADS, HEADS], trained: [128, 128], length: [8, 96], line: [12, 96] };

  const ones = numHeads => each(aCount("num_heads", numHeads), () => 1);

  // heads: what tells the heads apart, a factor of the formula each, or null where each has numbers of its own. bias: of one head and distance, with settings
  // {num_heads, ...options}.
  const BIASES = registered({
    alibi: ["a slope per head times the distance, nothing learned", {}, alibiSlopes, alibi],
    kerple: ["learned decay, -p log(1 + a r) or -a r^p; p and a start at random, here in the middle of it", {
      kind: choice("log", ["log", "power"], "-p log(1 + a r), or -a r^p"),
      bound: number(0.01, 0.001, 0.5, "the least value of p and a"),
      p: learned(number(null, 0.01, 4, "weight of the logarithm, or exponent")),
      a: learned(number(null, 0.01, 4, "slope")),
    }, ones, kerple],
    sandwich: ["products of sinusoidal codes, flatter from head to head", {
      dim_bar: integer(128, 2, 512, "width of the codes"), base: number(10000, 1, 1e8, "of their frequencies"),
    }, flatness, sandwich],
    sines: ["a learned combination of sin and cos of the distance over the training length; here the cosine", {
      train_length: required(integer(512, 1, 4096, "the longest sequence")),
      sin: learned(number(0, -2, 2, "weight of the sine")), cos: learned(number(1, -2, 2, "weight of the cosine")),
    }, ones, sines],
    t5: ["a learned number per head and bucket of distances; here that of a trained model, or the number of the bucket", {
      shows: learned(choice("bucket", ["bucket", "trained"], "the bucket's number, or what a causal model of four heads learned for it")),
      bidirectional: flag(true, "keys after the query have separate buckets"),
      num_buckets: integer(32, 2, 128, "of both directions together"),
      max_distance: integer(128, 2, 4096, "from here on all distances share a bucket"),
    }, null, t5, { as: ({ shows }) => (shows === "trained" ? { causal: true, fixed: ["bidirectional", "num_buckets", "max_distance"], limits: { heads: [HEADS, HEADS], trained: [128, 128] } } : { bucketed: true }) }],
    fire: ["a learned function of the distance over the query's position, after training; curves are those of a query at the end", {}, null, fire, {
      ofQuery: true, limits: { heads: [HEADS, HEADS], trained: [128, 128], length: [8, 256] },
    }],
    ...Object.fromEntries(MEASURED.map(name => [name, [SUMMARY, {}, null, measured(name), { measured: true, limits: LIMITS }]])),
  });

  // A bias is made once from its settings, `of(settings)`, for many distances.
  function registered(entries) {
    return Object.fromEntries(Object.entries(entries).map(([name, [summary, options, heads, formula, more = {}]]) => {
      const of = given => {
        const numHeads = aCount("num_heads", given.num_heads);
        const bias = formula({ ...pick(options, given), num_heads: numHeads });
        const known = head => Number.isInteger(head) && head >= 0 && head < numHeads;
        return (head, distance, query) => bias(check("head", head, known(head), `there are ${numHeads} heads`), distance, query);
      };
      return [name, { summary, options, heads, of, ...more, bias: (head, distance, settings) => of(settings)(head, distance) }];
    }));
  }

  // The bias of every head (rows) and distance, (num_heads, n): that of the first, times what tells the others apart. query: the
  // position that one needs which depends on it.
  function rows(name, distances, settings, query) {
    const { of, heads } = lookup("bias", BIASES, name);
    const bias = of(settings), n = distances.length, count = settings.num_heads;
    if (!heads) return each(count * n, at => bias(Math.floor(at / n), distances[at % n], query));
    const factors = heads(count);
    const first = each(n, at => bias(0, distances[at]));
    return each(factors.length * n, at => (first[at % n] * factors[Math.floor(at / n)]) / factors[0]);
  }

  // The same as codes of distances, (n, num_heads), as posenc.analysis.codes_of gives them.
  for (const [name, { summary, options, limits = {}, measured: isMeasured = false, ofQuery = false, as }] of Object.entries(BIASES)) {
    const codes = (distances, settings) => {
      const found = rows(name, distances, settings), n = distances.length, heads = settings.num_heads;
      return each(heads * n, at => found[(at % heads) * n + Math.floor(at / heads)]);
    };
    const { softmax } = posenc.codes.ENCODINGS.none;
    posenc.codes.ENCODINGS[name] = { summary, of: "distance", options, limits, causal: isMeasured || ofQuery, measured: isMeasured, as, codes, softmax, kernel: null };
  }

  // Encodings that only hide keys: of the maps that do.
  for (const [name, { summary, options }] of Object.entries(posenc.maps.VISIBLE)) {
    posenc.codes.ENCODINGS[name] = { ...posenc.codes.ENCODINGS.none, summary, options, causal: true };
  }

  return { BIASES, rows, alibiSlopes, t5Bucket };
})();
