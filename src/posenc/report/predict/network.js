"use strict";
// posenc.lab.transformer in the browser: a causal Transformer that reads a text some bytes at a time, as a cache lets it. What
// stands before a byte does not change when bytes follow or are replaced, so only those from the first change on are read.
posenc.network = (() => {
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", ZERO = 32;
  const digits = new Int8Array(128).fill(-128);
  [...DIGITS].forEach((digit, at) => { digits[digit.charCodeAt(0)] = at - ZERO; });
  const BYTES = 256;

  // ------------------------------------------------------------------ weights

  // A matrix as it is stored: a digit of base 64 for each weight, in units of its row's scale.
  function matrix({ rows, scales, digits: text }) {
    const scale = numbers(scales), columns = text.length / rows, found = new Float32Array(text.length);
    for (let row = 0, at = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, at++) found[at] = scale[row] * digits[text.charCodeAt(at)];
    }
    return found;
  }

  function numbers(text) {
    return new Float32Array(Uint8Array.from(atob(text), one => one.charCodeAt(0)).buffer);
  }

  function model({ matrices, vectors, ...about }) {
    const every = (found, of) => Object.fromEntries(Object.entries(found).map(([name, stored]) => [name, of(stored)]));
    return { ...about, matrices: every(matrices, matrix), vectors: every(vectors, numbers) };
  }

  // ------------------------------------------------------------------ arithmetic

  // y[t, o] = the sum over i of x[t, i] w[o, i], for n rows of x and m of w, each with where it begins and how far its rows are
  // apart. Four rows of each at once, so that a number is read once for four products; past the last row it is the last again.
  function multiply(x, xAt, xRow, n, w, wAt, wRow, m, length, y, yAt, yRow) {
    for (let t = 0; t < n; t += 4) {
      const rows = Math.min(4, n - t);
      const a0 = xAt + t * xRow, b0 = rows > 1 ? a0 + xRow : a0, c0 = rows > 2 ? b0 + xRow : b0, d0 = rows > 3 ? c0 + xRow : c0;
      for (let o = 0; o < m; o += 4) {
        const columns = Math.min(4, m - o);
        let p = wAt + o * wRow, q = columns > 1 ? p + wRow : p, r = columns > 2 ? q + wRow : q, s = columns > 3 ? r + wRow : r;
        let a = a0, b = b0, c = c0, d = d0;
        let ap = 0, aq = 0, ar = 0, as = 0, bp = 0, bq = 0, br = 0, bs = 0;
        let cp = 0, cq = 0, cr = 0, cs = 0, dp = 0, dq = 0, dr = 0, ds = 0;
        for (let i = 0; i < length; i++) {
          const A = x[a++], B = x[b++], C = x[c++], D = x[d++], P = w[p++], Q = w[q++], R = w[r++], S = w[s++];
          ap += A * P; aq += A * Q; ar += A * R; as += A * S;
          bp += B * P; bq += B * Q; br += B * R; bs += B * S;
          cp += C * P; cq += C * Q; cr += C * R; cs += C * S;
          dp += D * P; dq += D * Q; dr += D * R; ds += D * S;
        }
        let at = yAt + t * yRow + o;
        four(y, at, columns, ap, aq, ar, as);
        if (rows > 1) four(y, at += yRow, columns, bp, bq, br, bs);
        if (rows > 2) four(y, at += yRow, columns, cp, cq, cr, cs);
        if (rows > 3) four(y, at += yRow, columns, dp, dq, dr, ds);
      }
    }
  }

  function four(y, at, count, a, b, c, d) {
    y[at] = a;
    if (count > 1) y[at + 1] = b;
    if (count > 2) y[at + 2] = c;
    if (count > 3) y[at + 3] = d;
  }

  function normed(x, n, width, weight, epsilon, found) {  // RMSNorm
    for (let t = 0; t < n; t++) {
      let squares = 0;
      for (let i = t * width; i < (t + 1) * width; i++) squares += x[i] * x[i];
      const scale = 1 / Math.sqrt(squares / width + epsilon);
      for (let i = 0; i < width; i++) found[t * width + i] = x[t * width + i] * scale * weight[i];
    }
  }

  function softmax(row, from, until) {
    let top = -Infinity, sum = 0;
    for (let at = from; at < until; at++) if (row[at] > top) top = row[at];
    for (let at = from; at < until; at++) sum += row[at] = Math.exp(row[at] - top);
    for (let at = from; at < until; at++) row[at] /= sum;
  }

  // ------------------------------------------------------------------ reading

  // A text of at most `most` bytes, read by a model. Where its positions are: rotation {invFreq, attentionFactor} and a map,
  // (i, j) -> relative position, NaN where hidden, either null; codes: (most, dim), or null.
  function reading(model, most, chunk = 16) {
    const { layers, heads, width, dim, hidden, epsilon, scale } = model, inner = heads * width;
    const weights = (layer, name) => model.matrices[`blocks.${layer}.${name}.weight`];
    const norms = (layer, name) => model.vectors[`blocks.${layer}.${name}_norm.weight`];
    const room = (rows, columns) => new Float32Array(rows * columns);
    const each = () => Array.from({ length: layers }, () => room(most, inner));
    const queries = each(), keys = each(), values = each();  // values: a row for each channel
    const x = room(chunk, dim), h = room(chunk, dim), y = room(chunk, inner), fresh = room(chunk, inner);
    const gate = room(chunk, hidden), up = room(chunk, hidden), scores = room(chunk, most);
    const places = new Int32Array(chunk * most), turned = new Float64Array(width);
    const logits = room(most, BYTES), total = new Float64Array(most);  // of each byte read: the log of the sum of exp
    const bias = model.vectors.bias, farthest = bias && bias.length / heads;
    let positions = {}, turns = [], placeOf = new Map(), tokens = new Uint8Array(0), done = 0, known = 0;

    // Read from the start, at these positions; what was found is known until it is found anew.
    function place(found) {
      positions = found;
      turns = [];
      placeOf = new Map();
      known = Math.max(known, done);
      done = 0;
    }

    function read(text) {  // instead of what it had
      let same = 0;
      while (same < text.length && text[same] === tokens[same]) same++;
      tokens = text.slice(0, most);
      done = Math.min(done, same);
      known = Math.min(known, same);
    }

    function turn(of, at, angles) {  // a query or key at its position, in place
      const { invFreq, attentionFactor } = positions.rotation, half = width / 2;
      for (let c = 0; c < half; c++) {
        const angle = angles * invFreq[c], cos = Math.cos(angle) * attentionFactor, sin = Math.sin(angle) * attentionFactor;
        for (let head = 0; head < heads; head++) {
          const a = at + head * width + c, b = a + half, p = of[a], q = of[b];
          of[a] = p * cos - q * sin;
          of[b] = p * sin + q * cos;
        }
      }
    }

    // Where a map scores queries from..from+n-1: for each pair the number of a rotation, -1 where the key is hidden.
    function locate(from, n) {
      if (!positions.map) return;
      for (let t = 0; t < n; t++) {
        for (let j = 0; j <= from + t; j++) {
          const r = positions.map(from + t, j);
          if (!Number.isNaN(r) && !placeOf.has(r)) {
            placeOf.set(r, turns.length);
            const { invFreq, attentionFactor: times } = positions.rotation;
            turns.push([Math.cos, Math.sin].map(of => Float64Array.from(invFreq, theta => of(r * theta) * times ** 2)));
          }
          places[t * most + j] = Number.isNaN(r) ? -1 : placeOf.get(r);
        }
      }
    }

    // The scores of queries from..from+n-1 of a head with the keys that are not after them.
    function score(layer, head, from, n) {
      const q = queries[layer], k = keys[layer], at = from * inner + head * width;
      if (positions.map) mapped(q, k, head, from, n);
      else multiply(q, at, inner, n, k, head * width, inner, from + n, width, scores, 0, most);
      for (let t = 0; t < n; t++) {
        const row = t * most, last = from + t;
        for (let j = 0; j <= last; j++) scores[row + j] *= scale;
        if (bias) for (let j = 0; j <= last; j++) scores[row + j] += bias[head * farthest + last - j];
        softmax(scores, row, row + last + 1);
        scores.fill(0, row + last + 1, row + from + n);
      }
    }

    function mapped(q, k, head, from, n) {  // a query is turned anew for each new relative position
      const half = width / 2;
      for (let t = 0; t < n; t++) {
        const at = (from + t) * inner + head * width;
        for (let j = 0, latest = -1; j <= from + t; j++) {
          const found = places[t * most + j], key = j * inner + head * width;
          if (found < 0) {
            scores[t * most + j] = -Infinity;
            continue;
          }
          if (found !== latest) {
            const [cos, sin] = turns[found];
            for (let c = 0; c < half; c++) {
              turned[c] = q[at + c] * cos[c] - q[at + half + c] * sin[c];
              turned[half + c] = q[at + c] * sin[c] + q[at + half + c] * cos[c];
            }
            latest = found;
          }
          let sum = 0;
          for (let c = 0; c < width; c++) sum += turned[c] * k[key + c];
          scores[t * most + j] = sum;
        }
      }
    }

    function advance() {  // over the next bytes, as many as a chunk has
      const from = done, n = Math.min(chunk, tokens.length - from), linear = (of, size, weight, out, found, at = 0) =>
        multiply(of, 0, size, n, weight, 0, size, out, size, found, at, out);
      if (n <= 0) return;
      const embedding = model.matrices["embedding.weight"], unit = Math.sqrt(dim);
      for (let t = 0; t < n; t++) {
        for (let i = 0; i < dim; i++) {
          x[t * dim + i] = embedding[tokens[from + t] * dim + i] * unit + (positions.codes ? positions.codes[(from + t) * dim + i] : 0);
        }
      }
      locate(from, n);
      for (let layer = 0; layer < layers; layer++) {
        attend(layer, from, n, linear);
        normed(x, n, dim, norms(layer, "mlp"), epsilon, h);
        linear(h, dim, weights(layer, "mlp.gate"), hidden, gate);
        linear(h, dim, weights(layer, "mlp.up"), hidden, up);
        for (let i = 0; i < n * hidden; i++) gate[i] *= up[i] / (1 + Math.exp(-gate[i]));
        linear(gate, hidden, weights(layer, "mlp.down"), dim, h);
        for (let i = 0; i < n * dim; i++) x[i] += h[i];
      }
      normed(x, n, dim, model.vectors["norm.weight"], epsilon, h);
      linear(h, dim, embedding, BYTES, logits, from * BYTES);
      for (let t = from; t < from + n; t++) total[t] = logSum(t);
      done += n;
    }

    function attend(layer, from, n, linear) {
      normed(x, n, dim, norms(layer, "attention"), epsilon, h);
      linear(h, dim, weights(layer, "attention.query"), inner, queries[layer], from * inner);
      linear(h, dim, weights(layer, "attention.key"), inner, keys[layer], from * inner);
      linear(h, dim, weights(layer, "attention.value"), inner, fresh);
      for (let t = 0; t < n; t++) {
        for (let i = 0; i < inner; i++) values[layer][i * most + from + t] = fresh[t * inner + i];
        if (positions.rotation && !positions.map) {
          turn(queries[layer], (from + t) * inner, from + t);
          turn(keys[layer], (from + t) * inner, from + t);
        }
      }
      for (let head = 0; head < heads; head++) {
        score(layer, head, from, n);
        multiply(scores, 0, most, n, values[layer], head * width * most, most, width, from + n, y, head * width, inner);
      }
      linear(y, inner, weights(layer, "attention.out"), dim, h);
      for (let i = 0; i < n * dim; i++) x[i] += h[i];
    }

    function logSum(t) {
      let top = -Infinity, sum = 0;
      for (let i = t * BYTES; i < (t + 1) * BYTES; i++) if (logits[i] > top) top = logits[i];
      for (let i = t * BYTES; i < (t + 1) * BYTES; i++) sum += Math.exp(logits[i] - top);
      return top + Math.log(sum);
    }

    return {
      model, place, read, advance,
      get tokens() { return tokens; },
      get done() { return done; },
      get finished() { return done >= tokens.length; },
      // What byte t cost, in nats: NaN where it has not been read, and of the first, which nothing predicts.
      loss: t => (t > 0 && t <= Math.max(done, known) && t < tokens.length ? total[t - 1] - logits[(t - 1) * BYTES + tokens[t]] : NaN),
      // The probability of every byte after byte t.
      next: t => Float64Array.from(logits.subarray(t * BYTES, (t + 1) * BYTES), one => Math.exp(one - total[t])),
      // Where byte t looks: a row of t + 1 weights for each head of each layer.
      attention(t) {
        locate(t, 1);
        return Array.from({ length: layers * heads }, (_, row) => {
          score(Math.floor(row / heads), row % heads, t, 1);
          return scores.slice(0, t + 1);
        });
      },
    };
  }

  return { model, reading };
})();
