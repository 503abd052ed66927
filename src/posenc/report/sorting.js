"use strict";
// Tables whose rows are sorted by a click on a heading, in reports and on the documentation's site.
var posenc = posenc || {};
posenc.sorting = (() => {
  const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);

  function key(cell) {  // what stands first in it, without the interval below
    const text = cell.dataset.value ?? ((cell.firstChild?.textContent ?? "").trim() || cell.textContent.trim());
    const found = Number.parseFloat(text.replace("−", "-"));
    return Number.isNaN(found) ? text.toLowerCase() : found;
  }

  function sort(table, column, up) {
    const body = table.tBodies[0], heads = table.tHead.rows[0].cells;
    const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * order(key(a.cells[column]), key(b.cells[column])));
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows);
  }

  // Makes a button of the words of each heading but those with data-plain. sorted(column, direction): called after a click.
  function sortable(table, sorted) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (head.dataset.plain !== undefined) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...[...head.childNodes].filter(node => node.nodeName !== "SMALL"));
      button.addEventListener("click", () => {
        sort(table, column, head.getAttribute("aria-sort") !== "ascending");
        sorted?.(column, head.getAttribute("aria-sort"));
      });
      head.prepend(button);
    });
  }

  return { sort, sortable };
})();
