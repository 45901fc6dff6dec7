// Numbers, sizes and times as people read them.

export function count(value) {
  if (value === undefined || value === null) return "–";
  return Math.round(value).toLocaleString("en-US");
}

export function rate(value) {
  if (value === undefined || value === null) return "–";
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(1);
  if (value < 10000) return count(value);
  return compact(value);
}

export function compact(value) {
  if (value === undefined || value === null) return "–";
  return new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

export function bytes(value) {
  if (value === undefined || value === null) return "–";
  let power = 0;
  while (value >= 1024 && power < 5) {
    value /= 1024;
    power += 1;
  }
  return `${power && value < 100 ? value.toFixed(1) : Math.round(value)} ${["B", "KB", "MB", "GB", "TB", "PB"][power]}`;
}

export function percent(value) {
  return value === undefined || value === null ? "–" : `${Math.round(value * 100)} %`;
}

export function duration(ms) {
  if (ms === undefined || ms === null) return "–";
  const steps = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]];
  if (ms < 1000) return ms < 10 ? `${Math.max(0, ms).toFixed(1)} ms` : `${Math.round(ms)} ms`;
  for (const [index, [size, unit]] of steps.entries()) {
    if (ms < size) continue;
    const whole = Math.floor(ms / size);
    const next = steps[index + 1];
    const rest = next && whole < 10 ? Math.floor((ms % size) / next[0]) : 0;
    return rest ? `${whole} ${unit} ${rest} ${next[1]}` : `${whole} ${unit}`;
  }
  return "0 s";
}

const pad = (value, width = 2) => String(value).padStart(width, "0");

export function time(ms) {
  if (!ms || ms < 0) return "–";
  const moment = new Date(ms);
  return `${pad(moment.getHours())}:${pad(moment.getMinutes())}:${pad(moment.getSeconds())}.${pad(moment.getMilliseconds(), 3)}`;
}

export function date(ms) {
  if (!ms || ms < 0) return "–";
  const moment = new Date(ms);
  return `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}`;
}

export function moment(ms) {
  if (!ms || ms < 0) return "–";
  const today = date(Date.now()) === date(ms);
  return today ? time(ms) : `${date(ms)} ${time(ms).slice(0, 8)}`;
}

export function ago(ms) {
  if (!ms || ms < 0) return "–";
  const past = Date.now() - ms;
  return past < 1000 ? "now" : `${duration(past)} ago`;
}

// For <input type="datetime-local">, in the browser's own time.
export function localInput(ms) {
  const when = new Date(ms);
  return `${date(ms)}T${pad(when.getHours())}:${pad(when.getMinutes())}:${pad(when.getSeconds())}`;
}

const DEPTH_MAX = 64; // deeper levels are not set off any further

// JSON, one member a line. Its text is laid out as it is: parsed values would show numbers beyond
// 2^53 rounded.
export function indented(json) {
  const tokens = json.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g) ?? [];
  const line = () => `\n${"  ".repeat(Math.min(level, DEPTH_MAX))}`;
  let level = 0;
  let found = "";
  tokens.forEach((token, index) => {
    if (token === "{" || token === "[") {
      level += 1;
      found += token;
      if (tokens[index + 1] !== "}" && tokens[index + 1] !== "]") found += line();
    } else if (token === "}" || token === "]") {
      level -= 1;
      found += tokens[index - 1] === "{" || tokens[index - 1] === "[" ? token : line() + token;
    } else if (token === ",") {
      found += `,${line()}`;
    } else {
      found += token === ":" ? ": " : token;
    }
  });
  return found;
}
