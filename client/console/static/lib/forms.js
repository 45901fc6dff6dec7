// Dialogs, fields and notes.
import { h, put } from "./dom.js";

let numbers = 0;

export function field(label, input, hint) {
  numbers += 1;
  const id = input.id || `f${numbers}`;
  input.id = id;
  const parts = [h("label", { for: id }, label), input];
  if (hint) {
    input.setAttribute("aria-describedby", `${id}h`);
    parts.push(h("small", { id: `${id}h` }, hint));
  }
  return h("div", { class: "field" }, parts);
}

export function input(props) {
  return h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...props });
}

export function select(options, value, props) {
  const element = h("select", props, options.map(([name, text]) => h("option", { value: name }, text)));
  if (value !== undefined) element.value = value;
  return element;
}

export function check(label, props) {
  const box = h("input", { type: "checkbox", ...props });
  return { box, element: h("label", { class: "check" }, box, label) };
}

export function button(text, click, kind, props) {
  return h("button", { type: "button", class: kind || "", on: { click }, ...props }, text);
}

// Opens a modal dialog; `build` fills it and is given what closes it.
export function dialog(title, build) {
  const element = h("dialog", { "aria-labelledby": "dialog-title", class: "dialog" });
  const close = () => element.close();
  const content = h("div", { class: "dialog-body" });
  put(element,
    h("div", { class: "dialog-head" }, h("h2", { id: "dialog-title" }, title), button("Close", close, "quiet", { "aria-label": "Close the dialog" })),
    content);
  element.addEventListener("close", () => element.remove());
  document.body.append(element);
  build(content, close);
  element.showModal();
  return element;
}

export function note(text, kind) {
  return h("p", { class: `note ${kind || ""}`, role: kind === "bad" ? "alert" : "status" }, text);
}

let toasts;

export function toast(text, kind) {
  if (!toasts) {
    toasts = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
    document.body.append(toasts);
  }
  const line = h("div", { class: `toast ${kind || ""}` }, text);
  toasts.append(line);
  setTimeout(() => line.remove(), 6000);
}

// Runs what a button asks for, once at a time, and says what went wrong beside it.
export async function doing(element, place, work) {
  element.disabled = true;
  put(place);
  try {
    return await work();
  } catch (error) {
    put(place, note(error.message, "bad"));
    return undefined;
  } finally {
    element.disabled = false;
  }
}
