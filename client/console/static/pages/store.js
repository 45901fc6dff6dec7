// The files of the log on a time line, and when space ends.
import { h, put, svg } from "../lib/dom.js";
import { bytes, count, duration, moment, percent } from "../lib/format.js";
import { note } from "../lib/forms.js";

const WIDTH = 900;

export function storePage(root, context) {
  const place = h("div");
  put(root, h("div", { class: "title" }, h("div", {}, h("h1", {}, "Store"), h("p", { class: "lead" }, "What is kept, until when, and when space ends."))), place);
  return {
    every: 5,
    async refresh() {
      const found = await context.ask("store", {});
      put(place, found.brokers.map(broker));
    },
  };
}

function broker(row) {
  const title = h("div", { class: "panel-head" }, h("h2", {}, `${row.name}${row.number ? ` #${row.number}` : ""}`));
  if (row.error) return h("section", { class: "panel" }, title, note(row.error, "bad"));
  const known = row.segments.filter((one) => one.since);
  const next = known.filter((one) => one.expires && one.expires > row.now).sort((a, b) => a.expires - b.expires)[0];
  const facts = [
    ["Messages since", row.earliest > 0 ? moment(row.earliest) : "none yet"],
    ["Log", `${bytes(row.max - row.min)} in ${count(row.segments.length)} file${row.segments.length === 1 ? "" : "s"}`],
    ["Grows by", row.growth ? `${bytes(row.growth * 3600)} an hour` : "nothing now"],
    ["Free", `${bytes(row.free)} (${percent(row.disk)} used)`],
    ["Space ends", row.ends === null ? "not before old files go" : row.ends === 0 ? "files go early now" : `in ${duration(row.ends)}`],
    ["Kept for", `${row.reserved_hours} h, removed at ${row.delete_when} o'clock`],
    ["Next file goes", next ? `after ${moment(next.expires)}` : "–"],
    ["Not flushed yet", row.flush_behind === null ? "–" : bytes(row.flush_behind)],
    ["Not dispatched yet", bytes(row.dispatch_behind)],
    ["Flush", row.flush],
  ];
  return h("section", { class: "panel" }, title,
    h("dl", { class: "cards" }, facts.flatMap(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    known.length ? line(row, known) : h("p", { class: "empty" }, "The log is empty."));
}

function line(row, segments) {
  const first = segments[0].since;
  const span = Math.max(1, row.now - first);
  const x = (at) => ((at - first) / span) * WIDTH;
  const parts = segments.map((one, index) => {
    const until = one.until ?? segments[index + 1]?.since ?? row.now;
    const old = one.expires && one.expires < row.now;
    return svg("rect", { x: x(one.since), y: 4, width: Math.max(2, x(until) - x(one.since) - 1), height: 26, rx: 2, class: `segment ${old ? "old" : ""}` },
      svg("title", {}, `${one.file}: ${bytes(one.bytes)}, ${moment(one.since)} to ${moment(until)}`));
  });
  const label = `${segments.length} files from ${moment(first)} to now`;
  return h("figure", { class: "timeline" },
    svg("svg", { viewBox: `0 0 ${WIDTH} 52`, class: "chart", role: "img", "aria-label": label }, parts,
      svg("text", { x: 0, y: 48, class: "axis start" }, moment(first)), svg("text", { x: WIDTH, y: 48, class: "axis end" }, "now")),
    h("figcaption", { class: "muted small" }, "One block a file of the log, from its first to its last message."));
}
