// Clients, settings, brokers and replicas.
import { badge, groupLink, h, put } from "../lib/dom.js";
import { bytes, count, duration } from "../lib/format.js";
import { check } from "../lib/forms.js";
import { filterBox, table } from "../lib/table.js";

export function clientsPage(root, context) {
  const clients = table({
    label: "Clients", empty: "Nobody is connected.", key: (row) => row.client, sorted: 0,
    columns: [
      { title: "Client", mono: true, cell: (row) => [row.client, row.self ? badge("this console") : null], sort: (row) => row.client },
      { title: "Address", mono: true, cell: (row) => row.address, sort: (row) => row.address },
      { title: "Language", cell: (row) => row.language, sort: (row) => row.language },
      { title: "Consumes as", wide: true, cell: (row) => row.consumes.flatMap((name, index) => [index ? ", " : "", groupLink(name)]) },
      { title: "Produces as", cell: (row) => row.produces.join(", ") },
    ],
  });
  put(root, h("div", { class: "title" }, h("h1", {}, "Clients"), h("div", { class: "tools" }, filterBox(clients, "Filter clients"))), h("section", { class: "panel flush" }, clients.element));
  return {
    every: 5,
    async refresh() {
      const found = await context.ask("clients", {});
      clients.update(found.clients.map((row) => ({ ...row, self: row.client === found.self })));
    },
  };
}

export function settingsPage(root, context) {
  const all = check("All settings", { on: { change: () => context.refresh() } });
  const lead = h("p", { class: "lead" });
  const place = h("div");
  const box = h("span");
  let shown = "";
  let settings = null;
  put(root, h("div", { class: "title" }, h("div", {}, h("h1", {}, "Settings"), lead), h("div", { class: "tools" }, box, all.element)), h("section", { class: "panel flush" }, place));
  return {
    every: 10,
    async refresh() {
      const found = await context.ask("settings", { all: all.box.checked ? "1" : "" });
      put(lead, all.box.checked ? `${count(found.settings.length)} settings` : `${count(found.settings.length)} differ from their default`);
      if (shown !== found.brokers.join()) {
        shown = found.brokers.join();
        settings = table({
          label: "Settings", empty: "Everything is as by default.", key: (row) => row.key, sorted: 0,
          columns: [
            { title: "Setting", mono: true, cell: (row) => row.key, sort: (row) => row.key },
            ...found.brokers.map((name, index) => ({ title: name, mono: true, cell: (row) => (row.differs ? h("b", {}, row.values[index] ?? "–") : row.values[index] ?? "–") })),
            { title: "Default", mono: true, cell: (row) => row.default ?? "" },
            { title: "Unit", cell: (row) => row.unit },
            { title: "Live", cell: (row) => (row.live === true ? "yes" : row.live === false ? "at a restart" : "") },
            { title: "Meaning", wide: true, cell: (row) => h("span", { class: "meaning" }, row.meaning) },
          ],
        });
        put(place, settings.element);
        put(box, filterBox(settings, "Filter settings"));
      }
      settings.update(found.settings);
    },
  };
}

export function clusterPage(root, context) {
  const servers = table({
    label: "Name servers", empty: "None.", key: (row) => row.address,
    columns: [
      { title: "Address", mono: true, cell: (row) => row.address },
      { title: "Answers in", right: true, cell: (row) => (row.error ? "–" : duration(row.ms)) },
      { title: "State", wide: true, cell: (row) => (row.error ? badge(row.error, "bad") : badge("answers", "good")) },
    ],
  });
  const brokers = table({
    label: "Brokers", empty: "The name servers know none.", key: (row) => row.address,
    columns: [
      { title: "Broker", cell: (row) => `${row.name} #${row.number}` },
      { title: "Cluster", cell: (row) => row.cluster },
      { title: "Route says", mono: true, cell: (row) => row.address },
      { title: "Answers in", right: true, cell: (row) => (row.error ? "–" : duration(row.ms)) },
      { title: "Role", cell: (row) => row.role || "" },
      { title: "Kind", cell: (row) => (row.error ? "" : row.ours ? "Aerobee" : `RocketMQ ${row.version}`) },
      { title: "Log end", right: true, cell: (row) => count(row.end) },
      { title: "State", wide: true, cell: (row) => (row.error ? badge(row.error, "bad") : row.refused ? badge(row.refused, "bad") : badge(row.permission === "6" || row.permission === "7" || !row.permission ? "read and write" : `permission ${row.permission}`, row.permission === "4" ? "warn" : "good")) },
    ],
  });
  const slaves = table({
    label: "Replicas", empty: "No slave copies a log.", key: (row) => `${row.master} ${row.address}`,
    columns: [
      { title: "Master", cell: (row) => row.master },
      { title: "Slave", mono: true, cell: (row) => row.address },
      { title: "Behind", right: true, cell: (row) => bytes(row.behind) },
      { title: "Gets", right: true, cell: (row) => `${bytes(row.speed)}/s` },
      { title: "In sync", wide: true, cell: (row) => (row.in_sync ? badge("in sync", "good") : badge("behind", "warn")) },
    ],
  });
  put(root, h("div", { class: "title" }, h("h1", {}, "Cluster")),
    h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Brokers")), brokers.element),
    h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Replicas")), slaves.element),
    h("section", { class: "panel flush" }, h("div", { class: "panel-head" }, h("h2", {}, "Name servers")), servers.element));
  return {
    every: 5,
    async refresh() {
      const found = await context.ask("cluster", {});
      servers.update(found.name_servers);
      brokers.update(found.brokers);
      slaves.update(found.brokers.flatMap((row) => (row.slaves || []).map((slave) => ({ ...slave, master: row.name }))));
    },
  };
}
