// The frame around the pages: header, navigation, addresses, keys, and the rhythm of updates.
import { Refusal, get, loadSession, post, session } from "./lib/api.js";
import { badge, h, link, path, put, query } from "./lib/dom.js";
import { button, dialog, note } from "./lib/forms.js";
import { loginPage } from "./pages/login.js";
import { overviewPage } from "./pages/overview.js";
import { topicPage, topicsPage } from "./pages/topics.js";
import { messagesPage } from "./pages/messages.js";
import { messagePage } from "./pages/message.js";
import { groupPage, groupsPage } from "./pages/groups.js";
import { deadPage, lettersPage } from "./pages/dead.js";
import { transactionsPage, waitingPage } from "./pages/waiting.js";
import { clientsPage, clusterPage, settingsPage } from "./pages/cluster.js";
import { storePage } from "./pages/store.js";

// `name` is the address, `key` the shortcut after g, `detail` the page of a single one.
const PAGES = [
  { name: "", title: "Overview", key: "o", page: overviewPage },
  { name: "topics", title: "Topics", key: "t", page: topicsPage, detail: topicPage },
  { name: "messages", title: "Messages", key: "m", page: messagesPage },
  { name: "groups", title: "Groups", key: "g", page: groupsPage, detail: groupPage },
  { name: "dead", title: "Dead letters", key: "d", page: deadPage, detail: lettersPage },
  { name: "waiting", title: "Waiting", key: "w", page: waitingPage },
  { name: "transactions", title: "Transactions", key: "x", page: transactionsPage },
  { name: "clients", title: "Clients", key: "c", page: clientsPage },
  { name: "store", title: "Store", key: "s", page: storePage },
  { name: "cluster", title: "Cluster", key: "k", page: clusterPage },
  { name: "settings", title: "Settings", key: "e", page: settingsPage },
];
const head = document.getElementById("head");
const nav = document.getElementById("nav");
const main = document.getElementById("main");
const state = { live: true, mounted: null, timer: 0 };

function place() {
  const parts = location.pathname.replace(/^\/console\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  const params = Object.fromEntries(new URLSearchParams(location.search));
  return { name: parts[0] || "", one: parts.slice(1).join("/"), params };
}

export function go(address, replace) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  show();
}

function show() {
  const { name, one, params } = place();
  state.mounted?.abort.abort();
  clearTimeout(state.timer);
  const entry = PAGES.find((each) => each.name === name);
  const page = name === "message" ? messagePage : one && entry?.detail ? entry.detail : entry?.page;
  drawNav(name === "message" ? "messages" : name);
  const title = one || entry?.title || (name === "message" ? "Message" : "Not here");
  document.title = `${title} – Aerobee console`;
  put(main);
  const trouble = h("div", { class: "trouble" });
  const root = h("div", { class: "page" });
  main.append(trouble, root);
  if (!page) {
    put(root, h("h1", {}, "There is no such page"), h("p", {}, link(path(), "To the overview")));
    return;
  }
  const abort = new AbortController();
  const context = {
    one, params, session, signal: abort.signal, go,
    ask: (what, values) => get(what, values, abort.signal),
    refresh: () => renew(),
  };
  const mounted = { abort, ...page(root, context) };
  state.mounted = mounted;

  async function renew() {
    clearTimeout(state.timer);
    if (!mounted.refresh || abort.signal.aborted) return;
    try {
      await mounted.refresh();
      if (!abort.signal.aborted) put(trouble);
    } catch (error) {
      if (abort.signal.aborted || error.name === "AbortError") return;
      complain(trouble, error);
    }
    if (mounted.every && !abort.signal.aborted) state.timer = setTimeout(again, mounted.every * 1000);
  }
  function again() {
    if (state.live && !document.hidden) renew();
    else state.timer = setTimeout(again, 1000);
  }
  renew();
}

function complain(place_, error) {
  if (!(error instanceof Refusal)) console.error(error);
  put(place_, note(error.message, "bad"));
  if (error.status === 401) boot();
  else if (error.login === "user") put(place_, note(error.message, "bad"), button("Log in as a user of the cluster", () => logIn("user"), "primary"));
}

function drawNav(current) {
  put(nav,
    h("a", { class: "brand", href: path() }, h("span", { class: "logo", "aria-hidden": "true" }), "Aerobee"),
    h("ul", {}, PAGES.map(({ name, title }) =>
      h("li", {}, h("a", { href: name ? path(name) : path(), "aria-current": name === current ? "page" : null }, title)))));
}

function drawHead() {
  const found = h("div", { class: "found", hidden: true });
  const box = h("input", {
    type: "search", id: "search", placeholder: "Topic, group, message id or key   ( / )", "aria-label": "Search",
    autocomplete: "off", spellcheck: "false",
  });
  box.addEventListener("input", () => suggest(box, found));
  const form = h("form", { class: "search", role: "search", on: { submit: (event) => { event.preventDefault(); jump(box, found); } } }, box, found);
  const live = button("Live", () => {
    state.live = !state.live;
    live.setAttribute("aria-pressed", String(state.live));
    if (state.live) show();
  }, "quiet live", { "aria-pressed": "true", title: "Live updates on or off (p)", id: "live" });
  put(head, h("a", { class: "health", href: path(), id: "health" }, "…"), form, h("div", { class: "state" },
    live,
    session.write ? badge("CHANGES ALLOWED", "warn") : badge("READ-ONLY", ""),
    button("Theme", theme, "quiet", { title: "Light, dark, or as the system says" }),
    button("Keys", keys, "quiet", { title: "Keyboard shortcuts (?)" }),
    session.user ? button(`Log out ${session.user}`, logOut, "quiet") : button("Log in", () => logIn("user"), "quiet")));
}

// The cluster and how it is, on every page.
async function watchHealth() {
  clearTimeout(state.health);
  const place_ = document.getElementById("health");
  if (place_ && !session.login && !document.hidden) {
    try {
      const found = await get("health");
      const count = found.troubles + found.warnings;
      place_.className = `health ${found.troubles ? "bad" : found.warnings ? "warn" : "good"}`;
      put(place_, h("b", {}, found.cluster), count ? `${count} to look at` : "all is well");
    } catch (error) {
      place_.className = "health bad";
      put(place_, h("b", {}, "–"), error.login ? "not logged in" : "does not answer");
    }
  }
  state.health = setTimeout(watchHealth, 10000);
}

async function suggest(box, found) {
  const text = box.value.trim();
  if (text.length < 2) {
    found.hidden = true;
    return;
  }
  try {
    const names = await get("search", { text });
    if (box.value.trim() !== text) return;
    const rows = [
      ...names.topics.map((name) => h("a", { href: path("topics", name) }, h("small", {}, "topic"), name)),
      ...names.groups.map((name) => h("a", { href: path("groups", name) }, h("small", {}, "group"), name)),
    ];
    put(found, rows.length ? rows : h("p", {}, "No topic and no group. Enter looks for a message with this id or key."));
    found.hidden = false;
  } catch {
    found.hidden = true;
  }
}

async function jump(box, found) {
  const text = box.value.trim();
  if (!text) return;
  found.hidden = true;
  const names = await get("search", { text }).catch(() => ({ topics: [], groups: [] }));
  if (names.topics.includes(text)) go(path("topics", text));
  else if (names.groups.includes(text)) go(path("groups", text));
  else go(query(path("messages"), { mode: /^[0-9A-Fa-f]{24,40}$/.test(text) ? "id" : "key", id: text, key: text, everywhere: 1 }));
  box.value = "";
}

function theme() {
  const order = ["", "light", "dark"];
  const next = order[(order.indexOf(localStorage.getItem("theme") || "") + 1) % 3];
  localStorage.setItem("theme", next);
  paint();
}

function paint() {
  document.documentElement.style.colorScheme = localStorage.getItem("theme") || "";
}

function keys() {
  dialog("Keyboard", (content) => {
    const rows = [["/", "Search"], ["p", "Live updates on or off"], ["r", "Update now"], ["?", "This list"], ["Esc", "Close a dialog"],
      ...PAGES.map(({ title, key }) => [`g ${key}`, title])];
    put(content, h("dl", { class: "keys" }, rows.flatMap(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])));
  });
}

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") head.querySelector(".found")?.setAttribute("hidden", "");
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const key = event.key;
  const goes = before === "g" ? PAGES.find((each) => each.key === key) : null;
  before = key === "g" && before !== "g" ? "g" : "";
  if (goes) go(goes.name ? path(goes.name) : path());
  else if (key === "/") document.getElementById("search")?.focus();
  else if (key === "?") keys();
  else if (key === "p") document.getElementById("live")?.click();
  else if (key === "r") show();
  else return;
  event.preventDefault();
});

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a");
  if (!anchor || event.button || event.ctrlKey || event.metaKey || event.shiftKey || anchor.hasAttribute("download")) return;
  const href = anchor.getAttribute("href") || "";
  if (!href.startsWith("/console/") || href.startsWith("/console/api/")) return;
  event.preventDefault();
  head.querySelector(".found")?.setAttribute("hidden", "");
  go(href);
  window.scrollTo(0, 0);
});
window.addEventListener("popstate", show);

function logIn(kind) {
  loginPage(kind, async (values) => {
    await post("login", values);
    await boot();
  });
}

async function logOut() {
  await post("logout", {});
  await boot();
}

async function boot() {
  paint();
  try {
    await loadSession();
  } catch (error) {
    put(main, note(error.message, "bad"));
    setTimeout(boot, 3000);
    return;
  }
  drawHead();
  drawNav("");
  watchHealth();
  if (session.login) {
    state.mounted?.abort.abort();
    put(main);
    logIn(session.login);
  } else show();
}

boot();
