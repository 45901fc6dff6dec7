// All topics, and one of them.
import { badge, groupLink, h, link, path, put, query, topicLink } from "../lib/dom.js";
import { ago, count, moment, rate } from "../lib/format.js";
import { check } from "../lib/forms.js";
import { filterBox, table } from "../lib/table.js";
import { messagesPart } from "./messages.js";
import { sendDialog } from "./send.js";
import { button } from "../lib/forms.js";

export function topicsPage(root, context) {
  const all = check("System topics too", { on: { change: () => context.refresh() } });
  const topics = table({
    label: "Topics", empty: "No topic yet: the first send makes one.", key: (row) => row.topic, sorted: 0,
    columns: [
      { title: "Topic", cell: (row) => [topicLink(row.topic), row.kind === "normal" ? null : badge(row.kind)], sort: (row) => row.topic },
      { title: "Queues", right: true, cell: (row) => row.queues ?? "–", sort: (row) => row.queues },
      { title: "Messages", right: true, cell: (row) => (row.error ? badge(row.error, "bad") : count(row.messages)), sort: (row) => row.messages },
      { title: "In/s", right: true, cell: (row) => rate(row.rate), sort: (row) => row.rate },
      { title: "Newest", right: true, cell: (row) => ago(row.newest), sort: (row) => row.newest },
      { title: "Read by", wide: true, cell: (row) => (row.groups.length ? names(row.groups) : h("span", { class: "muted" }, "nobody")) },
    ],
  });
  put(root, h("div", { class: "title" }, h("h1", {}, "Topics"), h("div", { class: "tools" }, filterBox(topics, "Filter topics"), all.element)),
    h("section", { class: "panel flush" }, topics.element));
  return {
    every: 5,
    async refresh() {
      topics.update((await context.ask("topics", { all: all.box.checked ? "1" : "" })).topics);
    },
  };
}

function names(groups) {
  const shown = groups.slice(0, 4).flatMap((name, index) => [index ? ", " : "", groupLink(name)]);
  return groups.length > 4 ? [...shown, ` and ${groups.length - 4} more`] : shown;
}

const TABS = [["queues", "Queues"], ["messages", "Messages"], ["groups", "Groups"], ["settings", "Settings"]];

export function topicPage(root, context) {
  const name = context.one;
  const tab = context.params.tab || "queues";
  const lead = h("p", { class: "lead" });
  const content = h("div");
  const tabs = h("nav", { class: "tabs", "aria-label": "Parts of the topic" }, TABS.map(([key, title]) =>
    h("a", { href: query(path("topics", name), { tab: key }), "aria-current": key === tab ? "page" : null }, title)));
  const send = context.session.write ? button("Send a message", () => sendDialog(context, { topic: name }), "primary") : null;
  put(root, h("div", { class: "title" }, h("div", {}, h("p", { class: "crumb" }, link(path("topics"), "Topics")), h("h1", {}, name), lead), h("div", { class: "tools" }, send)), tabs, content);
  const parts = { queues, groups, settings };
  if (tab === "messages") {
    const part = messagesPart(content, context, name);
    return { async refresh() { part.start?.(); } };
  }
  const draw = (parts[tab] || queues)(content);
  return {
    every: 3,
    async refresh() {
      const found = await context.ask("topic", { topic: name });
      const total = found.queues.reduce((sum, row) => sum + row.max - row.min, 0);
      put(lead, `${found.queues.length} queues · ${count(total)} messages · ${rate(found.rate)} in/s · read by ${found.groups.length} group${found.groups.length === 1 ? "" : "s"}`);
      draw(found);
    },
  };
}

function queues(content) {
  const rows = table({
    label: "Queues", empty: "No queue can be read.", key: (row) => `${row.broker}/${row.queue}`,
    columns: [
      { title: "Queue", mono: true, cell: (row) => `${row.broker}/${row.queue}` },
      { title: "From", right: true, cell: (row) => count(row.min) },
      { title: "To", right: true, cell: (row) => count(row.max) },
      { title: "Messages", right: true, cell: (row) => count(row.max - row.min), sort: (row) => row.max - row.min },
      { title: "In/s", right: true, cell: (row) => rate(row.rate), sort: (row) => row.rate },
      { title: "Oldest", right: true, cell: (row) => moment(row.oldest) },
      { title: "Newest", right: true, cell: (row) => moment(row.newest) },
      { title: "Share", wide: true, cell: (row) => h("span", { class: "meter", "aria-hidden": "true" }, h("i", { css: { width: `${row.share}%` } })) },
    ],
  });
  put(content, h("section", { class: "panel flush" }, rows.element));
  return (found) => {
    const top = Math.max(1, ...found.queues.map((row) => row.max - row.min));
    rows.update(found.queues.map((row) => ({ ...row, share: Math.round(((row.max - row.min) / top) * 100) })));
  };
}

function groups(content) {
  const rows = table({
    label: "Groups", empty: "No group reads this topic.", key: (row) => row.group,
    columns: [
      { title: "Group", cell: (row) => groupLink(row.group), sort: (row) => row.group },
      { title: "Lag", right: true, cell: (row) => count(row.lag), sort: (row) => row.lag },
      { title: "", hidden: "Messages", cell: (row) => link(query(path("topics", row.topic), { tab: "messages", mode: "unread", group: row.group }), "What it has not read") },
    ],
  });
  put(content, h("section", { class: "panel flush" }, rows.element));
  return (found) => rows.update(found.groups.map((row) => ({ ...row, topic: found.topic })));
}

function settings(content) {
  const rows = table({
    label: "Settings", empty: "The brokers do not report them.", key: (row) => `${row.broker} ${row.name}`,
    columns: [
      { title: "Broker", cell: (row) => row.broker },
      { title: "Setting", mono: true, cell: (row) => row.name },
      { title: "Value", mono: true, wide: true, cell: (row) => row.value },
    ],
  });
  put(content, h("section", { class: "panel flush" }, rows.element));
  return (found) => rows.update(Object.entries(found.config).flatMap(([broker, config]) =>
    Object.entries(config).map(([name, value]) => ({ broker, name, value: typeof value === "object" ? JSON.stringify(value) : String(value) }))));
}
