// Asking the console's server. Changes carry the session's token.

export const session = { token: "", user: "", write: false, bodies: true, login: "" };

export class Refusal extends Error {
  constructor(status, text, login) {
    super(text);
    this.status = status;
    this.login = login || "";
  }
}

async function answer(response) {
  const found = await response.json().catch(() => ({ error: `the console answered ${response.status}` }));
  if (!response.ok) throw new Refusal(response.status, found.error, found.login);
  return found;
}

async function ask(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The console does not answer: is it still running?");
  }
}

export function address(name, params) {
  const found = new URLSearchParams();
  for (const [key, value] of Object.entries(params || {})) {
    if (value !== undefined && value !== null && value !== "") found.set(key, value);
  }
  const text = found.toString();
  return `/console/api/${name}${text ? `?${text}` : ""}`;
}

export async function get(name, params, signal) {
  return answer(await ask(address(name, params), { signal }));
}

export async function post(name, body) {
  const headers = { "Content-Type": "application/json", "X-Aerobee-Token": session.token };
  return answer(await ask(`/console/api/${name}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

export async function loadSession() {
  Object.assign(session, await get("session"));
  return session;
}
