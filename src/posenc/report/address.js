"use strict";
// The address of a page that has its state there: "encoding=rope&factor=4".
posenc.address = (() => {
  const shortened = text => (String(text).length > 40 ? `${String(text).slice(0, 40)}…` : String(text));

  // What it asks for, name -> text, and the parts that are not readable.
  function read(text) {
    const asked = Object.create(null), unreadable = [];
    for (const part of text.split("&").filter(Boolean)) {
      const [name, ...rest] = part.split("=");
      try {
        asked[name] = decodeURIComponent(rest.join("=").replaceAll("+", " "));
      } catch {
        unreadable.push(shortened(part));
      }
    }
    return { asked, unreadable };
  }

  return { read, shortened };
})();
