// SPDX-License-Identifier: Apache-2.0
// The index of the search is most of what a page would load: it is fetched with the first key, or when a pointer or the focus
// comes to the header, which has the search's button.
{
  const { open, send } = XMLHttpRequest.prototype;
  const late = new WeakSet();
  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    if (String(url).endsWith("/search.json")) late.add(this);
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (body) {
    if (!late.has(this)) return send.call(this, body);
    const waiting = new AbortController();
    const fetch = ({ type, target }) => {
      if (type !== "keydown" && !target.closest?.("header")) return;
      waiting.abort();
      send.call(this, body);
    };
    for (const type of ["keydown", "pointerover", "focusin"]) addEventListener(type, fetch, { signal: waiting.signal });
  };
}
