// SPDX-License-Identifier: Apache-2.0
// The index of the search is most of what a page would load: it is fetched when somebody searches, or when a pointer or the focus
// comes to the header, which has the search's button. Until it is there the theme knows no shortcut, so Ctrl+K, Cmd+K and "/"
// are answered here: they fetch the index and press the button until the search is open. The theme's single letters, which turn
// pages, are off: what somebody types after a shortcut would leave the page.
{
  const { open, send } = XMLHttpRequest.prototype;
  const late = new WeakSet(), absent = new WeakSet();
  const waiting = new AbortController();
  let fetchIndex = () => {};
  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    if (String(url).endsWith("/search.json")) late.add(this);
    if (String(url).endsWith("/sitemap.xml")) absent.add(this); // the theme asks for it on a page in two languages
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (body) {
    if (absent.has(this)) return;
    if (!late.has(this)) return send.call(this, body);
    fetchIndex = () => {
      if (!waiting.signal.aborted) send.call(this, body);
      waiting.abort();
    };
    const near = ({ target }) => target.closest?.("header") && fetchIndex();
    for (const type of ["pointerover", "focusin"]) addEventListener(type, near, { signal: waiting.signal });
  };

  const deepest = () => {
    let at = document.activeElement;
    while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
    return at;
  };
  const writes = (at) => at?.matches?.("input, textarea, select, [contenteditable]");
  let typed = null; // since a shortcut, until the search is open
  const opened = (tries = 200) => {
    const field = deepest();
    if (writes(field)) {
      field.value = (typed ?? "") + field.value; // what was typed before the field was there
      if (typed) field.dispatchEvent(new InputEvent("input", { bubbles: true, composed: true }));
      typed = null;
    } else if (tries) {
      if (tries % 40 === 0) document.querySelector(".md-search__button")?.click();
      setTimeout(opened, 50, tries - 1);
    } else typed = null;
  };
  addEventListener(
    "keydown",
    (event) => {
      if (writes(deepest())) return;
      const shortcut = (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) || event.key === "/";
      const letter = event.key.length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey;
      if (!shortcut && !letter) return;
      if (shortcut || typed !== null) event.preventDefault();
      if (letter && event.key !== " ") event.stopImmediatePropagation();
      if (typed !== null && !shortcut) typed += event.key;
      if (shortcut && typed === null) {
        event.stopImmediatePropagation();
        typed = "";
        fetchIndex();
        opened();
      }
    },
    { capture: true },
  );
}
