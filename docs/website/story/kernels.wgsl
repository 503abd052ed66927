// The forward pass of engine.js for some reads at once, one of each stream: z of the grid is the read. gpu.js puts the constants of
// the model before it, in capitals. Places count numbers of 32 bits.
struct Step { w: u32, s: u32, rows: u32, columns: u32, source: u32, goal: u32, how: u32, layer: u32 }
// row: the stream's first in the cache. distant: how many keys a map puts elsewhere. turns: cosines and sines of `own`, `asked`, `key`.
struct Read { t: u32, token: u32, row: u32, distant: u32, turns: array<array<f32, HALF>, 6> }

@group(0) @binding(0) var<storage, read> model: array<u32>;
@group(0) @binding(1) var<storage, read> reads: array<Read>;
@group(0) @binding(2) var<storage, read_write> state: array<f32>;
@group(0) @binding(3) var<storage, read_write> cache: array<f32>;
@group(0) @binding(4) var<uniform> step: Step;

fn number(at: u32) -> f32 { return bitcast<f32>(model[at]); }

fn four(at: u32) -> vec4<f32> {  // numbers of 8 bits
  let word = bitcast<i32>(model[at]);
  return vec4<f32>(vec4<i32>(word << 24u, word << 16u, word << 8u, word) >> vec4<u32>(24u));
}

fn place(part: u32, row: u32) -> u32 { return ((3u * step.layer + part) * ROWS + row) * DIM; }

@compute @workgroup_size(64) fn embed(@builtin(global_invocation_id) id: vec3<u32>) {
  if (4u * id.x >= DIM) { return; }
  let token = reads[id.z].token;
  let values = four(step.w + token * (DIM / 4u) + id.x) * number(step.s + token);
  for (var c = 0u; c < 4u; c++) { state[id.z * SIZE + X + 4u * id.x + c] = values[c]; }
}

var<workgroup> sums: array<f32, 64>;

@compute @workgroup_size(64) fn norm(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let own = id.z * SIZE;
  var squares = 0.0;
  for (var i = lane; i < DIM; i += 64u) { squares += state[own + X + i] * state[own + X + i]; }
  sums[lane] = squares;
  workgroupBarrier();
  squares = 0.0;
  for (var i = 0u; i < 64u; i++) { squares += sums[i]; }
  let scale = 1.0 / sqrt(squares / f32(DIM) + EPSILON);
  for (var i = lane; i < DIM; i += 64u) { state[own + H + i] = state[own + X + i] * scale * number(step.w + i); }
}

// Four rows. how: the product is stored (0), added (1) or gated by what it replaces (2).
@compute @workgroup_size(64) fn multiply(@builtin(global_invocation_id) id: vec3<u32>) {
  let row = 4u * id.x;
  if (row >= step.rows) { return; }
  let n = step.columns / 4u;
  let w = step.w + row * n;
  let x = id.z * SIZE + step.source;
  var sum = vec4<f32>();
  for (var i = 0u; i < n; i++) {
    let at = x + 4u * i;
    let part = vec4<f32>(state[at], state[at + 1u], state[at + 2u], state[at + 3u]);
    sum += vec4<f32>(dot(four(w + i), part), dot(four(w + n + i), part), dot(four(w + 2u * n + i), part), dot(four(w + 3u * n + i), part));
  }
  for (var r = 0u; r < 4u; r++) {
    let value = sum[r] * number(step.s + row + r);
    let to = id.z * SIZE + step.goal + row + r;
    if (step.how == 0u) { state[to] = value; }
    if (step.how == 1u) { state[to] += value; }
    if (step.how == 2u) { state[to] *= value / (1.0 + exp(-state[to])); }
  }
}

fn turned(a: vec2<f32>, read: u32, which: u32, c: u32) -> vec2<f32> {
  let cosine = reads[read].turns[2u * which][c];
  let sine = reads[read].turns[2u * which + 1u][c];
  return vec2<f32>(a.x * cosine - a.y * sine, a.x * sine + a.y * cosine);
}

// The query turns in place; key and value go into the cache. One invocation for each pair of channels.
@compute @workgroup_size(64) fn turn(@builtin(global_invocation_id) id: vec3<u32>) {
  if (2u * id.x >= DIM) { return; }
  let c = id.x % HALF;
  let i = id.x / HALF * WIDTH + c;
  let j = i + HALF;
  let own = id.z * SIZE;
  let row = reads[id.z].row + reads[id.z].t;
  let q = vec2<f32>(state[own + Q + i], state[own + Q + j]);
  let k = vec2<f32>(state[own + K + i], state[own + K + j]);
  let near = turned(q, id.z, 0u, c);
  let far = turned(q, id.z, 1u, c);
  let key = turned(k, id.z, 0u, c);
  let distant = turned(k, id.z, 2u, c);
  state[own + Q + i] = near.x;
  state[own + Q + j] = near.y;
  state[own + FAR + i] = far.x;
  state[own + FAR + j] = far.y;
  cache[place(0u, row) + i] = key.x;
  cache[place(0u, row) + j] = key.y;
  cache[place(1u, row) + i] = distant.x;
  cache[place(1u, row) + j] = distant.y;
  cache[place(2u, row) + i] = state[own + V + i];
  cache[place(2u, row) + j] = state[own + V + j];
}

var<workgroup> scores: array<f32, ROOM>;

@compute @workgroup_size(64) fn attend(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let own = id.z * SIZE + id.x * WIDTH;  // of the head
  let row = reads[id.z].row;
  let n = reads[id.z].t + 1u;
  for (var j = lane; j < n; j += 64u) {
    let far = j < reads[id.z].distant;
    let q = own + select(Q, FAR, far);
    let k = place(select(0u, 1u, far), row + j) + id.x * WIDTH;
    var sum = 0.0;
    for (var c = 0u; c < WIDTH; c++) { sum += state[q + c] * cache[k + c]; }
    scores[j] = sum / sqrt(f32(WIDTH));
  }
  workgroupBarrier();
  var top = scores[0];
  for (var j = 1u; j < n; j++) { top = max(top, scores[j]); }
  workgroupBarrier();
  for (var j = lane; j < n; j += 64u) { scores[j] = exp(scores[j] - top); }
  workgroupBarrier();
  if (lane >= WIDTH) { return; }
  var total = 0.0;
  var mixed = 0.0;
  for (var j = 0u; j < n; j++) {
    total += scores[j];
    mixed += scores[j] * cache[place(2u, row + j) + id.x * WIDTH + lane];
  }
  state[own + MIXED + lane] = mixed / total;
}
