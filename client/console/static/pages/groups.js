// All groups, and one with its owners, lag, members and what can be done with it.
import { post } from "../lib/api.js";
import { badge, groupLink, h, link, path, put, query, topicLink } from "../lib/dom.js";
import { compact, count, duration, moment } from "../lib/format.js";
import { button, dialog, doing } from "../lib/forms.js";
import { filterBox, table } from "../lib/table.js";
import { resetDialog } from "./reset.js";

export function groupsPage(root, context) {
  const groups = table({
    label: "Groups", empty: "No group has read anything yet.", key: (row) => row.group, sorted: 1, descending: true,
    columns: [
      { title: "Group", cell: (row) => groupLink(row.group), sort: (row) => row.group },
      { title: "Lag", right: true, cell: (row) => (row.broadcasting ? "own offsets" : count(row.lag)), sort: (row) => row.lag },
      { title: "Oldest unread", right: true, cell: (row) => (row.lag ? duration(row.age) : "–"), sort: (row) => row.age },
      { title: "Members", right: true, cell: (row) => row.members, sort: (row) => row.members },
      { title: "Topics", wide: true, cell: (row) => row.topics.flatMap((name, index) => [index ? ", " : "", topicLink(name)]) },
      { title: "State", cell: states },
    ],
  });
  put(root, h("div", { class: "title" }, h("h1", {}, "Groups"), h("div", { class: "tools" }, filterBox(groups, "Filter groups"))),
    h("section", { class: "panel flush" }, groups.element));
  return {
    every: 5,
    async refresh() {
      groups.update((await context.ask("groups", {})).groups);
    },
  };
}

function states(row) {
  const found = [];
  if (row.conflicts) found.push(badge("conflicting subscriptions", "bad"));
  if (row.paused) found.push(badge("paused", "warn"));
  if (row.growing) found.push(badge("growing", "warn"));
  if (row.broadcasting) found.push(badge("broadcasting"));
  if (!row.members) found.push(badge("offline", row.lag ? "warn" : ""));
  return found.length ? found : badge("online", "good");
}

export function groupPage(root, context) {
  const name = context.one;
  const lead = h("p", { class: "lead" });
  const tools = h("div", { class: "tools" });
  const conflicts = h("div");
  let found = null;
  const queues = table({
    label: "Queues of the group", empty: "The group has no offsets yet.", key: (row) => `${row.topic}/${row.broker}/${row.queue}`, sorted: 6, descending: true,
    columns: [
      { title: "Queue", cell: (row) => [topicLink(row.topic), h("span", { class: "mono muted" }, ` ${row.broker}/${row.queue}`)], sort: (row) => `${row.topic}/${row.broker}/${String(row.queue).padStart(6, "0")}` },
      { title: "Owner", mono: true, cell: (row) => row.owner || h("span", { class: "muted" }, "nobody") },
      { title: "Committed", right: true, cell: (row) => count(row.committed) },
      { title: "Sent", right: true, cell: (row) => count(row.sent) },
      { title: "End", right: true, cell: (row) => count(row.end) },
      { title: "Progress", wide: true, cell: (row) => h("span", { class: "meter", "aria-hidden": "true" }, h("i", { css: { width: `${row.end ? Math.round((row.committed / row.end) * 100) : 100}%` } })) },
      { title: "Lag", right: true, cell: (row) => count(row.lag), sort: (row) => row.lag },
      { title: "Oldest", right: true, cell: (row) => (row.lag ? duration(row.age) : "–"), sort: (row) => row.age },
      { title: "", hidden: "Unread messages", cell: (row) => (row.lag ? link(query(path("topics", row.topic), { tab: "messages", mode: "unread", group: name }), "Unread") : "") },
    ],
  });
  const members = table({
    label: "Members", empty: "Nobody is online.", key: (row) => row.client,
    columns: [
      { title: "Client", mono: true, cell: (row) => row.client },
      { title: "Address", mono: true, cell: (row) => row.address },
      { title: "Language", cell: (row) => row.language },
      { title: "Queues", right: true, cell: (row) => row.owned },
    ],
  });
  const subscriptions = table({
    label: "Subscriptions", empty: "No member says what it wants.", key: (row) => row.topic,
    columns: [
      { title: "Topic", cell: (row) => topicLink(row.topic) },
      { title: "Kind", cell: (row) => row.kind },
      { title: "Expression", mono: true, wide: true, cell: (row) => row.expression },
    ],
  });
  const events = table({
    label: "Joins and leaves", empty: "Nobody came or left while this console was looking.", key: (row) => `${row.at} ${row.client} ${row.event}`,
    columns: [
      { title: "Time", mono: true, cell: (row) => moment(row.at) },
      { title: "What", cell: (row) => badge(row.event, row.event === "left" ? "warn" : "good") },
      { title: "Client", mono: true, wide: true, cell: (row) => row.client },
    ],
  });
  const since = h("p", { class: "muted small" });
  put(root,
    h("div", { class: "title" }, h("div", {}, h("p", { class: "crumb" }, link(path("groups"), "Groups")), h("h1", {}, name), lead), tools), conflicts,
    h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Queues")), queues.element),
    h("div", { class: "split even" },
      h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Members")), members.element),
      h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Subscriptions")), subscriptions.element)),
    h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Joins and leaves"), since), events.element));
  const pause = button("Pause…", () => pauseDialog(context, found), "");
  const changes = [
    button("Reset…", () => resetDialog(context, found, "time"), ""),
    button("Skip backlog…", () => resetDialog(context, found, "last"), ""), pause,
  ];
  changes.forEach((one) => { one.disabled = true; }); // until it is known what there is to change
  if (context.session.write) put(tools, changes);
  return {
    every: 3,
    async refresh() {
      found = await context.ask("group", { group: name });
      const lag = found.queues.reduce((sum, row) => sum + row.lag, 0);
      const age = Math.max(0, ...found.queues.map((row) => row.age || 0));
      put(lead,
        found.broadcasting ? "broadcasting: each member keeps its own offsets" : [h("b", {}, count(lag)), ` message${lag === 1 ? "" : "s"} behind`, lag ? ` · oldest ${duration(age)}` : ""],
        ` · ${found.members.length} member${found.members.length === 1 ? "" : "s"} · at most ${Object.values(found.config)[0]?.retryMaxTimes ?? "?"} retries `,
        found.paused ? badge("paused", "warn") : null);
      changes.forEach((one) => { one.disabled = false; });
      put(pause, found.paused ? "Resume…" : "Pause…");
      put(conflicts, found.conflicts.length ? h("div", { class: "note bad" }, "Members subscribe differently, so messages are lost: ",
        found.conflicts.map((row) => `${row.client} wants ${row.expression || "none"} of ${row.topic}`).join("; ")) : null);
      queues.update(found.queues);
      members.update(found.members.map((row) => ({ ...row, owned: found.owned[row.client] || 0 })));
      subscriptions.update(found.subscriptions);
      events.update(found.events);
      put(since, `seen since ${moment(found.watched_since)}`);
    },
  };
}

function pauseDialog(context, found) {
  const resumes = found.paused;
  dialog(resumes ? `Let ${found.group} consume again` : `Pause ${found.group}`, (content, close) => {
    const trouble = h("div");
    const lag = found.queues.reduce((sum, row) => sum + row.lag, 0);
    const sure = button(resumes ? "Resume" : "Pause", () => doing(sure, trouble, async () => {
      await post("pause", { group: found.group, consume: resumes });
      close();
      context.refresh();
    }), resumes ? "primary" : "danger");
    put(content,
      h("p", {}, resumes
        ? `Its members get messages again; ${compact(lag)} wait.`
        : `Brokers refuse its ${found.members.length} members from now on; nothing is lost, offsets stay, the lag grows.`),
      trouble, h("div", { class: "actions" }, sure));
  });
}
