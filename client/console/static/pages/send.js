// A form that sends a message: a test, or a stored one as edited.
import { post } from "../lib/api.js";
import { h, messageLink, put } from "../lib/dom.js";
import { dialog, doing, field, input, note } from "../lib/forms.js";

export function sendDialog(context, start) {
  dialog(start.title || `Send to ${start.topic}`, (content) => {
    const trouble = h("div");
    const topic = input({ name: "topic", value: start.topic || "", required: true });
    const body = h("textarea", { name: "body", rows: "8", spellcheck: "false" });
    body.value = start.body || "";
    const key = input({ name: "key", value: (start.keys || []).join(" ") });
    const tag = input({ name: "tag", value: start.tag || "" });
    const delay = input({ name: "delay", type: "number", min: "0", step: "any" });
    const properties = h("textarea", { name: "properties", rows: "3", spellcheck: "false" });
    properties.value = Object.entries(start.properties || {}).map(([name, value]) => `${name}=${value}`).join("\n");
    const send = h("button", { type: "submit", class: "primary" }, "Send");
    const submit = (event) => {
      event.preventDefault();
      doing(send, trouble, async () => {
        const pairs = properties.value.split("\n").filter((line) => line.includes("=")).map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1)]);
        const found = await post("send", {
          topic: topic.value, body: body.value, key: key.value, tag: tag.value, delay: delay.value,
          properties: Object.fromEntries(pairs),
        });
        put(trouble, note(["Stored as ", messageLink({ topic: topic.value, id: found.id }), ` in ${found.broker}/${found.queue} at ${found.offset}.`].map((part) => part), "good"));
        context.refresh();
      });
    };
    put(content, h("form", { class: "stack", on: { submit } },
      field("Topic", topic), field("Body", body),
      h("div", { class: "row" }, field("Keys", key, "Separate several with spaces."), field("Tag", tag), field("Delay, seconds", delay)),
      field("Properties", properties, "One name=value a line."),
      trouble, h("div", { class: "actions" }, send)));
  });
}
