// A table that is filled again and again without losing focus, order or place.
import { add, h, put } from "./dom.js";

// columns: [{ title, cell(row), sort?(row), right?, wide? }]; key(row) tells rows apart.
export function table({ label, columns, key, empty, sorted, descending }) {
  const body = h("tbody");
  const heads = columns.map((column, index) => head(column, () => order(index)));
  const caption = h("caption", { class: "hidden" }, label);
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", {}, caption, h("thead", {}, h("tr", {}, heads)), body));
  const nothing = h("p", { class: "empty", hidden: true }, empty);
  const whole = h("div", { class: "table" }, element, nothing);
  const known = new Map();
  let rows = [];
  let by = sorted ?? -1;
  let down = descending ?? false;
  let filter = "";

  function order(index) {
    down = by === index ? !down : columns[index].right === true;
    by = index;
    draw();
  }

  function draw() {
    heads.forEach((cell, index) => {
      if (columns[index].sort) cell.setAttribute("aria-sort", index === by ? (down ? "descending" : "ascending") : "none");
    });
    let shown = filter ? rows.filter((row) => JSON.stringify(row).toLowerCase().includes(filter)) : rows;
    if (by >= 0 && columns[by].sort) {
      const value = columns[by].sort;
      shown = [...shown].sort((a, b) => compare(value(a), value(b)) * (down ? -1 : 1));
    }
    const used = new Set();
    shown.forEach((row, index) => {
      const name = String(key(row));
      used.add(name);
      const line = known.get(name) || h("tr");
      known.set(name, line);
      columns.forEach((column, number) => renew(line, number, column, row));
      if (body.children[index] !== line) body.insertBefore(line, body.children[index] || null);
    });
    for (const [name, line] of known) {
      if (used.has(name)) continue;
      line.remove();
      known.delete(name);
    }
    nothing.hidden = shown.length > 0;
    element.hidden = shown.length === 0;
    nothing.textContent = rows.length && !shown.length ? "Nothing matches the filter." : empty;
  }

  return {
    element: whole,
    update(found) {
      rows = found;
      draw();
    },
    filter(text) {
      filter = text.toLowerCase();
      draw();
    },
    get rows() {
      return rows;
    },
  };
}

function renew(line, number, column, row) {
  const kind = [column.right ? "right" : "", column.wide ? "wide" : "", column.mono ? "mono" : ""].join(" ").trim();
  const cell = h(number === 0 && !column.plain ? "th" : "td", { class: kind, scope: number === 0 && !column.plain ? "row" : null });
  add(cell, [column.cell(row)]);
  const old = line.children[number];
  if (!old) line.append(cell);
  else if (!old.isEqualNode(cell) && !old.contains(document.activeElement)) old.replaceWith(cell);
}

function head(column, sort) {
  const cell = h("th", { scope: "col", class: column.right ? "right" : "" });
  if (!column.sort) return put(cell, column.title || h("span", { class: "hidden" }, column.hidden || "–"));
  return put(cell, h("button", { type: "button", class: "sort", on: { click: sort } }, column.title));
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

export function filterBox(target, label) {
  return h("input", {
    type: "search", class: "filter", placeholder: label, "aria-label": label,
    on: { input: (event) => target.filter(event.target.value.trim()) },
  });
}
