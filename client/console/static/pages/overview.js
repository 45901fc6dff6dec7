// How much, how full, how far behind, and what needs attention.
import { badge, groupLink, h, link, path, put, topicLink } from "../lib/dom.js";
import { lines } from "../lib/chart.js";
import { compact, count, duration, moment, percent, rate } from "../lib/format.js";
import { table } from "../lib/table.js";

export function overviewPage(root, context) {
  const samples = [];
  const title = h("h1", {}, "…");
  const about = h("p", { class: "lead" });
  const tiles = Object.fromEntries(["in", "out", "p99", "disk", "lag"].map((name) => [name, tile()]));
  const chart = lines({
    label: "Messages a second in the last quarter of an hour, in and out",
    series: [
      { name: "in", color: "one", value: (row) => row.in },
      { name: "out", color: "two", value: (row) => row.out },
    ],
    format: compact,
  });
  const attention = h("ul", { class: "attention" });
  const brokers = table({
    label: "Brokers", empty: "The name servers know no broker.", key: (row) => row.address,
    columns: [
      { title: "Broker", cell: (row) => `${row.name}${row.number ? ` #${row.number}` : ""}` },
      { title: "Address", mono: true, cell: (row) => row.address },
      { title: "In/s", right: true, cell: (row) => (row.error ? "–" : rate(row.in)) },
      { title: "Out/s", right: true, cell: (row) => (row.error ? "–" : rate(row.out)) },
      { title: "Send p99", right: true, cell: (row) => (row.p99 === undefined || row.p99 === null ? "–" : `${row.p99} ms`) },
      { title: "Disk", right: true, cell: (row) => percent(row.disk) },
      { title: "Up", right: true, cell: (row) => (row.started ? duration(Date.now() - row.started) : "–") },
      { title: "State", cell: (row) => (row.error ? badge(row.error, "bad") : row.refused ? badge(row.refused, "bad") : badge(row.number ? "slave" : "serving", "good")) },
    ],
  });
  const behind = table({
    label: "Groups that are furthest behind", empty: "Every group is up to date.", key: (row) => row.group,
    columns: [
      { title: "Group", cell: (row) => groupLink(row.group) },
      { title: "Lag", right: true, cell: (row) => count(row.lag) },
      { title: "Oldest unread", right: true, cell: (row) => duration(row.age) },
      { title: "Members", right: true, cell: (row) => row.members },
      { title: "Topics", wide: true, cell: (row) => row.topics.flatMap((name, index) => [index ? ", " : "", topicLink(name)]) },
    ],
  });
  put(root, h("div", { class: "title" }, h("div", {}, title, about)),
    h("div", { class: "tiles" }, tiles.in.element, tiles.out.element, tiles.p99.element, tiles.disk.element, tiles.lag.element),
    h("div", { class: "split" },
      h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Messages a second"),
        h("div", { class: "legend" }, h("span", { class: "one" }, "in"), h("span", { class: "two" }, "out"))), chart.element),
      h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Needs attention")), attention)),
    h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Furthest behind"), link(path("groups"), "All groups")), behind.element),
    h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Brokers"), link(path("cluster"), "Cluster")), brokers.element));

  async function refresh() {
    const since = samples.length ? samples[samples.length - 1].at : 0;
    const found = await context.ask("overview", { since });
    samples.push(...found.samples.filter((row) => row.at > since));
    while (samples.length > 450) samples.shift();
    const troubles = found.attention.filter((row) => row.verdict === "trouble").length;
    const rest = found.attention.length - troubles;
    put(title, troubles ? `${troubles} ${troubles > 1 ? "things are" : "thing is"} wrong` : rest ? `${rest} ${rest > 1 ? "things need" : "thing needs"} attention` : "All is well");
    title.className = troubles ? "bad" : rest ? "warn" : "good";
    const up = found.brokers.filter((row) => !row.error).length;
    put(about, `${found.cluster} · ${up} of ${found.brokers.length} broker${found.brokers.length === 1 ? "" : "s"} answering · watched since ${moment(found.watched_since).slice(0, 8)}`);
    tiles.in.set("Sends", rate(found.now.in), "per second");
    tiles.out.set("Gets", rate(found.now.out), "per second");
    tiles.p99.set("Send p99", found.now.p99 === null ? "–" : `${found.now.p99}`, "ms, since the start");
    tiles.disk.set("Disk used", percent(found.now.disk), found.now.ends === null ? "no end in sight" : `early removal in ${duration(found.now.ends)}`, found.now.disk > 0.85);
    const worst = found.worst;
    tiles.lag.set("Worst lag", worst ? duration(worst.age) : "none", worst ? [count(worst.lag), " messages, ", groupLink(worst.group)] : "every group is up to date", worst && worst.age > 600000);
    chart.update(samples);
    behind.update(found.behind);
    brokers.update(found.brokers);
    put(attention, found.attention.length ? found.attention.map(finding) : h("li", { class: "calm" }, "Nothing. Brokers answer, disks have room, groups keep up."));
  }
  return { refresh, every: 2 };
}

function finding(row) {
  const what = row.group ? link(path("groups", row.group), row.what) : row.dead ? link(path("dead", row.dead), row.what) : row.what;
  return h("li", { class: row.verdict === "trouble" ? "bad" : "warn" },
    h("strong", {}, what), " ", row.text, row.remedy ? h("small", {}, row.remedy) : null);
}

function tile() {
  const name = h("div", { class: "name" });
  const value = h("div", { class: "value" });
  const more = h("div", { class: "more" });
  return {
    element: h("div", { class: "tile" }, name, value, more),
    set(title, text, hint, bad) {
      put(name, title);
      put(value, text);
      put(more, hint);
      value.className = bad ? "value bad" : "value";
    },
  };
}
