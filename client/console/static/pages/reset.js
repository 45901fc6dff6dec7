// Moving a group: what would change, then the group's name, then the change.
import { get, post } from "../lib/api.js";
import { h, put } from "../lib/dom.js";
import { count, localInput } from "../lib/format.js";
import { check, dialog, doing, field, input, note, select } from "../lib/forms.js";
import { table } from "../lib/table.js";

const TARGETS = [["time", "The first message since a time"], ["first", "The oldest message"], ["last", "Past the newest message"], ["shift", "Forward or back by a number"], ["offset", "An exact offset"]];

export function resetDialog(context, found, target) {
  const topics = [...new Set(found.queues.map((row) => row.topic))];
  const skip = target === "last";
  dialog(skip ? `Skip the backlog of ${found.group}` : `Move ${found.group}`, (content, close) => {
    const to = select(TARGETS, target, { name: "to" });
    const time = input({ type: "datetime-local", step: "1", name: "time", value: localInput(Date.now() - 3600000) });
    const amount = input({ type: "number", name: "amount", value: "0" });
    const queue = input({ type: "number", min: "0", name: "queue", placeholder: "all" });
    const chosen = topics.map((name) => check(name, { value: name, checked: !name.startsWith("%RETRY%") }));
    const value = h("div", { class: "row" });
    const trouble = h("div");
    const result = h("div");
    const preview = h("button", { type: "submit" }, "Preview");

    function arrange() {
      put(value, to.value === "time" ? field("Time", time) : to.value === "shift" || to.value === "offset" ? field(to.value === "shift" ? "By (negative is back)" : "Offset", amount) : null, field("Only queue", queue));
      put(result);
    }
    const values = () => ({
      group: found.group, to: to.value, queue: queue.value,
      time: to.value === "time" ? new Date(time.value).getTime() : "",
      amount: to.value === "shift" || to.value === "offset" ? amount.value : "",
      topic: chosen.filter((row) => row.box.checked).map((row) => row.box.value).join(","),
    });

    function show() {
      return doing(preview, trouble, async () => {
        const wanted = values();
        const plan = await get("reset-preview", wanted);
        const rows = table({
          label: "What would change", empty: "No queue would move.", key: (row) => `${row.topic}/${row.broker}/${row.queue}`,
          columns: [
            { title: "Queue", cell: (row) => `${row.topic} ${row.broker}/${row.queue}` },
            { title: "Old", right: true, cell: (row) => count(row.old) },
            { title: "New", right: true, cell: (row) => count(row.new) },
            { title: "Read again", right: true, cell: (row) => (row.again ? count(row.again) : "–") },
            { title: "Skipped", right: true, cell: (row) => (row.skipped ? count(row.skipped) : "–") },
          ],
        });
        rows.update(plan.moves);
        const name = input({ name: "confirm" });
        const move = h("button", { type: "button", class: "danger", on: { click: () => doing(move, trouble, async () => {
          await post("reset", { group: found.group, moves: plan.moves, confirm: name.value });
          close();
          context.refresh();
        }) } }, "Move the group");
        put(result, note(`${count(plan.again)} messages would be read again, ${count(plan.skipped)} would be skipped.`, plan.skipped ? "warn" : ""),
          rows.element, field(`Type ${found.group} to confirm`, name), h("div", { class: "actions" }, move));
      });
    }
    to.addEventListener("change", arrange);
    const submit = (event) => { event.preventDefault(); show(); };
    put(content, h("form", { class: "stack", on: { submit } },
      field("Move to", to), value,
      h("fieldset", {}, h("legend", {}, "Topics"), chosen.map((row) => row.element)),
      h("div", { class: "actions" }, preview)), trouble, result);
    arrange();
    if (skip) show();
  });
}
