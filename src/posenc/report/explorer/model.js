"use strict";
// Every number that the page shows for a state, computed when it is first read and cached until the choice changes.
posenc.model = (() => {
  const { t } = posenc.language;
  const TOKENS_ONLY = ["tokens", "at", "token", "key", "line", "position_only", "step"];
  let latest = { key: "", model: null }, grid = { key: "", values: null, seen: {} };

  function of(state) {
    const shown = Object.fromEntries(Object.entries(state).filter(([name]) => !TOKENS_ONLY.includes(name)));
    const key = JSON.stringify(shown);
    if (key !== latest.key) latest = { key, model: made(shown) };
    return latest.model;
  }

  function lazily(target, getters) {
    for (const [name, get] of Object.entries(getters)) {
      Object.defineProperty(target, name, {
        configurable: true,
        get() {
          const value = get();
          Object.defineProperty(target, name, { value });
          return value;
        },
      });
    }
    return target;
  }

  function made(s) {
    const entry = posenc.state.entry(s), bias = posenc.biases.BIASES[s.encoding];
    const n = s.length, positions = posenc.codes.range(n);
    const kind = bias ? "distance" : entry.of, rotates = Boolean(entry.options.schedule), hides = posenc.maps.VISIBLE[s.encoding];
    const waves = rotates || Boolean(entry.options.curve);
    const chosen = posenc.maps.MAPS[s.method] ? "map" : s.method === "none" ? "none" : "schedule";
    const method = chosen === "none" ? null : posenc.state.method(s.method);
    const refused = refusal(s, rotates, chosen);
    const mapped = chosen === "map" && !refused, map = mapped ? method : hides || null;
    const mapOptions = map && posenc.state.arguments(mapped ? "method" : "encoding", s, map);
    const settings = { dim: s.dim, ...posenc.state.arguments("encoding", s, entry) };
    const schedule = chosen === "schedule" && !refused ? method : null;
    const of = found => (found ? { ...settings, ...found } : settings);
    const kernel = entry.kernel || null;
    const changed = Boolean(mapped || schedule), causal = Boolean(mapped) || entry.causal || !s.bidirectional;
    const ofPair = (i, j) => (j > i ? NaN : target.added(s.head - 1, i - j, i));
    const signed = sign => positions.map(distance => sign * distance);

    const target = { state: s, kind, rotates, waves, refused, map, mapped, causal, measured: entry.measured, bucketed: Boolean(entry.bucketed), n, kernel, changed };
    return lazily(target, {
      plain: () => (waves ? frequencies(s, settings, rotates, null) : null),
      turned: () => (schedule ? frequencies(s, settings, rotates, schedule) : target.plain),
      added: () => bias.of({ ...posenc.state.arguments("encoding", s, bias), num_heads: s.heads }),
      codes: () => (kind === "position" ? entry.codes(positions, of(target.turned)) : null),
      relative() {
        return kind === "distance" || rotates || hides ? distancesOf(map && (mapped ? s.method : s.encoding), n, mapOptions || {}) : null;
      },
      alongDiagonals() {  // products that the distance alone decides: of 0 .. n-1, and of 0 .. 1-n; else null
        if (kind === "distance" && !bias.ofQuery) return [1, -1].map(sign => signed(sign).map(distance => target.added(s.head - 1, distance)));
        return kernel && !map ? [1, -1].map(sign => kernel(signed(sign), of(target.turned))) : null;
      },
      products() {
        if (kind === "nothing") return null;
        if (map) return posenc.codes.scores(target.relative, n, distances => kernel(distances, of(target.turned)));
        if (kind === "distance" && !target.alongDiagonals) return Float64Array.from({ length: n * n }, (_, at) => ofPair(Math.floor(at / n), at % n));
        return target.alongDiagonals ? posenc.codes.ofDistance(...target.alongDiagonals) : posenc.codes.allPairs(s.encoding, n, of(target.turned));
      },
      product() {  // of a query and a key that it sees, else NaN; `products` is not computed where it is not needed
        const { alongDiagonals: along } = target, at = along ? (i, j) => (j <= i ? along[0][i - j] : along[1][j - i]) : (i, j) => target.products[i * n + j];
        return causal ? (i, j) => (j > i ? NaN : at(i, j)) : at;
      },
      codesTop: () => greatest(target.codes),
      productsTop: () => (target.alongDiagonals ? Math.max(...target.alongDiagonals.map(greatest)) : greatest(target.products)),
      ofDistance() {
        return target.alongDiagonals ? { mean: target.alongDiagonals[0], spread: new Float64Array(n) } : posenc.codes.byDistance(target.products, n);
      },
      seen: () => (target.relative && seenOf(target.relative, n, s.trained)),
      decay() {
        return kind === "position" ? target.ofDistance : null;
      },
      decayPlain: () => (kernel && changed ? kernel(positions, of(target.plain)) : null),
      wavelengths: () => target.turned && posenc.frequencies.wavelengths(target.turned.invFreq),
      wavelengthsPlain: () => (schedule ? posenc.frequencies.wavelengths(target.plain.invFreq) : null),
      bias() {  // (heads, n): what a query adds to its score with a key so many positions before it
        return bias ? posenc.biases.rows(s.encoding, positions, { ...settings, num_heads: s.heads }, n - 1) : null;
      },
      codesAt: () => at => (kind === "position" ? entry.codes(at, of(target.turned)) : null),
      kernelAt: () => distance => kernel([distance], of(target.turned))[0],
      softmax: () => entry.softmax(posenc.state.arguments("encoding", s, entry)),
      turn: () => (vector, position, sign) => entry.turn(vector, position, of(target.turned), sign),
      // The relative position that a query sees a key at; NaN where it is hidden. Without a map, keys after the query are seen.
      seenAt() {
        const relative = map && map.of(mapOptions);
        return (query, key) => (causal && key > query ? NaN : map ? relative(query, key) : query - key);
      },
      stretch() {  // of a schedule: the least and the greatest share of its speed that a pair has left
        const shares = schedule ? Array.from(target.turned.invFreq, (theta, c) => theta / target.plain.invFreq[c]) : [1];
        return { low: Math.min(...shares), high: Math.max(...shares) };
      },
      // Whether training lacked a relative position: a rotation's, if it lacked the angle of a pair; T5's, if it lacked the bucket.
      untrained: () => relative => {
        const away = Math.abs(relative);
        if (rotates) return target.turned.invFreq.some((_, c) => newAngle(target, c, away));
        if (kind !== "distance") return false;
        if (s.encoding !== "t5") return away >= s.trained;
        const side = Math.sign(relative), bucket = target.added(0, relative);
        return away >= s.trained && bucket !== target.added(0, side * (s.trained - 1));
      },
    });
  }

  // Whether pair c stands at an angle that it did not have within the training length, where it turned as trained. A pair that
  // finished a turn there had every angle.
  function newAngle({ turned, plain, state }, c, away) {
    const finished = plain.invFreq[c] * state.trained >= 2 * Math.PI;
    return !finished && (away + 1) * turned.invFreq[c] > (1 + 1e-9) * state.trained * plain.invFreq[c];
  }

  function refusal(s, rotates, chosen) {
    if (chosen === "none") return "";
    if (!rotates) return t`Extension methods change what turns queries and keys: RoPE and its variants.`;
    if (chosen === "schedule" && s.curve !== "geometric") return t`Frequency schedules start from θ = base^−t; choose that curve to see one.`;
    return "";
  }

  function frequencies(s, settings, rotates, schedule) {
    if (!rotates) return { invFreq: posenc.frequencies.curve({ ...settings, dim: s.dim }), attentionFactor: 1 };
    const third = Math.max(2, Math.floor(s.dim / 6) * 2);
    const width = settings.rotary_dim ?? (s.encoding === "decoupled_rope" ? third : s.dim);
    const { base, curve, exponent } = s;
    const found = schedule
      ? schedule.make(width, base, posenc.state.arguments("method", s, schedule))
      : { invFreq: posenc.frequencies.curve({ dim: width, base, curve, exponent }), attentionFactor: 1 };
    return posenc.codes.adjusted(found, settings);
  }

  // Kept while other numbers change, since they are large and few choices change them.
  function distancesOf(...given) {
    const key = JSON.stringify(given);
    if (key !== grid.key) grid = { key, values: posenc.maps.grid(...given), seen: {} };
    return grid.values;
  }

  function seenOf(relative, n, trained) {
    if (relative !== grid.values) return distances(relative, n, trained);
    return (grid.seen[trained] ??= distances(relative, n, trained));
  }

  function greatest(values) {  // in size, of those that are numbers
    let top = 0;
    for (let at = 0; at < values.length; at++) {
      const size = Math.abs(values[at]);
      if (size > top) top = size;
    }
    return top;
  }

  // Of the pairs with no key after its query: the largest distance, the shares of those beyond training and of hidden ones.
  let counted = {};
  function distances(relative, n, trained) {
    if (counted.relative !== relative || counted.trained !== trained) counted = { relative, trained, found: count(relative, n, trained) };
    return counted.found;
  }

  function count(relative, n, trained) {
    let top = 0, past = 0, seen = 0;
    for (let i = 0; i < n; i++) {
      for (let at = i * n; at <= i * n + i; at++) {
        const r = relative[at];
        if (Number.isNaN(r)) continue;
        seen += 1;
        if (r > top) top = r;
        if (r >= trained) past += 1;
      }
    }
    return { top, past: past / seen, hidden: 1 - seen / ((n * (n + 1)) / 2) };
  }

  return { of, newAngle };
})();
