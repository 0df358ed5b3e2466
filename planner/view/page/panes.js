// Two plans on one time axis: lanes and memory of every device, the bound, the limit, and where the plans part.

const LEFT = 26, RIGHT = 10, AXIS = 22;
const BARS = new Set(["F", "B", "I", "W", "R", "STEP", "PREDICT"]);
const FONT = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif';
const laid = new Map();

/** A plan's ops that compute, by device in order of time, and its memory and gaps; worked out once. */
function layOut(number) {
  const { data } = told.plans[number];
  if (data === null) return null;
  if (!laid.has(number)) laid.set(number, lanesOf(read(data)));
  return laid.get(number);
}

function lanesOf({ items, kinds, stages, routes, route_of, devices, forecast, memory, why }) {
  const start = decode(items.start_s), duration = decode(items.duration_s);
  const lanes = devices.map(() => []), last = Math.max(1, route_of.length - 1);
  items.kind.forEach((number, k) => {
    const kind = kinds[number], micro = items.micro_batch[k];
    if (!(duration[k] > 0) || !BARS.has(kind)) return;
    const layers = stages[items.stage[k]].join("\u0000");
    const hue = micro < 0 ? 0 : routes[route_of[micro]].hue, shade = Math.round((Math.max(0, micro) / last) * (colours.shades - 1));
    lanes[items.device[k]].push({ kind, micro, layers, stage: items.stage[k], hue, shade, start: start[k], end: start[k] + duration[k] });
  });
  for (const lane of lanes) lane.sort((a, b) => a.start - b.start);
  const gaps = devices.map(() => []), from = decode(why.spans.start_s), to = decode(why.spans.end_s);
  why.spans.device.forEach((device, k) => gaps[device].push({ start: from[k], end: to[k], cause: why.spans.cause[k] }));
  return {
    lanes, gaps, step: forecast.step_s, because: [why.idle, why.binding, why.gap].filter(Boolean).join(". "),
    memory: memory.map((curve) => ({ t: decode(curve.times_s), stays: decode(curve.stays), most: decode(curve.most) })),
    peak: Math.max(0, ...devices.map((device) => device.peak_bytes)),
  };
}

// ------------------------------------------------------------------ where two plans part

const alike = (a, b, close) => a.kind === b.kind && a.micro === b.micro && a.layers === b.layers && Math.abs(a.start - b.start) <= close;

/** The first op of any device that the two do not both do at the same time: {t, device, mine, other}; null: none. */
function parting(a, b) {
  const close = 1e-9 * Math.max(a.step, b.step);
  if (a.lanes.length !== b.lanes.length) return { t: 0, device: -1 };
  let found = null;
  a.lanes.forEach((mine, device) => {
    const other = b.lanes[device];
    let k = 0;
    while (k < mine.length && k < other.length && alike(mine[k], other[k], close)) k++;
    if (k >= mine.length && k >= other.length) return;
    const t = Math.min(mine[k]?.start ?? Infinity, other[k]?.start ?? Infinity);
    if (!found || t < found.t) found = { t, device, mine: mine[k], other: other[k] };
  });
  return found;
}

function opName(op) {
  if (!op) return "nothing more";
  const names = op.layers.split("\u0000"), most = names.length > 1 ? " to " + names[names.length - 1] : "";
  return op.kind + (op.micro >= 0 ? " " + op.micro : "") + " of " + names[0] + most + " from " + seconds(op.start) + " to " + seconds(op.end);
}

// ------------------------------------------------------------------ drawing

function fillOf({ kind, hue, shade }, theme) {
  if (theme.hatched[kind]) return theme.hatched[kind][hue][0];
  return theme.bars[kind] ? theme.bars[kind][hue][shade] : theme.plain[kind];
}

/** `scale`: {seconds, bytes} at the right and upper ends; `mark`: the op at which the plans part, its device and time. */
function drawPane(canvas, laidOut, { limit_bytes, bound_s }, scale, mark, axis) {
  const count = laidOut ? laidOut.lanes.length : 1, high = count <= 8 ? 22 : count <= 16 ? 14 : 8;
  const thin = count <= 8 ? 9 : count <= 16 ? 6 : 3, pitch = high + thin + (count <= 16 ? 6 : 2);
  const width = canvas.parentElement.clientWidth, height = count * pitch + 6 + (axis ? AXIS : 0), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = height + "px";
  const g = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue("--" + name).trim(), theme = colours[dark.matches ? "dark" : "light"];
  g.scale(ratio, ratio);
  const plot = width - LEFT - RIGHT, x = (t) => LEFT + (t / scale.seconds) * plot;
  const write = (text, at, y, align, size, fill) => {
    g.font = size + "px " + FONT;
    g.textAlign = align;
    g.fillStyle = fill;
    g.fillText(text, at, y);
  };
  if (!laidOut) {
    write("too large to draw here", LEFT, 18, "left", 12, css("dim"));
    return;
  }
  laidOut.lanes.forEach((lane, device) => {
    const y = 3 + device * pitch;
    if (count <= 16 || device % 4 === 0) write("d" + device, LEFT - 5, y + high / 2 + 4, "right", 11, css("ink"));
    g.fillStyle = css("lane");
    g.fillRect(LEFT, y, x(laidOut.step) - LEFT, high);
    for (const { start, end, cause } of laidOut.gaps[device]) {
      g.fillStyle = theme.idle[cause];
      g.fillRect(x(start), y, x(end) - x(start), high);
    }
    for (const op of lane) {
      const wide = x(op.end) - x(op.start);
      g.fillStyle = fillOf(op, theme);
      g.fillRect(x(op.start), y, Math.max(0.3, wide - (wide > 3 ? 0.7 : 0)), high);
      const text = op.micro >= 0 ? String(op.micro) : "";
      const size = wide > 3 + 6.4 * text.length ? 11 : wide > 1.5 + 5.2 * text.length ? 9 : 0;
      if (high >= 14 && size) write(text, (x(op.start) + x(op.end)) / 2, y + high / 2 + size * 0.36, "center", size, theme.ink[op.kind] || css("ink"));
    }
    drawMemory(g, laidOut, device, x, y + high + 1, thin, scale.bytes, css);
    if (limit_bytes !== null && limit_bytes <= scale.bytes) {
      const level = y + high + 1 + thin * (1 - limit_bytes / scale.bytes);
      dashed(g, [[LEFT, level], [x(laidOut.step), level]], css("over"), [4, 3]);
    }
  });
  const bottom = 3 + count * pitch - 3;
  if (bound_s > 0) {
    dashed(g, [[x(bound_s), 0], [x(bound_s), bottom]], css("ink"), [4, 3]);
    if (axis) write("bound", x(bound_s), bottom + AXIS - 6, "center", 11, css("ink"));
  }
  if (mark) {
    dashed(g, [[x(mark.t), 0], [x(mark.t), bottom]], css("part"), []);
    if (mark.op) {
      g.strokeStyle = css("part");
      g.lineWidth = 2;
      g.strokeRect(x(mark.op.start), 3 + mark.device * pitch, Math.max(2, x(mark.op.end) - x(mark.op.start)), high);
    }
  }
  if (axis) drawAxis(g, x, scale.seconds, plot, bottom, bound_s > 0 ? x(bound_s) : -99, write, css);
}

function drawMemory(g, { memory, step }, device, x, y, high, top, css) {
  const { t, stays, most } = memory[device];
  g.fillStyle = css("lane");
  g.fillRect(LEFT, y, x(step) - LEFT, high);
  if (!t.length) return;
  g.beginPath();
  g.moveTo(LEFT, y + high);
  for (let k = 0; k < t.length; k++) {
    const level = (bytes) => y + high * (1 - Math.min(1, bytes / top));
    if (k) g.lineTo(x(t[k]), level(stays[k - 1]));
    g.lineTo(x(t[k]), level(most[k]));
    g.lineTo(x(t[k]), level(stays[k]));
  }
  g.lineTo(x(step), y + high * (1 - Math.min(1, stays[t.length - 1] / top)));
  g.lineTo(x(step), y + high);
  g.fillStyle = css("held");
  g.fill();
}

function dashed(g, [[a, b], [c, d]], colour, dash) {
  g.setLineDash(dash);
  g.strokeStyle = colour;
  g.lineWidth = 1.5;
  g.beginPath();
  g.moveTo(a, b);
  g.lineTo(c, d);
  g.stroke();
  g.setLineDash([]);
}

/** Ticks and their times, but for those under the word that stands at `kept`. */
function drawAxis(g, x, whole, plot, bottom, kept, write, css) {
  const raw = (70 * whole) / plot, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= raw * (1 - 1e-9));
  g.fillStyle = css("line");
  g.fillRect(LEFT, bottom + 2, plot, 1);
  for (let k = 0; k * step <= whole * (1 + 1e-9); k++) {
    g.fillStyle = css("line");
    g.fillRect(x(k * step) - 0.5, bottom + 2, 1, 4);
    if (Math.abs(x(k * step) - kept) > 36) write(k ? seconds(k * step) : "0", Math.min(x(k * step), LEFT + plot - 8), bottom + AXIS - 6, "center", 11, css("dim"));
  }
}
