// Memory of every device over the visible time, its limit, and beside it what made the peak.

const STATIC = new Set(["parameters", "gradients", "optimizer", "buffers"]); // as much at every time

const memoryScale = (() => {
  const peaks = plan.devices.map((device) => device.peak_bytes);
  if (plan.run) peaks.push(...plan.run.devices.map((device) => device.peak_bytes));
  const limits = Math.max(...plan.devices.map((device) => device.limit_bytes));
  const ceiling = Math.max(1, ...peaks) * 1.15;
  return limits <= 3 * ceiling ? Math.max(ceiling, limits * 1.08) : ceiling; // a far limit is said, not drawn
})();

/** Height of a device's memory, and from one to the next. */
function memoryRows() {
  const count = plan.devices.length, high = count <= 8 ? 46 : count <= 16 ? 34 : 26;
  return { high, pitch: high + 6 };
}

/** What the device under the pointer holds at that time, and what of it all the time; "" beside the picture. */
function heldUnder(event) {
  const rect = element("memory").getBoundingClientRect(), x = event.clientX - rect.left;
  const device = Math.floor((event.clientY - rect.top - 2) / memoryRows().pitch), t = tOf(x);
  if (!(plan.devices[device] && x >= LEFT && x <= LEFT + layout.plot && t <= plan.forecast.step_s)) return "";
  const { peak_parts, limit_bytes } = plan.devices[device], held = heldAt(device, t);
  const always = peak_parts.filter(([name]) => STATIC.has(name));
  const rest = held - always.reduce((sum, [, size]) => sum + size, 0);
  const moving = peak_parts.filter(([name]) => !STATIC.has(name)).map(([name]) => name).join(", ");
  const parts = [...always.map(([name, size]) => name + " " + bytes(size)), (moving || "the rest") + " " + bytes(rest)];
  return "device " + device + " holds " + bytes(held) + " of " + limitText(limit_bytes) + " at " + seconds(t) + "\n" + parts.join("\n");
}

function drawMemory() {
  const count = plan.devices.length, { high, pitch } = memoryRows();
  const g = clean(element("memory"), layout.width, count * pitch + 4);
  const sight = inSight(element("memory"));
  for (let device = 0; device < count; device++) {
    const y = 2 + device * pitch;
    if (!sight(y, pitch)) continue;
    g.fillStyle = css.raised;
    g.fillRect(LEFT, y, layout.plot, high);
    drawCurve(g, device, y, high);
    drawLevels(g, device, y, high);
    if (plan.run && view.mode !== "forecast") drawMeasured(g, plan.run.memory[device], y, high);
    write(g, "device " + device, LEFT - 8, y + (high >= 40 ? 17 : high / 2 + 4), { align: "right" });
    if (high >= 40)
      write(g, bytes(plan.devices[device].peak_bytes), LEFT - 8, y + 33, { align: "right", fill: css.dim, size: 11 });
    drawParts(g, device, y, high);
  }
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
