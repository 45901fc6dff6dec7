// Dead letters: who has some, which, and sending chosen ones again.
import { address, get, post } from "../lib/api.js";
import { badge, groupLink, h, link, messageLink, path, put, topicLink } from "../lib/dom.js";
import { ago, count, moment } from "../lib/format.js";
import { button, check, dialog, doing, field, input, note } from "../lib/forms.js";
import { filterBox, table } from "../lib/table.js";

export function deadPage(root, context) {
  const groups = table({
    label: "Groups with dead letters", empty: "No group has dead letters.", key: (row) => row.group, sorted: 1, descending: true,
    columns: [
      { title: "Group", cell: (row) => link(path("dead", row.group), row.group), sort: (row) => row.group },
      { title: "Dead letters", right: true, cell: (row) => count(row.letters), sort: (row) => row.letters },
      { title: "Last 24 hours", right: true, cell: (row) => (row.day ? badge(count(row.day), "warn") : "–"), sort: (row) => row.day },
    ],
  });
  put(root, h("div", { class: "title" }, h("div", {}, h("h1", {}, "Dead letters"), h("p", { class: "lead" }, "Messages whose retries are used up. They stay until retention removes them; a replay sends copies."))),
    h("section", { class: "panel flush" }, groups.element));
  return {
    every: 5,
    async refresh() {
      groups.update((await context.ask("dead", {})).groups);
    },
  };
}

export function lettersPage(root, context) {
  const group = context.one;
  const chosen = new Set();
  const lead = h("p", { class: "lead" });
  const tools = h("div", { class: "tools" });
  const running = h("div");
  const all = h("input", { type: "checkbox", "aria-label": "Choose all that are shown" });
  all.addEventListener("change", () => {
    letters.rows.forEach((row) => (all.checked ? chosen.add(row.offset_id) : chosen.delete(row.offset_id)));
    draw();
  });
  let rows = [];
  const letters = table({
    label: "Dead letters", empty: `Group ${group} has no dead letters.`, key: (row) => `${row.offset_id}${row.chosen}`,
    columns: [
      { title: "", hidden: "Choose", plain: true, cell: (row) => h("input", { type: "checkbox", checked: row.chosen, "aria-label": `Choose ${row.id}`, on: { change: (event) => choose(row, event.target.checked) } }) },
      { title: "Dead since", mono: true, cell: (row) => messageLink({ topic: row.topic, id: row.offset_id }, moment(row.stored)), sort: (row) => row.stored },
      { title: "Came from", cell: (row) => (row.origin ? topicLink(row.origin) : h("span", { class: "muted" }, "unknown")) },
      { title: "Key", cell: (row) => row.keys.join(" ") },
      { title: "Tag", cell: (row) => (row.tag ? badge(row.tag) : "") },
      { title: "Retries", right: true, cell: (row) => row.retries },
      { title: "Last failure", wide: true, cell: (row) => row.failure || h("span", { class: "muted" }, "not said") },
      { title: "Replayed", cell: (row) => (row.replayed ? badge(ago(row.replayed), "good") : "") },
      { title: "Body", wide: true, mono: true, cell: (row) => (row.preview === null ? "" : h("span", { class: "cut" }, row.preview)) },
    ],
  });
  const replay = button("Replay…", () => replayDialog(context, group, [...chosen], running), "primary");
  const jsonl = h("a", { class: "button", download: "" }, "Export");

  function choose(row, on) {
    if (on) chosen.add(row.offset_id);
    else chosen.delete(row.offset_id);
    draw();
  }
  function draw() {
    letters.update(rows.map((row) => ({ ...row, chosen: chosen.has(row.offset_id) })));
    put(replay, chosen.size ? `Replay ${chosen.size}…` : "Replay all…");
    put(jsonl, chosen.size ? `Export ${chosen.size}` : "Export all");
    jsonl.setAttribute("href", address("letters-export", { group, ids: [...chosen].join(",") }));
  }
  put(tools, filterBox(letters, "Filter dead letters"), context.session.bodies ? jsonl : null, context.session.write ? replay : null);
  put(root,
    h("div", { class: "title" }, h("div", {}, h("p", { class: "crumb" }, link(path("dead"), "Dead letters")), h("h1", {}, group), lead), tools), running,
    h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("label", { class: "check" }, all, "All that are shown"), h("span", {}, groupLink(group))), letters.element));
  return {
    every: 5,
    async refresh() {
      const found = await context.ask("letters", { group });
      rows = found.letters;
      const more = found.total > rows.length ? `, the newest ${count(rows.length)} are shown` : "";
      put(lead, `${count(found.total)} dead letter${found.total === 1 ? "" : "s"}${more}`);
      draw();
    },
  };
}

function replayDialog(context, group, ids, running) {
  dialog(ids.length ? `Replay ${ids.length} of ${group}` : `Replay the dead letters of ${group}`, (content, close) => {
    const trouble = h("div");
    const plan = h("div");
    const rate = input({ type: "number", min: "1", max: "10000", value: "100", name: "rate" });
    const to = input({ name: "to", placeholder: "where each came from" });
    const again = check("Also those that were replayed before", {});
    const values = () => ({ group, ids: ids.join(","), to: to.value.trim(), again: again.box.checked ? "1" : "" });
    const start = h("button", { type: "submit", class: "primary" }, "Replay");
    const look = () => doing(start, trouble, async () => {
      const found = await get("replay-preview", values());
      const total = found.targets.reduce((sum, row) => sum + row.letters, 0);
      put(plan, note(total ? `Would send ${found.targets.map((row) => `${row.letters} to ${row.topic || "nowhere: name a topic"}`).join(", ")}.` : "Nothing to send: all were replayed before.", total ? "" : "warn"));
    });
    again.box.addEventListener("change", look);
    to.addEventListener("change", look);
    const submit = (event) => {
      event.preventDefault();
      doing(start, trouble, async () => {
        const job = await post("replay", { ...values(), ids: ids.length ? ids : null, again: again.box.checked, rate: rate.value });
        close();
        follow(context, job, running);
      });
    };
    put(content, h("form", { class: "stack", on: { submit } },
      h("p", {}, "Copies are sent with their keys, tags and properties; every group that reads the topic gets them. The letters stay, marked as replayed."),
      h("div", { class: "row" }, field("A second, at most", rate), field("To topic", to)), again.element, plan, trouble, h("div", { class: "actions" }, start)));
    look();
  });
}

async function follow(context, job, place) {
  const bar = h("progress", { max: String(job.total || 1), value: "0", "aria-label": "Progress of the replay" });
  const said = h("span");
  const stop = button("Stop", () => post("stop-job", { job: job.job }), "quiet");
  put(place, h("div", { class: "note progress" }, bar, said, stop));
  let found = job;
  while (!context.signal.aborted) {
    bar.value = found.done;
    put(said, `${count(found.done)} of ${count(found.total)} sent again`);
    if (found.state !== "running") break;
    await new Promise((resolve) => setTimeout(resolve, 300));
    found = await get("job", { job: job.job });
  }
  const kinds = { done: "good", stopped: "warn", failed: "bad" };
  const refused = found.refused.length ? ` ${found.refused.length} could not be: ${found.refused.slice(0, 3).join("; ")}` : "";
  put(place, note(`${count(found.done - found.refused.length)} of ${count(found.total)} sent again${found.state === "stopped" ? ", then stopped" : ""}${found.error ? `, then: ${found.error}` : ""}.${refused}`, refused ? "warn" : kinds[found.state]));
  context.refresh();
}
