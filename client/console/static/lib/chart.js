// Lines over time, bars over time: small pictures, with their figures in words beside them.
import { put, svg } from "./dom.js";
import { time } from "./format.js";

const WIDTH = 900;
const LINES_WIDTH = 700;

// series: [{ name, color (a class), value(sample) }]
export function lines({ label, series, format, height = 190, most = 900000 }) {
  const left = 52;
  const bottom = 22;
  const element = svg("svg", { viewBox: `0 0 ${LINES_WIDTH} ${height}`, class: "chart", role: "img", "aria-label": label });

  function update(samples) {
    const last = samples.length ? samples[samples.length - 1].at : Date.now();
    const seen = samples.length ? last - samples[0].at : 0;
    const span = Math.min(most, Math.max(120000, seen));
    const first = last - span;
    const found = samples.filter((row) => row.at >= first);
    const top = nice(Math.max(1, ...found.flatMap((row) => series.map((one) => one.value(row) || 0))));
    const x = (at) => left + ((at - first) / span) * (LINES_WIDTH - left - 8);
    const y = (value) => 8 + (1 - value / top) * (height - bottom - 8);
    const parts = [0, 0.5, 1].flatMap((part) => [
      svg("line", { x1: left, x2: LINES_WIDTH - 8, y1: y(top * part), y2: y(top * part), class: "grid" }),
      svg("text", { x: left - 8, y: y(top * part) + 4, class: "axis end" }, format(top * part)),
    ]);
    for (let part = 0; part <= 3; part += 1) {
      const at = first + (span * part) / 3;
      const place = part === 0 ? "start" : part === 3 ? "end" : "middle";
      parts.push(svg("text", { x: x(at), y: height - 5, class: `axis ${place}` }, time(at).slice(0, 5)));
    }
    for (const one of series) {
      const points = found.map((row) => `${x(row.at).toFixed(1)},${y(one.value(row) || 0).toFixed(1)}`);
      if (points.length > 1) {
        const base = y(0).toFixed(1);
        const edge = `${points[0].split(",")[0]},${base} ${points.join(" ")} ${points[points.length - 1].split(",")[0]},${base}`;
        parts.push(svg("polygon", { points: edge, class: `area ${one.color}` }));
        parts.push(svg("polyline", { points: points.join(" "), class: `line ${one.color}` }));
      } else if (points.length) {
        const [cx, cy] = points[0].split(",");
        parts.push(svg("circle", { cx, cy, r: 2.5, class: `dot ${one.color}` }));
      }
    }
    put(element, parts);
  }

  return { element, update };
}

// bars: [{ label, value, title }]
export function bars({ label, bars: rows, height = 150 }) {
  const top = Math.max(1, ...rows.map((row) => row.value));
  const step = WIDTH / Math.max(1, rows.length);
  const parts = rows.flatMap((row, index) => {
    const size = row.value ? Math.max(2, (row.value / top) * (height - 44)) : 0;
    const x = index * step;
    const every = Math.ceil(rows.length / 8);
    return [
      svg("rect", { x: x + 2, y: height - 22 - size, width: Math.max(1, step - 4), height: size, rx: 2, class: "bar" },
        svg("title", {}, row.title)),
      row.value ? svg("text", { x: x + step / 2, y: height - 28 - size, class: "axis middle" }, String(row.value)) : null,
      index % every === 0 ? svg("text", { x: x + step / 2, y: height - 5, class: "axis middle" }, row.label) : null,
    ];
  });
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "chart", role: "img", "aria-label": label }, parts);
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 5, 10]) if (value <= step * power) return step * power;
  return 10 * power;
}
