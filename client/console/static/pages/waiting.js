// What waits for its time: timers and delay levels; and half messages of transactions.
import { post } from "../lib/api.js";
import { bars } from "../lib/chart.js";
import { h, put, topicLink } from "../lib/dom.js";
import { bytes, count, duration, moment } from "../lib/format.js";
import { button, dialog, doing, toast } from "../lib/forms.js";
import { filterBox, table } from "../lib/table.js";

const STEPS = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 21600, 86400, 604800].map((seconds) => seconds * 1000);

export function waitingPage(root, context) {
  const lead = h("p", { class: "lead" });
  const picture = h("div");
  const write = context.session.write;
  const timers = table({
    label: "Timers", empty: "No timer waits.", key: (row) => row.handle,
    columns: [
      { title: "Due", mono: true, cell: (row) => moment(row.due), sort: (row) => row.due },
      { title: "In", right: true, cell: (row) => duration(Math.max(0, row.due - Date.now())) },
      { title: "Topic", cell: (row) => topicLink(row.topic), sort: (row) => row.topic },
      { title: "Key", cell: (row) => row.keys || "" },
      { title: "Id", mono: true, wide: true, cell: (row) => row.id },
      { title: "Size", right: true, cell: (row) => bytes(row.size) },
      { title: "", hidden: "Recall", cell: (row) => (write ? button("Recall…", () => recall(context, row), "quiet") : "") },
    ],
  });
  const levels = table({
    label: "Delay levels", empty: "Nothing waits in a delay level.", key: (row) => `${row.broker} ${row.level}`,
    columns: [
      { title: "Level", cell: (row) => `${row.level} (${duration(row.seconds * 1000)})` },
      { title: "Broker", cell: (row) => row.broker },
      { title: "Waiting", right: true, cell: (row) => count(row.count) },
      { title: "Next due", mono: true, right: true, cell: (row) => moment(row.due[0]) },
      { title: "For", wide: true, cell: (row) => row.topics.map((name) => (name.startsWith("%RETRY%") ? `retries of ${name.slice(7)}` : name)).join(", ") },
    ],
  });
  const timersPanel = h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Timers"), filterBox(timers, "Filter timers")), timers.element);
  put(root, h("div", { class: "title" }, h("div", {}, h("h1", {}, "Waiting"), lead)),
    h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "When they are due")), picture), timersPanel,
    h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Delay levels and retries")), levels.element));
  return {
    every: 5,
    async refresh() {
      const found = await context.ask("waiting", {});
      const due = [...found.timers.map((row) => row.due), ...found.levels.flatMap((row) => row.due)];
      const waiting = found.timers.length + found.levels.reduce((sum, row) => sum + row.count, 0);
      put(lead, `${count(waiting)} message${waiting === 1 ? "" : "s"} wait for their time`, found.timers.length === found.limit ? ` (the next ${count(found.limit)} timers are shown)` : found.all_timers ? "" : " (older timers than those that were looked at may wait, too)");
      put(picture, due.length ? histogram(due, found.now) : h("p", { class: "empty" }, "Nothing waits."));
      timers.update(found.timers);
      levels.update(found.levels);
    },
  };
}

function histogram(due, now) {
  const span = Math.max(1000, Math.max(...due) - now);
  const step = STEPS.find((size) => span / size <= 30) || STEPS[STEPS.length - 1];
  const size = Math.min(60, Math.ceil(span / step) || 1);
  const counts = new Array(size).fill(0);
  due.forEach((at) => { counts[Math.min(size - 1, Math.max(0, Math.floor((at - now) / step)))] += 1; });
  const rows = counts.map((value, index) => ({
    value, label: index ? `+${duration(step * index)}` : "now", title: `${value} due in ${index ? duration(step * index) : "0"} to ${duration(step * (index + 1))}`,
  }));
  const next = Math.min(...due) - now;
  return bars({ label: `${due.length} messages wait; the next is due in ${duration(Math.max(0, next))}, the last in ${duration(span)}`, bars: rows });
}

function recall(context, row) {
  dialog("Take a message back", (content, close) => {
    const trouble = h("div");
    const sure = button("Recall it", () => doing(sure, trouble, async () => {
      const found = await post("recall", { topic: row.topic, handle: row.handle });
      close();
      toast(`${found.recalled || row.id} is recalled`, "good");
      context.refresh();
    }), "danger");
    put(content, h("p", {}, "It will never be delivered to ", h("b", {}, row.topic), ":"), h("p", { class: "mono" }, row.id, row.keys ? ` (${row.keys})` : ""), trouble, h("div", { class: "actions" }, sure));
  });
}

export function transactionsPage(root, context) {
  const lead = h("p", { class: "lead" });
  const halves = table({
    label: "Open transactions", empty: "No transaction is open.", key: (row) => row.id,
    columns: [
      { title: "Age", right: true, cell: (row) => duration(Date.now() - row.born), sort: (row) => -row.born },
      { title: "Topic", cell: (row) => topicLink(row.topic), sort: (row) => row.topic },
      { title: "Producer group", cell: (row) => row.group, sort: (row) => row.group },
      { title: "Checks", right: true, cell: (row) => row.checks },
      { title: "Key", cell: (row) => row.keys.join(" ") },
      { title: "Id", mono: true, cell: (row) => row.id },
      { title: "Body", wide: true, mono: true, cell: (row) => (row.preview === null ? "" : h("span", { class: "cut" }, row.preview)) },
    ],
  });
  put(root, h("div", { class: "title" }, h("div", {}, h("h1", {}, "Transactions"), lead)), h("section", { class: "panel flush" }, halves.element));
  return {
    every: 4,
    async refresh() {
      const found = await context.ask("transactions", {});
      put(lead, `${count(found.halves.length)} half message${found.halves.length === 1 ? "" : "s"} without an end`,
        found.looked_at >= found.limit ? ` among the first ${count(found.limit)}` : "");
      halves.update(found.halves);
    },
  };
}

