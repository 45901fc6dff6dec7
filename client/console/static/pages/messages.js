// Finding messages: by id, key, time, offset, filter, or what a group has not read; and the tail.
import { address } from "../lib/api.js";
import { badge, h, link, messageLink, path, put, query } from "../lib/dom.js";
import { bytes, count, localInput, moment } from "../lib/format.js";
import { button, field, input, note, select } from "../lib/forms.js";
import { table } from "../lib/table.js";

const MODES = [["latest", "Newest"], ["id", "Id"], ["key", "Key"], ["time", "Time"], ["offset", "Offset"], ["unread", "Not read by a group"]];
const TAIL_ROWS = 500;

export function messagesPage(root, context) {
  const content = h("div");
  const topics = h("select", { id: "topic", name: "topic" });
  const chosen = () => context.go(query(path("messages"), { ...context.params, topic: topics.value, everywhere: "" }));
  topics.addEventListener("change", chosen);
  put(root, h("div", { class: "title" }, h("h1", {}, "Messages"), h("div", { class: "tools" }, field("Topic", topics))), content);
  return {
    async refresh() {
      const rows = (await context.ask("topics", {})).topics;
      put(topics, rows.map((row) => h("option", { value: row.topic }, row.topic)));
      const topic = context.params.topic || rows[0]?.topic;
      if (!topic) {
        put(content, h("p", { class: "empty" }, "There is no topic yet."));
        return;
      }
      topics.value = topic;
      if (context.params.everywhere && rows.length > 1) await everywhere(content, context, rows);
      else await messagesPart(content, context, topic).start();
    },
  };
}

// The header's search names no topic: all of them are searched.
async function everywhere(content, context, topics) {
  const { mode, id, key } = context.params;
  const found = results();
  const said = h("div");
  put(content, said, h("section", { class: "panel flush" }, found.element));
  put(said, note(`Looking for ${mode} “${mode === "id" ? id : key}” in ${topics.length} topics…`));
  const rows = [];
  const failures = [];
  const look = async (row) => {
    try {
      const answer = await context.ask("messages", { topic: row.topic, mode, id, key });
      const known = new Set(rows.map((one) => one.offset_id)); // an offset id is found by any topic
      rows.push(...answer.messages.filter((one) => !known.has(one.offset_id)));
    } catch (error) {
      if (error.status !== 404) failures.push(error.message); // 404: it is not in this topic
    }
    found.update(rows);
  };
  for (let at = 0; at < topics.length; at += 4) await Promise.all(topics.slice(at, at + 4).map(look));
  const searched = topics.length - failures.length;
  const unsearched = failures.length ? ` ${failures.length} could not be searched: ${failures[0]}` : "";
  put(said, note(`${rows.length} found in ${searched} topics for ${mode} “${mode === "id" ? id : key}”.${unsearched}`, unsearched ? "warn" : ""));
  if (rows.length === 1 && !failures.length) context.go(query(path("message"), { topic: rows[0].topic, id: rows[0].id }), true);
}

function results() {
  return table({
    label: "Messages", empty: "No message found.", key: (row) => row.offset_id,
    columns: [
      { title: "Stored", mono: true, cell: (row) => messageLink(row, moment(row.stored)) },
      { title: "Queue @ offset", mono: true, cell: (row) => `${row.broker}/${row.queue} @ ${row.offset}` },
      { title: "Key", cell: (row) => row.keys.join(" ") },
      { title: "Tag", cell: (row) => (row.tag ? badge(row.tag) : "") },
      { title: "Size", right: true, cell: (row) => bytes(row.size) },
      { title: "Body", wide: true, mono: true, cell: (row) => (row.preview === null ? h("span", { class: "muted" }, "hidden") : h("span", { class: "cut" }, row.preview)) },
    ],
  });
}

export function messagesPart(content, context, topic) {
  const params = context.params;
  const fields = {
    id: input({ name: "id", value: params.id || "", size: "36" }),
    key: input({ name: "key", value: params.key || "" }),
    since: input({ type: "datetime-local", step: "1", name: "since", value: localInput(Date.now() - 3600000) }),
    until: input({ type: "datetime-local", step: "1", name: "until" }),
    queue: input({ type: "number", min: "0", name: "queue", placeholder: "all" }),
    offset: input({ type: "number", min: "0", name: "offset", value: "0" }),
    group: h("select", { name: "group" }),
    sql: input({ name: "sql", placeholder: "amount > 100 AND region = 'eu'", value: params.sql || "" }),
    tag: input({ name: "tag", value: params.tag || "" }),
  };
  const mode = select(MODES, params.mode || "latest", { name: "mode" });
  const chosen = h("div", { class: "row" });
  const said = h("div", { class: "said" });
  const found = results();
  const more = button("Next page", () => find(true), "");
  const find_ = h("button", { type: "submit", class: "primary" }, "Find");
  const tailing = button("Tail", () => (tail.on ? stopTail() : startTail()), "", { "aria-pressed": "false" });
  const jsonl = h("a", { class: "button", download: "" }, "Export JSON lines");
  const csv = h("a", { class: "button", download: "" }, "CSV");
  const tail = { on: false, cursor: "", rows: [], left: 0 };
  let cursor = "";
  let rows = [];
  let asked = 0; // the last search: an answer to one before it comes too late

  const by = {
    latest: () => [field("Tag", fields.tag), field("SQL92 filter", fields.sql)],
    id: () => [field("Message id", fields.id)],
    key: () => [field("Key", fields.key)],
    time: () => [field("Since", fields.since), field("Until", fields.until), field("Tag", fields.tag), field("SQL92 filter", fields.sql)],
    offset: () => [field("Queue", fields.queue), field("From offset", fields.offset)],
    unread: () => [field("Group", fields.group), field("Tag", fields.tag), field("SQL92 filter", fields.sql)],
  };

  function values() {
    const used = { latest: ["tag", "sql"], id: ["id"], key: ["key"], time: ["since", "until", "tag", "sql"], offset: ["queue", "offset"], unread: ["group", "tag", "sql"] }[mode.value];
    const answer = { topic, mode: mode.value };
    for (const name of used) {
      const text = fields[name].value.trim();
      answer[name] = text && (name === "since" || name === "until") ? new Date(text).getTime() : text;
    }
    return answer;
  }

  function arrange() {
    put(chosen, by[mode.value]());
    offer();
  }

  function offer() {
    const wanted = values();
    for (const [element, format] of [[jsonl, "jsonl"], [csv, "csv"]]) {
      element.setAttribute("href", address("export", { ...wanted, format }));
      element.hidden = !context.session.bodies;
    }
  }

  async function find(next) {
    stopTail();
    offer();
    const search = (asked += 1);
    find_.disabled = true;
    try {
      const answer = await context.ask("messages", { ...values(), cursor: next ? cursor : "" });
      if (tail.on || search !== asked) return; // something else was begun meanwhile
      rows = next ? [...rows, ...answer.messages] : answer.messages;
      cursor = answer.cursor;
      found.update(rows);
      more.hidden = !cursor;
      const looked = answer.passed ? `, ${count(answer.passed)} searched` : "";
      put(said, note(`${count(rows.length)} shown${looked}${answer.stopped ? ": the time for one search was over, go on with the next page" : ""}.`, answer.stopped ? "warn" : ""));
    } catch (error) {
      if (error.name === "AbortError" || search !== asked) return;
      rows = [];
      found.update(rows);
      more.hidden = true;
      put(said, note(error.message, "bad"));
    } finally {
      find_.disabled = false;
    }
  }

  async function startTail() {
    Object.assign(tail, { on: true, cursor: "", rows: [], left: 0 });
    tailing.setAttribute("aria-pressed", "true");
    more.hidden = true;
    put(said, note("Waiting for messages…"));
    found.update([]);
    while (tail.on && !context.signal.aborted) {
      try {
        const answer = await context.ask("tail", { topic, cursor: tail.cursor, tag: fields.tag.value.trim(), sql: fields.sql.value.trim() });
        if (!tail.on) return;
        tail.cursor = answer.cursor;
        tail.left += answer.left_out;
        tail.rows = [...answer.messages.reverse(), ...tail.rows].slice(0, TAIL_ROWS);
        found.update(tail.rows);
        put(said, note(`Tailing: ${count(tail.rows.length)} shown, ${count(tail.left)} left out.`, tail.left ? "warn" : ""));
      } catch (error) {
        if (error.name === "AbortError") return;
        put(said, note(error.message, "bad"));
      }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }

  function stopTail() {
    tail.on = false;
    tailing.setAttribute("aria-pressed", "false");
  }

  async function loadGroups() {
    const names = (await context.ask("topic", { topic })).groups.map((row) => row.group);
    put(fields.group, names.map((name) => h("option", { value: name }, name)));
    if (names.includes(params.group)) fields.group.value = params.group;
  }

  mode.addEventListener("change", arrange);
  const submit = (event) => { event.preventDefault(); find(false); };
  put(content,
    h("form", { class: "panel form", on: { submit, input: offer } },
      h("div", { class: "row" }, field("Find by", mode), chosen),
      h("div", { class: "actions" }, find_, tailing, jsonl, csv)),
    said, h("section", { class: "panel flush" }, found.element), h("div", { class: "actions" }, more));
  more.hidden = true;
  arrange();
  return {
    async start() {
      await loadGroups().catch(() => {});
      const empty = (mode.value === "id" && !fields.id.value) || (mode.value === "key" && !fields.key.value);
      if (!empty && !tail.on) await find(false);
    },
  };
}
