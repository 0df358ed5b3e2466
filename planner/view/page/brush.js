// Colours and canvases.

let theme = null; // colours of the page's theme
const css = {};
const patterns = new Map();

function useTheme(name) {
  document.documentElement.dataset.theme = name;
  theme = colours[name];
  const style = getComputedStyle(document.documentElement);
  for (const key of ["ground", "raised", "idle", "rule", "axis", "text", "dim", "limit", "path", "before", "after",
    "memory", "memory-edge", "accent", "veil"]) css[key] = style.getPropertyValue("--" + key).trim();
  repaint();
}

/** After a change of theme or of what colours mean. */
function repaint() {
  patterns.clear();
  paints.clear();
  for (let number = 0; number < looks.length; number++) mixes.set(paint(number).rgb, number * 3);
}

/** Whether a part of a canvas may be seen. While the picture moves only what is in sight is drawn, the rest after. */
function inSight(canvas) {
  if (!hurry) return () => true;
  const { top } = canvas.getBoundingClientRect();
  return (y, height) => top + y + height > -50 && top + y < window.innerHeight + 50;
}

/** A canvas's context in CSS pixels, cleared. */
function clean(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const wide = Math.round(width * ratio), high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.height = height + "px";
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

const FONT = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif';

function write(g, text, x, y, { size = 12, align = "left", fill = css.text, weight = 400 } = {}) {
  g.font = weight + " " + size + "px " + FONT;
  g.textAlign = align;
  g.fillStyle = fill;
  g.fillText(text, x, y);
}

/** What colours tell apart. */
const COLOURINGS = ["kind", "direction", "stage", "micro-batch"];
const HUES = 24; // stages or micro-batches with hues of their own; then they come again

/** How items are painted, by number: {fill, pattern, edge, ink, rgb}. Made when first needed, for a theme. */
const paints = new Map();

const ONE_COLOUR = new Set(["REDUCE", "TIE", "GATHER", "STEP", "PREDICT"]);

/** Every look that some item has: {kind, slot, shade}; `slot` is its direction, or its place in the circle of hues. */
const looks = [];
let known = new Map();

/** The number of an item's look. */
function lookOf(item) {
  const micro = ONE_COLOUR.has(kindOf(item)) ? -1 : items.micro[item], last = Math.max(1, plan.route_of.length - 1);
  const circle = view.colour === "stage" ? items.stage[item] % HUES : view.colour === "micro-batch" ? micro % HUES : -1;
  const slot = micro < 0 ? 0 : circle >= 0 ? circle : plan.routes[plan.route_of[micro]].hue;
  const shade = micro >= 0 && view.colour === "direction" ? Math.round((micro / last) * (colours.shades - 1)) : 0;
  const key = (items.kind[item] * HUES + slot) * colours.shades + shade;
  if (!known.has(key)) {
    known.set(key, looks.length);
    looks.push({ kind: kindOf(item), slot, shade });
  }
  return known.get(key);
}

/** Every item's look. */
const numbers = new Int32Array(items.count);

/** Red, green and blue by look: what is too narrow for a bar is mixed from these. */
const mixes = new Float32Array(plan.kinds.length * HUES * colours.shades * 3);

/** Looks of all items, for what colours tell apart now. */
function lookAgain() {
  looks.length = 0;
  known = new Map();
  for (let item = 0; item < items.count; item++) numbers[item] = lookOf(item);
}

function paint(number) {
  let found = paints.get(number);
  if (!found) {
    const { kind, slot, shade } = looks[number];
    found = makePaint(kind, slot, shade);
    paints.set(number, found);
  }
  return found;
}

/** A hue of the circle, with the lightness of a kind. */
function roundHue(kind, slot) {
  const count = Math.min(HUES, view.colour === "stage" ? plan.stages.length : Math.max(1, plan.route_of.length));
  const [saturation, lightness] = { F: [0.62, 0.8], B: [0.62, 0.36], I: [0.55, 0.62], W: [0.3, 0.72], R: [0.25, 0.66] }[kind];
  return hsl(slot / count, saturation, lightness);
}

function hsl(hue, saturation, lightness) {
  const part = (n) => {
    const k = (n + hue * 12) % 12, a = saturation * Math.min(lightness, 1 - lightness);
    return Math.round(255 * (lightness - a * Math.max(-1, Math.min(k - 3, 9 - k, 1)))).toString(16).padStart(2, "0");
  };
  return "#" + part(0) + part(8) + part(4);
}

const PASSES = new Set(["F", "B", "I", "W", "R"]);

function makePaint(kind, hue, shade) {
  if (view.colour !== "direction" && PASSES.has(kind)) {
    const fill = view.colour === "kind" ? colours.kinds[kind][hue] : roundHue(kind, hue);
    return { fill, ink: kind === "B" ? "#ffffff" : "#10202f", rgb: parts(fill) };
  }
  const ink = theme.ink[kind] || css.text;
  if (theme.hatched[kind]) {
    const [ground, line, edge] = theme.hatched[kind][hue];
    return { pattern: [ground, line, kind === "W" ? 1 : -1], edge, ink, rgb: mixed(ground, line) };
  }
  const fill = theme.bars[kind] ? theme.bars[kind][hue][shade] : theme.plain[kind] || theme.plain.SEND;
  return { fill, ink, rgb: parts(fill) };
}

const parts = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
const mixed = (a, b) => parts(a).map((value, k) => 0.6 * value + 0.4 * parts(b)[k]);

/** A diagonal hatch as a fill style: slope 1 rises to the right, -1 falls. */
function hatch(g, [ground, line, slope]) {
  const key = ground + line + slope;
  if (!patterns.has(key)) {
    const size = 6, ratio = window.devicePixelRatio || 1, tile = document.createElement("canvas");
    tile.width = tile.height = size * ratio;
    const t = tile.getContext("2d");
    t.scale(ratio, ratio);
    t.fillStyle = ground;
    t.fillRect(0, 0, size, size);
    t.strokeStyle = line;
    t.lineWidth = 1.8;
    t.beginPath();
    for (const shift of [-size, 0, size]) {
      t.moveTo(shift, slope > 0 ? size : 0);
      t.lineTo(shift + size, slope > 0 ? 0 : size);
    }
    t.stroke();
    const pattern = g.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, 0, 0]));
    patterns.set(key, pattern);
  }
  return patterns.get(key);
}

const styleOf = (g, { fill, pattern }) => (pattern ? hatch(g, pattern) : fill);
