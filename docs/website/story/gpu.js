"use strict";
// stories15M by WebGPU: the forward pass of engine.js with kernels.wgsl, on the weights and the table of matrices of a loaded engine.
posenc.gpu = (() => {
  const LANES = 64, STEP = 256, STORED = 0, ADDED = 1, GATED = 2;  // STEP: bytes between two parameters of a uniform buffer
  const KERNELS = ["embed", "norm", "multiply", "turn", "attend"];

  // As posenc.engine.engine, but a read gives a promise. What is asked for until the next turn of the microtasks is one submission.
  // Throws where there is no adapter, or where it does not take the model.
  async function engine(base, rooms, code) {
    const { dim, hidden, layers, heads, width, vocabulary, epsilon } = base.about, { matrices, vectors } = base, half = width / 2;
    const adapter = await globalThis.navigator?.gpu?.requestAdapter();
    if (!adapter) throw new Error("no WebGPU");
    const device = await adapter.requestDevice();
    const lost = device.lost.then(({ message }) => { throw new Error(message || "the device is lost"); });
    lost.catch(() => {});
    for (const kind of ["validation", "out-of-memory"]) device.pushErrorScope(kind);

    const [X, H, Q, FAR, MIXED, K, V] = Array.from({ length: 7 }, (_, part) => part * dim), GATE = 7 * dim, LOGITS = GATE + hidden;
    const SIZE = LOGITS + vocabulary, ROWS = rooms.reduce((sum, tokens) => sum + tokens, 0), READ = 4 + 6 * half;
    const whole = { DIM: dim, HALF: half, WIDTH: width, ROOM: Math.max(...rooms), ROWS, SIZE, X, H, Q, FAR, MIXED, K, V };
    const constants = Object.entries(whole).map(([name, value]) => `const ${name} = ${value}u;`).join("") + `const EPSILON = ${epsilon};`;

    const { STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
    const room = (size, usage) => device.createBuffer({ size, usage: usage | COPY_DST });
    const filled = (data, usage) => {
      const buffer = room(data.byteLength, usage);
      device.queue.writeBuffer(buffer, 0, data);
      return buffer;
    };
    const reads = room(4 * READ * rooms.length, STORAGE), state = room(4 * SIZE * rooms.length, STORAGE | COPY_SRC);
    const cache = room(12 * layers * ROWS * dim, STORAGE), steps = [];
    function step(kernel, groups, { w = 0, s = 0, rows = 0, columns = 0 } = {}, { from = 0, to = 0, how = STORED, layer = 0, last = false } = {}) {
      steps.push({ kernel, groups, last, numbers: [w >> 2, s >> 2, rows, columns, from, to, how, layer] });
    }
    const over = count => Math.ceil(count / LANES), multiply = (matrix, goal) => step("multiply", over(matrix.rows / 4), matrix, goal);
    step("embed", over(dim / 4), matrices.embed);
    for (let layer = 0; layer < layers; layer++) {
      const of = name => matrices[`${layer}.${name}`];
      step("norm", 1, { w: vectors[`${layer}.input_layernorm`] });
      for (const [name, to] of [["q_proj", Q], ["k_proj", K], ["v_proj", V]]) multiply(of(name), { from: H, to });
      step("turn", over(dim / 2), {}, { layer });
      step("attend", heads, {}, { layer });
      multiply(of("o_proj"), { from: MIXED, to: X, how: ADDED });
      step("norm", 1, { w: vectors[`${layer}.post_attention_layernorm`] });
      multiply(of("gate_proj"), { from: H, to: GATE });
      multiply(of("up_proj"), { from: H, to: GATE, how: GATED });
      multiply(of("down_proj"), { from: GATE, to: X, how: ADDED });
    }
    step("norm", 1, { w: vectors.norm }, { last: true });
    multiply(matrices.embed, { from: H, to: LOGITS, last: true });
    const parameters = new Uint32Array((STEP / 4) * steps.length);
    steps.forEach(({ numbers }, at) => parameters.set(numbers, (STEP / 4) * at));

    const types = ["read-only-storage", "read-only-storage", "storage", "storage", "uniform"];
    const layout = device.createBindGroupLayout({
      entries: types.map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type, hasDynamicOffset: type === "uniform" } })),
    });
    const resources = [filled(base.weights(), STORAGE), reads, state, cache, filled(parameters, UNIFORM)];
    const group = device.createBindGroup({
      layout, entries: resources.map((buffer, binding) => ({ binding, resource: { buffer, size: binding === 4 ? 32 : buffer.size } })),
    });
    const module = device.createShaderModule({ code: constants + code }), pipelines = {};
    for (const entryPoint of KERNELS) {
      pipelines[entryPoint] = device.createComputePipeline({ layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }), compute: { module, entryPoint } });
    }
    for (let scope = 0; scope < 2; scope++) {
      const error = await device.popErrorScope();
      if (error) throw new Error(error.message);
    }

    let batch = null, rows = 0;

    // The logits of the reads that want them, which come first.
    async function submitted(asked) {
      if (batch.asked === asked) batch = null;
      asked.sort((a, b) => b.wanted - a.wanted);
      const data = new ArrayBuffer(4 * READ * asked.length), wanted = asked.filter(read => read.wanted).length, size = 4 * vocabulary;
      asked.forEach(({ t, token, row, at }, index) => {
        new Uint32Array(data, 4 * READ * index).set([t, token, row, at.distant]);
        new Float32Array(data, 4 * READ * index).set([at.own, at.asked || [], at.key || []].flat(2), 4);
      });
      device.queue.writeBuffer(reads, 0, data);
      const encoder = device.createCommandEncoder(), pass = encoder.beginComputePass();
      steps.forEach(({ kernel, groups, last }, index) => {
        if (last && !wanted) return;
        pass.setPipeline(pipelines[kernel]);
        pass.setBindGroup(0, group, [STEP * index]);
        pass.dispatchWorkgroups(groups, 1, last ? wanted : asked.length);
      });
      pass.end();
      const staging = wanted && device.createBuffer({ size: size * wanted, usage: MAP_READ | COPY_DST });
      for (let index = 0; index < wanted; index++) encoder.copyBufferToBuffer(state, 4 * (SIZE * index + LOGITS), staging, size * index, size);
      device.queue.submit([encoder.finish()]);
      await Promise.race([lost, wanted ? staging.mapAsync(GPUMapMode.READ) : device.queue.onSubmittedWorkDone()]);
      if (!wanted) return;
      const found = new Float32Array(staging.getMappedRange().slice(0));
      staging.destroy();
      for (let index = 0; index < wanted; index++) asked[index].logits = found.subarray(vocabulary * index, vocabulary * (index + 1));
    }

    function stream(tokens) {
      const row = rows;
      let method = null, length = 0;
      rows += tokens;
      if (rows > ROWS) throw new Error(`the engine has room for ${ROWS} tokens`);

      function place(chosen) {
        [method, length] = [chosen, 0];
      }

      async function read(token, wanted = true) {
        if (length === tokens) throw new Error(`the stream has room for ${tokens} tokens`);
        const t = length++, one = { t, token, row, wanted, at: posenc.engine.standing(method, t), logits: null };
        if (!batch || batch.asked.some(other => other.row === row)) {
          const asked = [];
          batch = { asked, done: Promise.resolve().then(() => submitted(asked)) };
        }
        batch.asked.push(one);
        await batch.done;
        return one.logits;
      }

      return { place, read, get length() { return length; }, room: tokens };
    }

    return { stream, kind: "WebGPU", device };
  }

  // Streams of the first of some engines. One whose device is lost leaves the list; its streams are read again by the next.
  function lasting(engines) {
    function stream(room) {
      const made = new Map();
      let method = null, tokens = [], engine = null;

      function place(chosen) {
        [method, tokens, engine] = [chosen, [], null];
      }

      function read(token, wanted = true) {
        if (engine !== engines[0]) {
          [engine] = engines;
          if (!made.has(engine)) made.set(engine, engine.stream(room));
          made.get(engine).place(method);
          for (const one of tokens) made.get(engine).read(one, false);
        }
        tokens.push(token);
        const asked = engine, found = made.get(engine).read(token, wanted);
        return found instanceof Promise ? found.catch(error => again(asked, error, token, wanted)) : found;
      }

      function again(failed, error, token, wanted) {
        if (engines[0] === failed) {
          if (engines.length === 1) throw error;
          engines.shift();
        }
        if (!wanted) return null;  // the next read brings the engine to it
        tokens.pop();
        return read(token);
      }

      return { place, read, get length() { return tokens.length; }, room };
    }

    return { stream, get kind() { return engines[0].kind; } };
  }

  return { engine, lasting };
})();
