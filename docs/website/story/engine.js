"use strict";
// stories15M, token after token: Llama's forward pass in one memory, by WebAssembly (kernel.wat) or by plain JavaScript; gpu.js does it
// by WebGPU. Runs in a worker, in a page and in tests. The rotations are posenc's, see website/story.py.
globalThis.posenc = globalThis.posenc || {};
posenc.engine = (() => {
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", ZERO = 32;
  const digits = new Int8Array(128);
  [...DIGITS].forEach((digit, at) => { digits[digit.charCodeAt(0)] = at - ZERO; });
  const PAGE = 65536;

  const decoded = text => Uint8Array.from(atob(text), one => one.charCodeAt(0));

  // Where the token at t stands by a method, {inv_freq, attention_factor, far}; far: null, or, for keys at `nearest` tokens and more
  // behind a query, where queries and keys then stand: {nearest, q, k}, by their own positions. Gives the cosines and sines by which
  // its query and key turn (`own`) and, by a map, those for the `distant` first keys (`asked`, `key`).
  function standing({ inv_freq, attention_factor, far }, t) {
    const turns = position => [Math.cos, Math.sin].map(of => inv_freq.map(one => of(position * one) * attention_factor));
    return { own: turns(t), distant: far ? Math.max(0, t + 1 - far.nearest) : 0, asked: far && turns(far.q[t]), key: far && turns(far.k[t]) };
  }

  // kernel.wat in JavaScript.
  function plain(buffer) {
    const bytes = new Int8Array(buffer), floats = new Float32Array(buffer);
    return {
      multiply(w, s, x, y, rows, columns) {
        [s, x, y] = [s >> 2, x >> 2, y >> 2];
        for (let row = 0; row < rows; row++) {
          let a = 0, b = 0, c = 0, d = 0;
          for (let i = 0; i < columns; i += 4, w += 4) {
            a += bytes[w] * floats[x + i];
            b += bytes[w + 1] * floats[x + i + 1];
            c += bytes[w + 2] * floats[x + i + 2];
            d += bytes[w + 3] * floats[x + i + 3];
          }
          floats[y + row] = (a + b + c + d) * floats[s + row];
        }
      },
      dots(q, k, y, n, width, stride) {
        [q, k, y, stride] = [q >> 2, k >> 2, y >> 2, stride >> 2];
        for (let j = 0; j < n; j++, k += stride) {
          let sum = 0;
          for (let i = 0; i < width; i++) sum += floats[q + i] * floats[k + i];
          floats[y + j] = sum;
        }
      },
      mix(weight, v, y, n, width, stride) {
        [weight, v, y, stride] = [weight >> 2, v >> 2, y >> 2, stride >> 2];
        floats.fill(0, y, y + width);
        for (let j = 0; j < n; j++, v += stride) {
          const share = floats[weight + j];
          for (let i = 0; i < width; i++) floats[y + i] += share * floats[v + i];
        }
      },
    };
  }

  // about: {dim, hidden, layers, heads, width, vocabulary, epsilon, matrices: [[name, rows, columns], ..], scales and vectors in base 64
  // by name}. rooms: tokens of each stream that will be asked for. kernel: kernel.wat in base 64, or null: in JavaScript.
  function engine(about, rooms, kernel) {
    const { dim, hidden, layers, heads, width, vocabulary, epsilon } = about, half = width / 2;
    const size = about.matrices.reduce((sum, [, rows, columns]) => sum + rows * columns, 0);
    const numbers = about.matrices.reduce((sum, [, rows]) => sum + rows, 0) + vocabulary + (2 * layers + 9) * dim + 2 * hidden + 2 * Math.max(...rooms);
    const total = size + 4 * numbers + rooms.reduce((sum, tokens) => sum + 12 * layers * tokens * dim, 0) + 64 * (rooms.length * 3 * layers + 200);
    let kind = "JavaScript", buffer, run;
    try {
      if (!kernel || typeof WebAssembly === "undefined") throw new Error("no WebAssembly");
      const memory = new WebAssembly.Memory({ initial: Math.ceil(total / PAGE) });
      run = new WebAssembly.Instance(new WebAssembly.Module(decoded(kernel)), { env: { memory } }).exports;
      [buffer, kind] = [memory.buffer, "WebAssembly"];
    } catch {  // an old browser without vectors, or a page that forbids it
      buffer = new ArrayBuffer(Math.ceil(total / PAGE) * PAGE);
      run = plain(buffer);
    }
    const bytes = new Int8Array(buffer), floats = new Float32Array(buffer);
    let free = 64;
    const room = count => {  // bytes, as an address
      const at = free;
      free += Math.ceil(count / 64) * 64;
      return at;
    };
    const matrices = {}, order = [];
    for (const [name, rows, columns] of about.matrices) {
      matrices[name] = { w: room(rows * columns), s: room(4 * rows), rows, columns };
      floats.set(new Float32Array(decoded(about.scales[name]).buffer), matrices[name].s >> 2);
      order.push(matrices[name]);
    }
    const vectors = {};
    for (const [name, text] of Object.entries(about.vectors)) {
      vectors[name] = room(4 * dim);
      floats.set(new Float32Array(decoded(text).buffer), vectors[name] >> 2);
    }
    const weights = free;  // which end there
    const [x, h, q, far, mixed, y] = Array.from({ length: 6 }, () => room(4 * dim)), gate = room(4 * hidden), up = room(4 * hidden);
    const scores = room(8 * Math.max(...rooms)), logits = room(4 * vocabulary);
    let given = 0, matrix = 0, at = 0;

    // The next weights, in the order of `matrices`: a digit of base 64 for each.
    function load(text) {
      for (let i = 0; i < text.length; i++) {
        const { w, rows, columns } = order[matrix];
        bytes[w + at++] = digits[text.charCodeAt(i)];
        if (at === rows * columns) [matrix, at] = [matrix + 1, 0];
      }
      given += text.length;
    }

    const multiply = ({ w, s, rows, columns }, from, to) => run.multiply(w, s, from, to, rows, columns);

    function normed(from, weight, to) {  // RMSNorm
      let squares = 0;
      for (let i = from >> 2; i < (from >> 2) + dim; i++) squares += floats[i] * floats[i];
      const scale = 1 / Math.sqrt(squares / dim + epsilon);
      for (let i = 0; i < dim; i++) floats[(to >> 2) + i] = floats[(from >> 2) + i] * scale * floats[(weight >> 2) + i];
    }

    function turn(from, to, [cos, sin]) {
      for (let head = 0; head < heads; head++) {
        for (let c = 0; c < half; c++) {
          const i = head * width + c, a = floats[(from >> 2) + i], b = floats[(from >> 2) + i + half];
          floats[(to >> 2) + i] = a * cos[c] - b * sin[c];
          floats[(to >> 2) + i + half] = a * sin[c] + b * cos[c];
        }
      }
    }

    // A text that is read by one method, at most `tokens` of it.
    function stream(tokens) {
      const each = () => Array.from({ length: layers }, () => room(4 * tokens * dim));
      const keys = each(), values = each(), row = 4 * dim;
      let distant = null, method = null, length = 0;

      function place(chosen) {
        method = chosen;
        length = 0;
        if (method.far && !distant) distant = each();
      }

      function attend(n, near, keysOf, distantOf, valuesOf) {
        for (let head = 0; head < heads; head++) {
          const skip = 4 * head * width;
          if (near) run.dots(far + skip, distantOf + skip, scores, near, width, row);
          run.dots(q + skip, keysOf + near * row + skip, scores + 4 * near, n - near, width, row);
          const from = scores >> 2, until = from + n, scale = 1 / Math.sqrt(width);
          let top = -Infinity, sum = 0;
          for (let i = from; i < until; i++) if (floats[i] > top) top = floats[i];
          for (let i = from; i < until; i++) sum += floats[i] = Math.exp((floats[i] - top) * scale);
          for (let i = from; i < until; i++) floats[i] /= sum;
          run.mix(scores, valuesOf + skip, mixed + skip, n, width, row);
        }
      }

      // Read a token. Gives the logits of the next one, or nothing without `wanted`.
      function read(token, wanted = true) {
        if (length === tokens) throw new Error(`the stream has room for ${tokens} tokens`);
        const t = length++, { w, s } = matrices.embed, { own, distant: near, asked, key } = standing(method, t);
        for (let i = 0; i < dim; i++) floats[(x >> 2) + i] = bytes[w + token * dim + i] * floats[(s >> 2) + token];
        for (let layer = 0; layer < layers; layer++) {
          const of = name => matrices[`${layer}.${name}`], k = keys[layer] + t * row;
          normed(x, vectors[`${layer}.input_layernorm`], h);
          multiply(of("q_proj"), h, q);
          multiply(of("k_proj"), h, k);
          multiply(of("v_proj"), h, values[layer] + t * row);
          if (asked) {
            turn(q, far, asked);
            turn(k, distant[layer] + t * row, key);
          }
          turn(q, q, own);
          turn(k, k, own);
          attend(t + 1, near, keys[layer], distant && distant[layer], values[layer]);
          multiply(of("o_proj"), mixed, y);
          for (let i = 0; i < dim; i++) floats[(x >> 2) + i] += floats[(y >> 2) + i];
          normed(x, vectors[`${layer}.post_attention_layernorm`], h);
          multiply(of("gate_proj"), h, gate);
          multiply(of("up_proj"), h, up);
          for (let i = gate >> 2, j = up >> 2, end = i + hidden; i < end; i++, j++) floats[i] *= floats[j] / (1 + Math.exp(-floats[i]));
          multiply(of("down_proj"), gate, y);
          for (let i = 0; i < dim; i++) floats[(x >> 2) + i] += floats[(y >> 2) + i];
        }
        if (!wanted) return null;
        normed(x, vectors.norm, h);
        multiply(matrices.embed, h, logits);
        return floats.slice(logits >> 2, (logits >> 2) + vocabulary);
      }

      return { place, read, get length() { return length; }, room: tokens };
    }

    return { load, stream, kind, about, matrices, vectors, weights: () => buffer.slice(0, weights), get loaded() { return given / size; } };
  }

  return { engine, standing };
})();
