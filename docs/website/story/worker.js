"use strict";
// What computes, in a worker or, where there is none, in the page between frames: takes messages, answers with `post`.
posenc.work = post => {
  const AT_ONCE = 20;  // milliseconds between two looks at the messages
  let engine = null, teller = null, job = null, run = 0, waiting = false;

  const messages = {
    make({ model, methods, kernel, trained, most }) {
      engine = posenc.engine.engine(model, [most, trained, trained, most, trained, trained], kernel);
      teller = posenc.teller.teller(engine, methods, trained, most);
    },
    part({ text }) { engine.load(text); },
    tell(asked) { begin(asked.run, retrieved(asked)); },
    ask(asked) { begin(asked.run, answered(asked)); },
    stop() { job = null; },
  };

  function begin(number, work) {
    [run, job] = [number, work];
    later();
  }

  function* retrieved(asked) {
    let spent = 0, count = 0, began = performance.now();
    teller.begin(asked);
    yield;
    for (;;) {
      began = performance.now();
      const step = teller.step();
      if (!step) break;
      spent += performance.now() - began;
      count += 1;
      post({ run, step, rate: (1000 * count) / spent, kind: engine.kind });
      yield;
    }
    post({ run, done: true });
  }

  function* answered({ names, tokens, candidates }) {
    for (const name of names) {
      const work = teller.answer(name, tokens, candidates);
      let next = work.next();
      for (; !next.done; next = work.next()) {
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

  function go() {
    waiting = false;
    const until = performance.now() + AT_ONCE;
    while (job && performance.now() < until) if (job.next().done) job = null;
    if (job) later();
  }

  return message => messages[message.do](message);
};
if (typeof WorkerGlobalScope !== "undefined") self.onmessage = (handle => ({ data }) => handle(data))(posenc.work(answer => self.postMessage(answer)));
