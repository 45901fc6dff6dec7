// The console's token, or a user of the cluster.
import { h, put } from "../lib/dom.js";
import { dialog, doing, field, input } from "../lib/forms.js";

export function loginPage(kind, done) {
  dialog(kind === "token" ? "This console asks for its token" : "Log in as a user of the cluster", (content, close) => {
    const trouble = h("div");
    const token = input({ type: "password", name: "token" });
    const user = input({ name: "user", autocomplete: "username" });
    const secret = input({ type: "password", name: "secret", autocomplete: "current-password" });
    const send = h("button", { type: "submit", class: "primary" }, "Log in");
    const values = () => (kind === "token" ? { token: token.value } : { user: user.value, secret: secret.value });
    const submit = (event) => {
      event.preventDefault();
      doing(send, trouble, async () => {
        await done(values());
        close();
      });
    };
    put(content, h("form", { class: "stack", on: { submit } },
      kind === "token"
        ? field("Token", token, "Whoever started the console gave it with --token or consoleToken.")
        : [field("User (access key)", user), field("Secret", secret, "It stays in the console's memory; requests are signed with it.")],
      trouble, h("div", { class: "actions" }, send)));
  });
}
