"use strict";
// What a query gives to each key of the line: words as vectors, with the encoding applied, then scores, then the softmax.
posenc.words = (() => {
  const known = new Map();

  // A word's vector: random numbers that follow from its letters alone, of length sqrt(dim) / 2. Capitals do not count.
  function vector(word, dim) {
    const name = `${dim} ${word.toLowerCase()}`;
    if (!known.has(name)) {
      if (known.size > 1000) known.clear();
      const normal = normals(hash(word.toLowerCase())), found = Float64Array.from({ length: dim }, normal);
      const size = Math.sqrt(found.reduce((sum, x) => sum + x * x, 0));
      known.set(name, found.map(x => (x * Math.sqrt(dim)) / 2 / size));
    }
    return known.get(name);
  }

  function hash(word) {  // FNV-1a, 32 bits, of the text's UTF-8
    return new TextEncoder().encode(word).reduce((found, byte) => Math.imul(found ^ byte, 0x01000193) >>> 0, 0x811c9dc5) || 1;
  }

  function normals(seed) {  // xorshift (Marsaglia 2003), by Box and Muller
    let at = seed;
    const uniform = () => {
      at ^= at << 13;
      at ^= at >>> 17;
      at ^= at << 5;
      return ((at >>> 0) + 0.5) / 2 ** 32;
    };
    for (let k = 0; k < 16; k++) uniform();  // seeds that are alike begin alike
    return () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  }

  function dot(a, b) {
    let sum = 0;
    for (let k = 0; k < a.length; k++) sum += a[k] * b[k];
    return sum;
  }

  // A row for each token as a key of the chosen one: {position, distance, seen: the relative position that its score sees, bucket: T5's,
  // product, bias, score, weight, share: of the greatest weight among the other keys, hidden, past: training lacked what is seen}.
  function attention(state, model) {
    const { at, tokens, dim } = state, chosen = state.token - 1, query = at[chosen], { scale, sink, sticks, current } = model.softmax;
    const rows = at.map((position, index) => {
      const distance = query - position, seen = model.seenAt(query, position), hidden = Number.isNaN(seen) || (!current && index === chosen);
      const row = { position, distance, seen, hidden, past: !hidden && model.untrained(seen), bucket: null, bias: null };
      const product = hidden ? NaN : state.position_only ? alone(model, query, position, seen) : product_(model, tokens[chosen], tokens[index], query, position, seen);
      if (model.kind === "distance") {
        const added = model.added(state.head - 1, seen, query);
        if (model.bucketed) row.bucket = added;
        else row.bias = added;
      }
      const score = (scale(query) * product) / (state.encoding === "t5" ? 1 : Math.sqrt(dim)) + (row.bias || 0);
      return { ...row, product: model.kind === "distance" && state.position_only ? null : product, score };
    });
    if (sticks) broken(rows);
    else softmax(rows, sink);
    const most = Math.max(...rows.filter((_, index) => index !== chosen).map(row => row.weight), 0);
    rows.forEach((row, index) => { row.share = index === chosen || row.hidden ? null : row.weight / (most || 1); });
    return rows;
  }

  // sink: what something beside the keys scores, which takes its part of the weight.
  function softmax(rows, sink) {
    const seen = rows.filter(row => !row.hidden), top = Math.max(sink, ...seen.map(row => row.score));
    const total = seen.reduce((sum, row) => sum + Math.exp(row.score - top), Math.exp(sink - top));
    for (const row of rows) row.weight = row.hidden ? 0 : Math.exp(row.score - top) / total;
  }

  // Each key, from the nearest on, takes sigmoid(score) of what is left.
  function broken(rows) {
    let left = 1;
    for (const row of [...rows].sort((a, b) => a.distance - b.distance)) {
      const share = row.hidden ? 0 : 1 / (1 + Math.exp(-row.score));
      row.weight = left * share;
      left -= row.weight;
    }
  }

  // The dot product of two positions, whatever stands there.
  function alone(model, query, key, seen) {
    if (model.kind !== "position") return 0;
    return model.kernel ? model.kernelAt(seen) : dot(model.codesAt([query]), model.codesAt([key]));
  }

  // That of two words at two positions. T5 does not divide scores: its queries begin smaller by as much.
  function product_(model, asking, asked, query, key, seen) {
    const { dim, encoding } = model.state, [q, k] = [vector(asking, dim), vector(asked, dim)];
    if (model.rotates) return dot(model.turn(q, seen, 1), model.turn(k, 0, -1));
    if (model.kind !== "position") return dot(q, k) / (encoding === "t5" ? Math.sqrt(dim) : 1);
    const plus = (word, at) => model.codesAt([at]).map((code, c) => code + word[c]);
    return dot(plus(q, query), plus(k, key));
  }

  return { vector, attention };
})();
