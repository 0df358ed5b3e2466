// The page's data as typed arrays.

const plan = read("plan");
const colours = read("colours");

const items = {
  count: plan.items.kind.length,
  kind: Uint8Array.from(plan.items.kind),
  stage: Int32Array.from(plan.items.stage),
  micro: Int32Array.from(plan.items.micro_batch),
  device: Int32Array.from(plan.items.device),
  target: Int32Array.from(plan.items.target),
  latency: decode(plan.items.latency_s),
  bytes: decode(plan.items.bytes),
};
const kindOf = (item) => plan.kinds[items.kind[item]];
const IN_LINE = new Set(["F", "B", "I", "W", "R", "STEP", "FREE", "PREDICT"]);
const inLine = Uint8Array.from(items.kind, (kind) => (IN_LINE.has(plan.kinds[kind]) ? 1 : 0));

/** Start and end of every item by source. */
const times = { forecast: forecastTimes(), measured: plan.run && measuredTimes() };

function forecastTimes() {
  const start = decode(plan.items.start_s), duration = decode(plan.items.duration_s);
  return { start, end: start.map((t, k) => t + duration[k]), step: plan.forecast.step_s };
}

function measuredTimes() {
  const { start_s, end_s, step_s } = plan.run;
  return { start: Float64Array.from(start_s), end: Float64Array.from(end_s), step: step_s };
}

/** Precedences both ways: those of item i are at first[i]..first[i + 1]. */
const before = precedences();
const after = reversed(before);

function precedences() {
  const { count, back, lag_s } = plan.waits;
  const first = new Int32Array(items.count + 1), other = new Int32Array(back.length);
  for (let item = 0; item < items.count; item++) {
    first[item + 1] = first[item] + count[item];
    for (let k = first[item]; k < first[item + 1]; k++) other[k] = item - back[k];
  }
  return { first, other, lag: decode(lag_s) };
}

function reversed({ first, other, lag }) {
  const start = new Int32Array(items.count + 1), back = new Int32Array(other.length), lags = new Float64Array(lag.length);
  for (const item of other) start[item + 1]++;
  for (let item = 0; item < items.count; item++) start[item + 1] += start[item];
  const cursor = start.slice();
  for (let item = 0; item < items.count; item++)
    for (let k = first[item]; k < first[item + 1]; k++) {
      const place = cursor[other[k]]++;
      back[place] = item;
      lags[place] = lag[k];
    }
  return { first: start, other: back, lag: lags };
}

const CLOSE = 1e-9 * plan.forecast.step_s;

/** Whether `earlier`, with this lag, is what decided when `later` started: in the forecast, or in the run. */
const decides = (earlier, later, lag, source) => source === "measured" ? plan.run.decided[later] === earlier
  : times.forecast.end[earlier] + lag >= times.forecast.start[later] - CLOSE;

const pathOf = (source) => (source === "measured" ? plan.run : plan.forecast).path;

/** Gaps of every device in the forecast, in order: `cause` counts in colours.idle. */
const idle = gapsOf(plan.why.spans);

function gapsOf({ device, start_s, end_s, cause }) {
  const start = decode(start_s), end = decode(end_s), found = plan.devices.map(() => ({ start: [], end: [], cause: [] }));
  device.forEach((number, k) => {
    found[number].start.push(start[k]);
    found[number].end.push(end[k]);
    found[number].cause.push(cause[k]);
  });
  return found;
}

/** Memory of every device: at times t it changes, holds at most `most`, and then `stays`. */
const memory = plan.memory.map((curve) => ({
  t: decode(curve.times_s), stays: decode(curve.stays), most: decode(curve.most),
}));

function heldAt(device, t) {
  const curve = memory[device];
  return curve.stays[Math.max(0, upperBound(curve.t, t + CLOSE) - 1)];
}

/** What every device holds from when to when, by start; `reach`: the latest end so far. Null: not in the page. */
const tensors = plan.tensors && tensorsOf(plan.tensors);

function tensorsOf({ device, category, stage, micro_batch, ...rest }) {
  const start = decode(rest.start_s), end = decode(rest.end_s), size = decode(rest.bytes);
  const found = plan.devices.map(() => ({ held: [], begins: [], reach: [] }));
  device.forEach((number, k) => {
    const { held, begins, reach } = found[number];
    held.push({ category: category[k], stage: stage[k], micro: micro_batch[k], bytes: size[k], end: end[k] });
    begins.push(start[k]);
    reach.push(Math.max(end[k], reach.length ? reach[reach.length - 1] : -Infinity));
  });
  return found;
}

/** What a device holds at time t besides what it always holds: [{category, stage, micro, bytes}]. */
function tensorsAt(device, t) {
  const { held, begins, reach } = tensors[device], found = [];
  for (let k = upperBound(reach, t); k < held.length && begins[k] <= t; k++) if (held[k].end > t) found.push(held[k]);
  return found;
}
