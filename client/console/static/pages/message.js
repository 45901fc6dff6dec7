// One message: its body, its properties, its life, and what became of it in each group.
import { address, post } from "../lib/api.js";
import { badge, groupLink, h, link, path, put, query, topicLink, visible } from "../lib/dom.js";
import { bytes, indented, moment } from "../lib/format.js";
import { button, dialog, doing, field, note, select } from "../lib/forms.js";
import { table } from "../lib/table.js";
import { sendDialog } from "./send.js";

const SHOWN = ["KEYS", "TAGS", "UNIQ_KEY"]; // told by other names already
const KINDS = { dead: "bad", filtered: "warn", offline: "warn", paused: "warn", behind: "warn", in_retry: "warn", passed: "good", consumed: "good", sent: "good" };

export function messagePage(root, context) {
  const { topic, id } = context.params;
  const title = h("h1", { class: "mono small-title" }, id);
  const lead = h("p", { class: "lead" });
  const tools = h("div", { class: "tools" });
  const body = h("div");
  const facts = h("dl", { class: "facts" });
  const life = h("ol", { class: "life" });
  const groups = table({
    label: "What became of it in each group", empty: "No group reads this topic.", key: (row) => row.group,
    columns: [
      { title: "Group", cell: (row) => (row.group === "*" ? "every group" : groupLink(row.group)) },
      { title: "Verdict", cell: (row) => badge(row.verdict.replaceAll("_", " "), KINDS[row.verdict]) },
      { title: "Why", wide: true, cell: (row) => [row.text, row.remedy ? h("small", { class: "remedy" }, row.remedy) : null] },
    ],
  });
  put(root,
    h("div", { class: "title" }, h("div", {}, h("p", { class: "crumb" }, link(query(path("topics", topic), { tab: "messages" }), topic)), title, lead), tools),
    h("div", { class: "split" },
      h("div", { class: "column" },
        h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Body")), body),
        h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Groups")), groups.element)),
      h("div", { class: "column" },
        h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Life")), life),
        h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Properties")), facts))));
  let shown = "";
  let found = null; // the newest answer: what buttons do is asked of it
  return {
    every: 5,
    async refresh() {
      found = await context.ask("message", { topic, id });
      const message = found.message;
      groups.update(found.groups);
      put(life, found.life.length ? found.life.map(event) : h("li", {}, "No copy of it is left."));
      if (!message) {
        put(lead, "It is not stored any more, or never was.");
        return;
      }
      put(lead, topicLink(message.topic), ` · ${message.broker}/${message.queue} @ ${message.offset} · stored ${moment(message.stored)} · ${bytes(message.size)}`);
      put(facts, pairs(message));
      if (shown === message.offset_id) return;
      shown = message.offset_id;
      drawBody(body, message);
      put(tools,
        message.body ? h("a", { class: "button", download: "", href: address("export", { topic, mode: "id", id }) }, "Export") : null,
        context.session.write ? editButton(context, message) : null,
        context.session.write ? button("Resend to a group…", () => resend(context, found), "") : null);
    },
  };
}

// Of other bodies the dialog would have nothing, or the beginning, and send that.
function editButton(context, message) {
  const body = message.body;
  const whole = body?.text !== undefined && body.shown === body.size;
  const edit = () => sendDialog(context, { ...message, title: "Send as a new message", body: body.text });
  return button("Edit and send as new…", edit, "", whole ? {} : { disabled: true, title: "Only text that is shown whole can be edited" });
}

function event(row) {
  return h("li", { class: row.event.replaceAll(" ", "-") },
    h("time", { class: "mono" }, moment(row.at)), h("strong", {}, row.event), " ", row.text,
    row.due ? h("small", {}, `due ${moment(row.due)}`) : null,
    row.failure ? h("small", {}, `failed: ${row.failure}`) : null,
    row.place ? h("small", { class: "mono" }, row.place) : null);
}

function pairs(message) {
  const rows = [
    ["Key", message.keys.join(" ")], ["Tag", message.tag], ["Born", moment(message.born)], ["Retries", message.reconsumed || null],
    ["Last failure", message.failure], ["Offset id", message.offset_id],
    ...Object.entries(message.properties), ...Object.entries(message.system).filter(([name]) => !SHOWN.includes(name)),
  ];
  return rows.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, String(value))]);
}

function drawBody(place, message) {
  const body = message.body;
  if (!body) {
    put(place, h("p", { class: "muted" }, "This console shows no bodies."));
    return;
  }
  if (body.error) {
    put(place, note(body.error, "bad"));
    return;
  }
  const data = body.base64 !== undefined ? Uint8Array.from(atob(body.base64), (sign) => sign.charCodeAt(0)) : new TextEncoder().encode(body.text);
  const views = body.text === undefined ? {} : { Text: () => body.text };
  try {
    JSON.parse(body.text);
    views.JSON = () => indented(body.text);
  } catch {
    // no JSON
  }
  views.Hex = () => hex(data);
  const pre = h("pre", { class: "body", tabindex: "0", role: "region", "aria-label": "Body of the message" });
  const buttons = Object.keys(views).map((name) => button(name, () => show(name), "quiet", { "aria-pressed": "false" }));
  function show(name) {
    pre.replaceChildren(visible(views[name](), true));
    buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.textContent === name)));
  }
  const cut = body.shown < body.size ? note(`The first ${bytes(body.shown)} of ${bytes(body.size)}; the export has all of it.`, "warn") : null;
  put(place, h("div", { class: "choices" }, buttons), pre, cut);
  show(views.JSON ? "JSON" : views.Text ? "Text" : "Hex");
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length && at < 65536; at += 16) {
    const part = [...data.slice(at, at + 16)];
    const codes = part.map((value) => value.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    const signs = part.map((value) => (value >= 32 && value < 127 ? String.fromCharCode(value) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes} ${signs}`);
  }
  return lines.join("\n");
}

function resend(context, found) {
  dialog("Resend to one group", (content) => {
    const trouble = h("div");
    const names = found.groups.filter((row) => row.group !== "*").map((row) => [row.group, row.group]);
    const group = select(names, names[0]?.[0], { name: "group" });
    const send = button("Resend", () => doing(send, trouble, async () => {
      const answer = await post("resend", { group: group.value, topic: found.message.topic, id: found.message.offset_id });
      put(trouble, note(`${answer.client} answered ${answer.result || "nothing"}${answer.remark ? `: ${answer.remark}` : ""}.`, "good"));
    }), "primary");
    put(content,
      h("p", {}, "One member that is online handles the stored message now; no other group gets it, no offset moves."),
      names.length ? field("Group", group) : note("No group reads this topic."), trouble, h("div", { class: "actions" }, send));
  });
}
