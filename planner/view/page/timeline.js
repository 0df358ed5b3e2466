// The rows of the timeline, and the time axis.

const LONG = 110; // pixels: what is as wide has its kind and stage written in it
const WIDE = 3; // pixels: what is narrower is merged into one strip a row, each pixel the mix of what runs in it

const strip = { width: 0, ratio: 1, sums: null, image: null, canvas: document.createElement("canvas") };

function drawTimeline() {
  const g = clean(element("timeline"), layout.width, layout.height);
  const sight = inSight(element("timeline"));
  const bars = new Map(), texts = new Map(), marks = [];
  for (const row of layout.rows) {
    g.fillStyle = css.idle;
    g.fillRect(LEFT, row.y, layout.plot, row.height);
    if (!sight(row.y, row.height)) continue;
    if (view.idle && row.name === "" && row.source === "forecast") fillGaps(g, row);
    collect(g, row, bars, texts, marks);
  }
  fillBars(g, bars);
  g.fillStyle = "rgba(255, 255, 255, 0.9)";
  for (const [x, y, width] of marks) g.fillRect(x + width * 0.12, y, width * 0.76, 2);
  g.textAlign = "center";
  for (const [ink, list] of texts) {
    g.fillStyle = ink;
    for (const [text, x, y, size] of list) {
      g.font = size + "px " + FONT;
      g.fillText(text, x, y);
    }
  }
  drawLabels(g);
  if (view.beside) drawStrips(g, sight);
}

/** The gaps of a device in the colours of their causes; of those narrower than half a pixel none. */
function fillGaps(g, row) {
  const { start, end, cause } = idle[row.device], factor = scale(), right = LEFT + layout.plot;
  for (let k = upperBound(end, view.from); k < start.length && start[k] < view.to; k++) {
    const x = Math.max(LEFT, xOf(start[k])), width = Math.min(right, xOf(end[k])) - x;
    if ((end[k] - start[k]) * factor < 0.5) continue;
    g.fillStyle = theme.idle[cause[k]];
    g.fillRect(x, row.y, width, row.height);
  }
}

/** Sorts a row's visible items into bars by paint, numbers by ink, and the strip, which it draws. */
function collect(g, row, bars, texts, marks) {
  const { end } = times[row.source], list = row.items, from = view.from, to = view.to;
  const factor = scale(), right = LEFT + layout.plot;
  let merged = false;
  for (let k = upperBound(row.reach, from); k < list.length && row.begins[k] < to; k++) {
    const item = list[k];
    const x0 = LEFT + (row.begins[k] - from) * factor, x1 = LEFT + (end[item] - from) * factor;
    if (x1 - x0 < WIDE) {
      if (!merged) clearStrip();
      merged = true;
      addToStrip(x0, x1, numbers[item] * 3);
      continue;
    }
    const x = Math.max(x0, LEFT - 4), width = Math.min(x1, right + 4) - x;
    const gap = width > 5 ? 0.5 : 0;
    if (!bars.has(numbers[item])) bars.set(numbers[item], []);
    bars.get(numbers[item]).push(x + gap, row.y, width - 2 * gap, row.height);
    if (row.name === "") label(item, Math.max(x0, LEFT), Math.min(x1, right), row, texts, marks);
  }
  if (merged) drawStrip(g, row);
}

function label(item, x0, x1, row, texts, marks) {
  const width = x1 - x0, micro = items.micro[item];
  const short = kindOf(item) === "STEP" ? "step" : kindOf(item) === "PREDICT" ? "predict" : micro >= 0 ? String(micro) : "";
  const text = short && micro >= 0 && width > LONG ? kindOf(item) + " " + micro + ", stage " + items.stage[item] : short;
  const size = Math.min(13, Math.round(row.height * 0.55), Math.floor((width - 2) / (text.length * 0.6)));
  if (text && size >= 8) {
    const { ink } = paint(numbers[item]);
    if (!texts.has(ink)) texts.set(ink, []);
    texts.get(ink).push([text, (x0 + x1) / 2, row.y + row.height / 2 + size * 0.36, size]);
  }
  if (micro >= 0 && plan.routes[plan.route_of[micro]].again[items.stage[item]] && width > 5)
    marks.push([x0, row.y + row.height - 5, width]);
}

function fillBars(g, bars) {
  let count = 0;
  for (const list of bars.values()) count += list.length / 4;
  const round = count < 4000;
  g.save();
  g.beginPath();
  g.rect(LEFT, 0, layout.plot, layout.height);
  g.clip();
  for (const [number, list] of bars) {
    const style = paint(number);
    g.fillStyle = styleOf(g, style);
    g.beginPath();
    for (let k = 0; k < list.length; k += 4) {
      if (round && list[k + 2] > 6) g.roundRect(list[k], list[k + 1], list[k + 2], list[k + 3], Math.min(2, list[k + 3] / 3));
      else g.rect(list[k], list[k + 1], list[k + 2], list[k + 3]);
    }
    g.fill();
    if (!style.edge) continue;
    g.strokeStyle = style.edge;
    g.lineWidth = 0.8;
    g.stroke();
  }
  g.restore();
}

// ------------------------------------------------------------------ the strip

function clearStrip() {
  strip.ratio = window.devicePixelRatio || 1;
  const width = Math.ceil(layout.plot * strip.ratio);
  if (strip.width !== width) {
    strip.width = strip.canvas.width = width;
    strip.canvas.height = 1;
    strip.sums = new Float32Array(width * 4);
    strip.image = new ImageData(width, 1);
  } else strip.sums.fill(0);
}

/** Adds what one item covers of each pixel; `colour` is its place in `mixes`. */
function addToStrip(x0, x1, colour) {
  const { sums, ratio } = strip;
  const a = Math.max(0, (x0 - LEFT) * ratio), b = Math.min(strip.width, (x1 - LEFT) * ratio);
  for (let pixel = Math.floor(a); pixel < b; pixel++) {
    const share = (b < pixel + 1 ? b : pixel + 1) - (a > pixel ? a : pixel);
    const k = pixel * 4;
    sums[k] += share * mixes[colour];
    sums[k + 1] += share * mixes[colour + 1];
    sums[k + 2] += share * mixes[colour + 2];
    sums[k + 3] += share;
  }
}

function drawStrip(g, row) {
  const { sums, image, width } = strip, data = image.data;
  for (let k = 0; k < width * 4; k += 4) {
    const share = sums[k + 3] || 1;
    data[k] = sums[k] / share;
    data[k + 1] = sums[k + 1] / share;
    data[k + 2] = sums[k + 2] / share;
    data[k + 3] = 255 * Math.min(1, sums[k + 3]);
  }
  strip.canvas.getContext("2d").putImageData(image, 0, 0);
  g.imageSmoothingEnabled = false;
  g.drawImage(strip.canvas, 0, 0, width, 1, LEFT, row.y, layout.plot, row.height);
}

// ------------------------------------------------------------------ words and axis

function drawLabels(g) {
  let named = -1;
  for (const row of layout.rows) {
    const middle = row.y + row.height / 2;
    if (row.name) {
      if (row.height >= 9) write(g, row.name, LEFT - 8, middle + 3.5, { size: 9.5, align: "right", fill: css.dim });
      continue;
    }
    const suffix = view.mode === "both" ? (row.source === "measured" ? " run" : "") : "";
    const room = row.height >= 12 || row.device % 4 === 0;
    if ((row.device !== named || suffix) && room)
      write(g, "device " + row.device + suffix, LEFT - 8, middle + 4, { align: "right" });
    named = row.device;
    if (room) drawBusy(g, row, middle);
  }
}

/** Beside a row: for how much of the step its device computes. */
function drawBusy(g, row, middle) {
  if (layout.right < 100) return;
  const known = row.source === "measured" ? plan.run.devices[row.device] : plan.devices[row.device];
  const x = LEFT + layout.plot + 10, step = times[row.source].step;
  write(g, percent(step > 0 ? known.busy_s / step : 0), x + 52, middle + 4, { align: "right", weight: 600 });
  write(g, "busy", x + 57, middle + 4, { fill: css.dim });
}

/** A step of 1, 2 or 5 times a power of ten that gives about one tick in `every` pixels. */
function tickStep(every) {
  const raw = (every * (view.to - view.from)) / layout.plot;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw * (1 - 1e-9));
}

function drawAxis() {
  const g = clean(element("axis"), layout.width, 24);
  const step = tickStep(80), decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const [unit, size, less] = extent() >= 1 ? ["s", 1, 0] : extent() >= 1e-3 ? ["ms", 1e3, 3] : ["us", 1e6, 6];
  write(g, "time, " + unit, LEFT - 26, 14, { align: "right", fill: css.dim });
  g.strokeStyle = css.axis;
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(LEFT, 23.5);
  g.lineTo(LEFT + layout.plot, 23.5);
  for (let k = Math.ceil(view.from / step - 1e-9); k * step <= view.to * (1 + 1e-12); k++) {
    const x = xOf(k * step);
    g.moveTo(x, 18.5);
    g.lineTo(x, 23.5);
    write(g, k === 0 ? "0" : (k * step * size).toFixed(Math.max(0, decimals - less)), x, 14, { align: "center", fill: css.dim });
  }
  g.stroke();
}
