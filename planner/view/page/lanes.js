// Which item is drawn on which row: for every device what it computes, and thin rows for reductions, copies and links.

const LEFT = 104, RIGHT = 150, NARROW = 700;

const view = {
  from: 0, to: plan.forecast.step_s || 1, // seconds that are visible
  mode: "forecast", thin: plan.devices.length <= 32, path: true, idle: true, follow: null, // a micro-batch
  beside: plan.devices.length <= 16, // the memory of a device under its rows
  colour: plan.items.kind.some((kind) => plan.kinds[kind] === "I") ? "kind" : "direction",
  cursor: null, chosen: null, hover: null, // {item, source}
};

const sources = () => (view.mode === "both" ? ["forecast", "measured"] : [view.mode]);
const extent = () => Math.max(...sources().map((source) => times[source].step)) || 1;

const THIN = { REDUCE: "reduce", TIE: "reduce", GATHER: "reduce", OFFLOAD: "to host", FETCH: "from host" };

/** Every row's items by source and device, sorted by start; what takes no time is not drawn. */
const lanes = Object.fromEntries(["forecast", "measured"].filter((s) => times[s]).map((s) => [s, lanesOf(s)]));

function lanesOf(source) {
  const { start, end } = times[source];
  const found = plan.devices.map(() => new Map([["", []]]));
  for (let item = 0; item < items.count; item++) {
    if (!(end[item] > start[item])) continue;
    const device = found[items.device[item]];
    const name = items.target[item] >= 0 ? "to " + items.target[item] : THIN[kindOf(item)] || "";
    if (!device.has(name)) device.set(name, []);
    device.get(name).push(item);
  }
  const order = (name) => (name === "" ? 0 : name === "reduce" ? 1 : name === THIN.OFFLOAD ? 2 : name === THIN.FETCH ? 3 : 4);
  return found.map((device) =>
    [...device].sort(([a], [b]) => order(a) - order(b) || a.localeCompare(b, "en", { numeric: true }))
      .map(([name, list]) => lane(name, list, start, end)));
}

function lane(name, list, start, end) {
  const sorted = Int32Array.from(list).sort((a, b) => start[a] - start[b] || a - b);
  const reach = new Float64Array(sorted.length); // the latest end so far: ascending
  sorted.forEach((item, k) => { reach[k] = Math.max(end[item], k ? reach[k - 1] : -Infinity); });
  return { name, items: sorted, begins: Float64Array.from(sorted, (item) => start[item]), reach };
}

/** Rows from top to bottom with their places in pixels, and the row of every item by source. */
const layout = { rows: [], memory: [], height: 0, rowOf: {}, width: 1000, plot: 800, lane: 34 };

function arrange(width) {
  const count = plan.devices.length, both = view.mode === "both";
  layout.width = width;
  layout.right = width < NARROW ? 8 : RIGHT;
  layout.plot = Math.max(50, width - LEFT - layout.right);
  layout.lane = count <= 8 ? (both ? 26 : 34) : count <= 16 ? 24 : lowLane(count);
  const thin = count <= 8 ? 10 : count <= 16 ? 6 : 4, gap = count <= 16 ? 6 : layout.lane < 12 ? 1 : 3;
  const strip = stripHeight(count), memoryGap = count <= 16 ? 6 : 2;
  layout.rows = [];
  layout.memory = [];
  layout.rowOf = Object.fromEntries(Object.keys(lanes).map((s) => [s, new Int32Array(items.count).fill(-1)]));
  let y = 4;
  for (let device = 0; device < count; device++) {
    for (const source of sources()) {
      for (const { name, ...rest } of lanes[source][device]) {
        if (name && !view.thin) continue;
        const height = name ? thin : layout.lane;
        for (const item of rest.items) layout.rowOf[source][item] = layout.rows.length;
        layout.rows.push({ device, source, name, y, height, ...rest });
        y += height + 1;
      }
    }
    layout.memory.push({ y: view.beside ? y + 1 : 2 + device * (strip + memoryGap), high: strip });
    y += view.beside ? strip + gap + 2 : gap;
  }
  layout.height = y + 2;
  layout.memoryHeight = count * (strip + memoryGap) + 4; // of a picture of its own
}

/** How high the memory of a device is drawn. */
function stripHeight(count) {
  if (view.beside) return count <= 8 ? 34 : count <= 16 ? 20 : 10;
  return count <= 8 ? 46 : count <= 16 ? 34 : 26;
}

const LOW = 7, HIGH = 18, ABOVE = 330; // pixels of a lane, and of what is above the timeline

/** Lanes of many devices are as high as lets all of them stand on one screen. */
function lowLane(count) {
  const room = (window.innerHeight - ABOVE) / (count * sources().length) - 2;
  return view.thin ? HIGH : Math.max(LOW, Math.min(HIGH, Math.floor(room)));
}

const scale = () => layout.plot / (view.to - view.from);
const xOf = (t) => LEFT + (t - view.from) * scale();
const tOf = (x) => view.from + (x - LEFT) / scale();

/** Pixels of an item: its bar on the row it is on, or null. */
function boxOf(item, source) {
  const number = layout.rowOf[source] ? layout.rowOf[source][item] : -1;
  if (number < 0) return null;
  const row = layout.rows[number];
  const x = xOf(times[source].start[item]);
  return { x, y: row.y, width: xOf(times[source].end[item]) - x, height: row.height, row, number };
}

const rowAt = (y) => layout.rows.findIndex((row) => y >= row.y - 0.5 && y < row.y + row.height + 0.5);

/** The item of a row at time t, or within `near` seconds of it: the shortest where several lie over each other. */
function itemAt(row, t, near) {
  const { start, end } = times[row.source];
  let best = -1, least = Infinity;
  for (let k = upperBound(row.reach, t - near); k < row.items.length && row.begins[k] <= t + near; k++) {
    const item = row.items[k];
    const away = Math.max(0, start[item] - t, t - end[item]);
    if (away > near) continue;
    const rank = away * 1e6 + (end[item] - start[item]);
    if (rank < least) [best, least] = [item, rank];
  }
  return best;
}

/** The gap of a forecast's row at time t: its place in `idle`, or -1. */
function gapAt(row, t) {
  if (row.name || row.source !== "forecast") return -1;
  const { start, end } = idle[row.device], k = upperBound(end, t);
  return k < start.length && start[k] <= t ? k : -1;
}

/** Shows these seconds, within the step. */
function show(from, to) {
  const whole = extent(), least = whole * 1e-6;
  const span = Math.min(whole, Math.max(least, to - from));
  view.from = Math.min(Math.max(0, from), whole - span);
  view.to = view.from + span;
}

function zoom(factor, around) {
  const t = around ?? (view.from + view.to) / 2;
  show(t - (t - view.from) / factor, t + (view.to - t) / factor);
}
