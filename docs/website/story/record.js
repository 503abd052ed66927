"use strict";
// What is written, as a WebM of a quarter of a minute, drawn on a canvas. Gives false where the browser cannot record one.
posenc.storyVideo = async (written, words, { trained, headings, least, most, style, place }) => {
  const WIDTH = 1280, HEIGHT = 720, SECONDS = 14, AFTER = 1.5, LINE = 21, LINES = 26, TOP = 130, COLUMN = 580, type = "video/webm";
  if (!globalThis.MediaRecorder || !MediaRecorder.isTypeSupported(type) || !written.text[0].length) return false;
  const canvas = Object.assign(document.createElement("canvas"), { width: WIDTH, height: HEIGHT }), pen = canvas.getContext("2d");
  const colour = name => style.getPropertyValue(`--${name}`).trim();

  // Where each token stands: its words with their line and place.
  function placed(text) {
    pen.font = "15px system-ui, sans-serif";
    let line = 0, x = 0;
    return text.map((token, at) => {
      if (at === trained && x > 0) [line, x] = [line + 1, 0];
      if (token.includes("\n")) {
        [line, x] = [line + 1, 0];
        return null;
      }
      const wide = pen.measureText(token).width;
      if (x + wide > COLUMN) [line, x] = [line + 1, 0];
      const found = { token, x, line, wide };
      x += wide;
      return found;
    });
  }

  const columns = written.text.map(placed);

  function draw(count) {
    pen.fillStyle = colour("ground");
    pen.fillRect(0, 0, WIDTH, HEIGHT);
    pen.fillStyle = colour("ink");
    pen.font = "600 34px system-ui, sans-serif";
    pen.fillText(words.title, 40, 60);
    columns.forEach((tokens, which) => {
      const left = 40 + which * (COLUMN + 40), seen = tokens.slice(0, count), last = Math.max(0, ...seen.map(one => (one ? one.line : 0)));
      const from = Math.max(0, last - LINES + 1), high = one => TOP + (one.line - from) * LINE;
      pen.fillStyle = colour("soft");
      pen.font = "600 18px system-ui, sans-serif";
      pen.fillText(headings[which], left, 96);
      pen.font = "15px system-ui, sans-serif";
      seen.forEach((one, at) => {
        if (!one || one.line < from) return;
        pen.globalAlpha = Math.min(1, Math.max(0, written.surprise[which][at] - least) / (most - least)) / 2;
        pen.fillStyle = colour("past");
        pen.fillRect(left + one.x, high(one) - 15, one.wide, LINE - 1);
        pen.globalAlpha = 1;
        pen.fillStyle = colour("ink");
        pen.fillText(one.token, left + one.x, high(one));
        if (at === trained) {
          pen.fillStyle = colour("past");
          pen.fillRect(left, high(one) - 18, COLUMN, 2);
        }
      });
    });
  }

  const stream = canvas.captureStream(0), [track] = stream.getVideoTracks(), recorder = new MediaRecorder(stream, { mimeType: type }), chunks = [];
  let arrived = () => {};
  recorder.ondataavailable = ({ data }) => {
    chunks.push(data);
    arrived(data.size);
  };
  const stopped = new Promise(done => { recorder.onstop = done; });
  const wait = time => new Promise(done => setTimeout(done, time));

  // What the recorder has not finished when the next frame comes is dropped, and a slow device would lose the end.
  async function encoded() {
    for (let patience = 50, size = 0; !size && patience; patience--) {
      const answer = new Promise(done => { arrived = done; });
      recorder.requestData();
      size = await answer;
      if (!size) await wait(100);
    }
  }

  place.prepend(canvas);  // frames are taken of a canvas that is seen
  canvas.style.width = "100%";
  canvas.setAttribute("aria-hidden", "true");
  draw(0);
  recorder.start();
  const began = performance.now(), count = written.text[0].length;
  for (let time = 0; time < SECONDS + AFTER; ) {
    time = (performance.now() - began) / 1000;
    draw(Math.ceil(count * Math.min(1, time / SECONDS)));
    track.requestFrame();
    await wait(80);
    await encoded();
  }
  recorder.stop();
  await stopped;
  canvas.remove();
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob(chunks, { type })), download: "story.webm" });
  link.click();
  return true;
};
