"use strict";
// Every number that the page shows for a state, computed when it is first asked for and kept until the choice changes.
posenc.model = (() => {
  const TOKENS_ONLY = ["tokens", "at", "token", "line"];
  let latest = { key: "", model: null };

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
          const value = get.call(target);
          Object.defineProperty(target, name, { value });
          return value;
        },
      });
    }
    return target;
  }

  function made(s) {
    const entry = posenc.state.encoding(s.encoding), bias = posenc.biases.BIASES[s.encoding];
    const n = s.length, positions = posenc.codes.range(n);
    const kind = bias ? "distance" : entry.of, rotates = Boolean(entry.options.schedule);
    const waves = rotates || Boolean(entry.options.curve);
    const chosen = posenc.maps.MAPS[s.method] ? "map" : s.method === "none" ? "none" : "schedule";
    const method = chosen === "none" ? null : posenc.state.method(s.method);
    const refused = refusal(s, rotates, chosen);
    const map = chosen === "map" && !refused ? method : null;
    const mapOptions = map && posenc.state.arguments("method", s, map);
    const settings = { dim: s.dim, ...posenc.state.arguments("encoding", s, entry) };
    const plain = waves ? frequencies(s, settings, rotates, null) : null;
    const turned = chosen === "schedule" && !refused ? frequencies(s, settings, rotates, method) : plain;
    const of = found => (found ? { ...settings, ...found } : settings);
    const kernel = entry.kernel || null;
    const changed = Boolean(map) || turned !== plain;

    return lazily({ state: s, entry, kind, rotates, waves, refused, map, n, positions, plain, turned, changed, kernel }, {
      codes: () => (kind === "position" ? entry.codes(positions, of(turned)) : null),
      relative() {
        return kind === "distance" || rotates ? posenc.maps.grid(map && s.method, n, mapOptions || {}) : null;
      },
      products() {
        if (kind === "nothing") return null;
        if (kind === "distance") return toeplitz(this.ofHead, n);
        if (map) return kernel ? mapped(this.relative, kernel, of(turned)) : null;
        if (kernel) return posenc.codes.ofDistance(kernel(positions, of(turned)));
        return s.encoding === "xpos" ? null : posenc.codes.dots(this.codes, n, s.dim);
      },
      decay() {
        if (kind !== "position" || !this.products) return null;
        if (kernel && !map) return { mean: kernel(positions, of(turned)), spread: new Float64Array(n) };
        return posenc.codes.byDistance(this.products, n);
      },
      decayPlain: () => (kernel && changed ? kernel(positions, of(plain)) : null),
      wavelengths: () => turned && posenc.frequencies.wavelengths(turned.invFreq),
      wavelengthsPlain: () => (plain && turned !== plain ? posenc.frequencies.wavelengths(plain.invFreq) : null),
      heads: () => bias && bias.heads(s.heads, biasOptions(settings, s)),
      bias() {  // (heads, n): what a query adds to its score with a key so many positions before it
        if (!bias) return null;
        const first = positions.map(distance => bias.bias(0, distance, biasOptions(settings, s)));
        const found = new Float64Array(s.heads * n);
        this.heads.forEach((weight, head) => first.forEach((value, at) => {
          found[head * n + at] = (value * weight) / this.heads[0];
        }));
        return found;
      },
      ofHead() {  // of the head shown, for distances 1-n .. n-1
        const at = Float64Array.from({ length: 2 * n - 1 }, (_, index) => index - n + 1);
        return at.map(distance => bias.bias(s.head - 1, distance, biasOptions(settings, s)));
      },
      codesAt: () => at => (kind === "position" ? entry.codes(at, of(turned)) : null),
      score: () => (query, key) => {  // of two positions; NaN where the key is hidden, null where there is none
        if (kind === "nothing") return 0;
        if (kind === "distance") return bias.bias(s.head - 1, query - key, biasOptions(settings, s));
        const [late, early] = [Math.max(query, key), Math.min(query, key)];
        if (kernel) return kernel([map ? map.of(mapOptions)(late, early) : late - early], of(turned))[0];
        if (s.encoding === "xpos") return null;
        return posenc.codes.dots(entry.codes([query, key], of(turned)), 2, s.dim)[1];
      },
      scoredAt: () => (query, key) => {
        const [late, early] = [Math.max(query, key), Math.min(query, key)];
        return map ? map.of(mapOptions)(late, early) : late - early;
      },
    });
  }

  function biasOptions(settings, s) {
    return { ...settings, num_heads: s.heads };
  }

  function refusal(s, rotates, chosen) {
    if (chosen === "none") return "";
    if (!rotates) return "Extension methods change what turns queries and keys: RoPE and its kin.";
    if (chosen === "map" && s.encoding === "xpos") return "Position maps are shown for encodings whose queries and keys turn alike.";
    if (chosen === "schedule" && s.curve !== "geometric") return "Frequency schedules start from θ = base^−t; choose that curve to see one.";
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
    return settings.fraction === undefined ? found : posenc.frequencies.fastest(found, settings.fraction);
  }

  function toeplitz(values, n) {
    const found = new Float64Array(n * n);
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) found[i * n + j] = values[i - j + n - 1];
    return found;
  }

  function mapped(relative, kernel, settings) {  // the product at each pair's relative position; hidden ones stay NaN
    const places = new Map();
    for (const r of relative) if (!Number.isNaN(r) && !places.has(r)) places.set(r, places.size);
    const products = kernel(Float64Array.from(places.keys()), settings);
    return relative.map(r => (Number.isNaN(r) ? NaN : products[places.get(r)]));
  }

  return { of };
})();
