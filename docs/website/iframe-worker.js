// SPDX-License-Identifier: Apache-2.0
// Browsers start no worker for a page that is opened from a folder; the search's runs in a hidden frame there.
if (location.protocol === "file:")
  window.Worker = class {
    onmessage = null;
    #frame = document.createElement("iframe");
    #started;

    constructor(url) {
      this.#frame.hidden = true;
      this.#frame.srcdoc = "<!doctype html>";
      this.#started = new Promise((started) => {
        this.#frame.onload = () => {
          const scope = this.#frame.contentWindow;
          scope.postMessage = (data) => this.onmessage?.({ data: structuredClone(data) });
          const script = scope.document.createElement("script");
          script.src = url;
          script.onload = () => started(scope);
          scope.document.body.append(script);
        };
      });
      document.body.append(this.#frame);
    }

    postMessage(data) {
      const copy = structuredClone(data);
      this.#started.then((scope) => scope.onmessage({ data: copy }));
    }

    terminate() {
      this.#frame.remove();
    }
  };
