// Elements from values. Text only ever becomes a text node: there is no way in for markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === "css") {
      for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    } else if (name === "href" && !String(value).startsWith("/console/") && !String(value).startsWith("#")) {
      throw new Error("links stay inside the console");
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child instanceof Node ? child : visible(String(child)));
  }
  return element;
}

export function put(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

// What would not be seen, or would turn the text around, is shown as a sign of its own.
export function visible(text, lines = false) {
  const hidden = lines
    ? /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g
    : /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
  return text.replace(hidden, (sign) => {
    const code = sign.codePointAt(0);
    return code < 0x20 ? String.fromCodePoint(0x2400 + code) : "\u2426";
  });
}

export function path(...parts) {
  return "/console/" + parts.map(encodeURIComponent).join("/");
}

export function query(base, params) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "") found.set(name, value);
  }
  const text = found.toString();
  return text ? `${base}?${text}` : base;
}

export function link(href, ...children) {
  return h("a", { href }, ...children);
}

export const topicLink = (name) => link(path("topics", name), name);
export const groupLink = (name) => link(path("groups", name), name);
export const messageLink = (row, text) =>
  link(query(path("message"), { topic: row.topic, id: row.id }), text ?? row.id);

export function badge(text, kind) {
  return h("span", { class: `badge ${kind || ""}` }, text);
}
