// Memory of every device over the visible time, its limit, and beside it what made the peak.

const STATIC = new Set(["parameters", "gradients", "optimizer", "buffers"]); // as much at every time

const memoryScale = (() => {
  const peaks = plan.devices.map((device) => device.peak_bytes);
  if (plan.run) peaks.push(...plan.run.devices.map((device) => device.peak_bytes));
  const limits = Math.max(...plan.devices.map((device) => device.limit_bytes));
  const ceiling = Math.max(1, ...peaks) * 1.15;
  return limits <= 3 * ceiling ? Math.max(ceiling, limits * 1.08) : ceiling; // a far limit is said, not drawn
})();

/** What the device under the pointer holds at that time, by what it is of; "" beside the picture. */
function heldUnder(event) {
  const rect = element(view.beside ? "timeline" : "memory").getBoundingClientRect();
  const x = event.clientX - rect.left, y = event.clientY - rect.top, t = tOf(x);
  const device = layout.memory.findIndex((place) => y >= place.y && y < place.y + place.high);
  if (!(device >= 0 && x >= LEFT && x <= LEFT + layout.plot && t <= plan.forecast.step_s)) return "";
  const held = heldAt(device, t), always = plan.devices[device].peak_parts.filter(([name]) => STATIC.has(name));
  const lines = always.map(([name, size]) => name + " " + bytes(size));
  lines.push(...(tensors ? heldText(tensorsAt(device, t)) : [restText(device, held - sumOf(always.map(([, size]) => size)))]));
  const limit = limitText(plan.devices[device].limit_bytes);
  return "device " + device + " holds " + bytes(held) + " of " + limit + " at " + seconds(t) + "\n" + lines.join("\n");
}

const sumOf = (sizes) => sizes.reduce((sum, size) => sum + size, 0);

function restText(device, size) {
  const moving = plan.devices[device].peak_parts.filter(([name]) => !STATIC.has(name)).map(([name]) => name).join(", ");
  return (moving || "the rest") + " " + bytes(size);
}

const GROUPS = 8; // lines of a tip

/** Tensors by category and stage, the largest first: "stashes of stage 2, micro-batches 3 to 5: 1.2 GiB". */
function heldText(list) {
  const groups = new Map();
  for (const { category, stage, micro, bytes: size } of list) {
    const key = category + " " + stage;
    if (!groups.has(key)) groups.set(key, { category, stage, micros: [], size: 0 });
    const group = groups.get(key);
    group.micros.push(micro);
    group.size += size;
  }
  const sorted = [...groups.values()].sort((a, b) => b.size - a.size);
  const lines = sorted.slice(0, GROUPS).map(({ category, stage, micros, size }) =>
    plan.tensors.categories[category] + " of stage " + stage + microText(micros) + ": " + bytes(size));
  const rest = sorted.slice(GROUPS);
  if (rest.length) lines.push(plural(rest.length, "more group") + ": " + bytes(sumOf(rest.map((group) => group.size))));
  return lines;
}

/** ", micro-batches 0, 3 to 5". */
function microText(micros) {
  const some = [...new Set(micros.filter((micro) => micro >= 0))].sort((a, b) => a - b), spans = [];
  for (const micro of some) {
    const last = spans[spans.length - 1];
    if (last && last[1] === micro - 1) last[1] = micro;
    else spans.push([micro, micro]);
  }
  const text = spans.map(([a, b]) => (a === b ? a : a + (b === a + 1 ? ", " : " to ") + b)).join(", ");
  return some.length ? ", micro-batch" + (some.length > 1 ? "es " : " ") + text : "";
}

function drawMemory() {
  if (view.beside) return; // in the timeline
  const g = clean(element("memory"), layout.width, layout.memoryHeight);
  drawStrips(g, inSight(element("memory")));
}

/** The memory of every device in its place. */
function drawStrips(g, sight) {
  layout.memory.forEach(({ y, high }, device) => {
    if (!sight(y, high)) return;
    g.fillStyle = css.raised;
    g.fillRect(LEFT, y, layout.plot, high);
    drawCurve(g, device, y, high);
    drawLevels(g, device, y, high);
    if (plan.run && view.mode !== "forecast") drawMeasured(g, plan.run.memory[device], y, high);
    nameStrip(g, device, y, high);
    drawParts(g, device, y, high);
  });
}

function nameStrip(g, device, y, high) {
  const peak = bytes(plan.devices[device].peak_bytes);
  if (view.beside) {
    if (high >= 20) write(g, peak, LEFT - 8, y + high / 2 + 4, { align: "right", fill: css.dim, size: 11 });
    return;
  }
  write(g, "device " + device, LEFT - 8, y + (high >= 40 ? 17 : high / 2 + 4), { align: "right" });
  if (high >= 40) write(g, peak, LEFT - 8, y + 33, { align: "right", fill: css.dim, size: 11 });
}

/** The curve as steps; within a pixel the most that was held. */
function drawCurve(g, device, y, high) {
  if (!memory[device].t.length) return;
  const factor = high / memoryScale, bottom = y + high;
  const right = Math.min(LEFT + layout.plot, xOf(plan.forecast.step_s));
  g.beginPath();
  trace(g, memory[device], bottom, factor, right);
  g.lineTo(right, bottom);
  g.lineTo(LEFT, bottom);
  g.fillStyle = css.memory;
  g.fill();
  let base = bottom;
  for (const [name, size] of plan.devices[device].peak_parts) {
    if (!STATIC.has(name)) continue;
    g.fillStyle = theme.parts[name];
    g.fillRect(LEFT, base - size * factor, right - LEFT, size * factor);
    base -= size * factor;
  }
  g.beginPath();
  trace(g, memory[device], bottom, factor, right);
  g.strokeStyle = css["memory-edge"];
  g.lineWidth = 1;
  g.stroke();
}

function trace(g, { t, stays, most }, bottom, factor, right) {
  let k = Math.max(0, upperBound(t, view.from) - 1);
  let level = bottom - stays[k] * factor;
  g.moveTo(LEFT, level);
  const last = upperBound(t, view.to), times = scale(), pixel = 1 / times;
  for (k++; k < last; ) {
    const from = t[k], x = LEFT + (from - view.from) * times;
    let top = 0;
    for (; k < last && t[k] < from + pixel; k++) if (most[k] > top) top = most[k];
    const peak = bottom - top * factor, next = bottom - stays[k - 1] * factor;
    if (peak === level && next === level) continue;
    g.lineTo(x, level);
    if (peak < next) g.lineTo(x, peak);
    g.lineTo(x, next);
    level = next;
  }
  g.lineTo(right, level);
}

/** The limit, and a run's peak. */
function drawLevels(g, device, y, high) {
  const levels = [[plan.devices[device].limit_bytes, css.limit, [6, 4], "limit"]];
  if (plan.run && view.mode !== "forecast")
    levels.push([plan.run.devices[device].peak_bytes, css.text, [2, 2], "measured peak"]);
  for (const [size, colour, dash, name] of levels) {
    if (size > memoryScale) continue;
    const level = y + high - (size / memoryScale) * high;
    g.strokeStyle = colour;
    g.lineWidth = 1.5;
    g.setLineDash(dash);
    g.beginPath();
    g.moveTo(LEFT, level);
    g.lineTo(LEFT + layout.plot, level);
    g.stroke();
    g.setLineDash([]);
    if (high < 34) continue;
    const x = name === "limit" ? LEFT + layout.plot - 4 : LEFT + 4;
    write(g, name, x, level + 11, { size: 11, align: name === "limit" ? "right" : "left", fill: colour });
  }
}

/** What a run held while each of its ops ran. */
function drawMeasured(g, held, y, high) {
  g.beginPath();
  held.start_s.forEach((start, k) => {
    const x0 = Math.max(LEFT, xOf(start)), x1 = Math.min(LEFT + layout.plot, xOf(held.end_s[k]));
    if (x1 <= x0) return;
    const level = y + high - (held.peak_bytes[k] / memoryScale) * high;
    g.moveTo(x0, level);
    g.lineTo(x1, level);
  });
  g.strokeStyle = css.text;
  g.lineWidth = 1.5;
  g.setLineDash([1, 2]);
  g.stroke();
  g.setLineDash([]);
}

/** The peak as a bar of its parts: as wide as the scale's height is high. */
function drawParts(g, device, y, high) {
  if (layout.right < 100) return;
  const known = plan.devices[device], width = layout.right - 20, tall = high >= 40 ? 14 : 9;
  let x = LEFT + layout.plot + 10;
  const left = x, top = y + (high >= 40 ? 6 : 3);
  g.fillStyle = css.raised;
  g.fillRect(x, top, width, tall);
  for (const [name, size] of known.peak_parts) {
    const wide = (size / memoryScale) * width;
    g.fillStyle = theme.parts[name] || css.axis;
    g.fillRect(x, top, wide, tall);
    x += wide;
  }
  const text = known.limit_bytes > memoryScale || high >= 40
    ? bytes(known.peak_bytes) + " of " + limitText(known.limit_bytes) : bytes(known.peak_bytes);
  const over = known.peak_bytes > known.limit_bytes;
  write(g, text, left, top + tall + (high >= 40 ? 14 : 11), { size: 11, fill: over ? css.limit : css.dim });
}
