"use strict";
// What computes, in a worker or, where there is none, in the page between frames: takes messages, answers with `post`.
posenc.work = post => {
  const AT_ONCE = 20;  // milliseconds between two looks at the messages
  const TRIAL = [1, 9038, 2501, 263, 931, 727, 471, 263], WARM = 1, ALIKE = 0.01;  // "Once upon a time there was a"; steps; nats
  let engines = [], engine = null, load = null, teller = null, gpu = null, job = null, waiting = false;

  const messages = {
    // path: the engine, "WebGPU", "WebAssembly" or "JavaScript"; "": the fastest that computes the same.
    make({ model, methods, kernel, shaders, trained, most, path }) {
      const rooms = [most, trained, trained, most, trained, trained];
      const base = posenc.engine.engine(model, rooms, path === "JavaScript" ? null : kernel);
      engines = [base];
      engine = posenc.gpu.lasting(engines);
      load = base.load;
      teller = posenc.teller.teller(engine, methods, trained, most);
      gpu = path && path !== "WebGPU" ? null : () => posenc.gpu.engine(base, rooms, shaders).then(found => chosen(base, found, path), () => {});
    },
    part({ text }) { load(text); },
    tell(asked) { begin(retrieved(asked)); },
    ask(asked) { begin(answered(asked)); },
    stop() { job = null; },
  };

  // An engine's surprise at the trial's text, and its milliseconds once it is warm; it ends at `limit`.
  async function tried(one, limit = Infinity) {
    engines.splice(0, engines.length, ...new Set([one, ...engines]));
    teller.begin({ seed: 0, names: ["none", "yarn:4"], tokens: TRIAL, length: TRIAL.length });
    const costs = [];
    let spent = 0;
    for (let at = 0; at < TRIAL.length && spent <= limit; at++) {
      const began = performance.now();
      costs.push(...(await teller.step()).map(({ surprise }) => surprise));
      if (at >= WARM) spent += performance.now() - began;
    }
    return { costs, spent };
  }

  async function chosen(base, found, path) {
    const usual = path ? null : await tried(base);
    engines.unshift(found);
    if (!usual) return;
    const { costs, spent } = await tried(found, usual.spent);
    if (spent < usual.spent && costs.every((one, at) => Math.abs(one - usual.costs[at]) < ALIKE)) return;
    engines.splice(0, engines.length, base);
    found.device.destroy();
  }

  function begin(work) {
    job = work;
    later();
  }

  async function prepared() {
    const first = gpu;
    gpu = null;
    if (first) await first();
  }

  async function* retrieved(asked) {
    const { run } = asked;
    let spent = 0, count = 0;
    await prepared();
    teller.begin(asked);
    for (;;) {
      const began = performance.now(), step = await teller.step();
      if (!step) break;
      spent += performance.now() - began;
      count += 1;
      post({ run, step, rate: (1000 * count) / spent, kind: engine.kind });
      yield;
    }
    post({ run, done: true });
  }

  async function* answered({ run, names, tokens, candidates }) {
    await prepared();
    for (const name of names) {
      const work = teller.answer(name, tokens, candidates);
      let next = await work.next();
      for (; !next.done; next = await work.next()) {
        post({ run, name, read: next.value });
        yield;
      }
      post({ run, name, shares: next.value });
    }
    post({ run, done: true });
  }

  function later() {
    if (waiting) return;
    waiting = true;
    setTimeout(go);
  }

  async function go() {  // one step at a time, also where a step waits
    const until = performance.now() + AT_ONCE;
    while (job && performance.now() < until) {
      const mine = job;
      const { done } = await mine.next().catch(error => {
        reportError(error);
        return { done: true };
      });
      if (done && job === mine) job = null;
    }
    waiting = false;
    if (job) later();
  }

  return message => messages[message.do](message);
};
if (typeof WorkerGlobalScope !== "undefined") self.onmessage = (handle => ({ data }) => handle(data))(posenc.work(answer => self.postMessage(answer)));
