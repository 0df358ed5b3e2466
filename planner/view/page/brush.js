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
  patterns.clear();
  paints.clear();
  for (const number of new Set(numbers)) mixes.set(paint(number).rgb, number * 3);
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

/** How items are painted, by number: {fill, pattern, edge, ink, rgb}. Made when first needed, for a theme. */
const paints = new Map();

const ONE_COLOUR = new Set(["REDUCE", "TIE", "GATHER", "STEP", "PREDICT"]);

/** The number of an item's paint: its kind, direction and shade. */
function paintOf(item) {
  const micro = ONE_COLOUR.has(kindOf(item)) ? -1 : items.micro[item];
  const hue = micro >= 0 ? plan.routes[plan.route_of[micro]].hue : 0;
  const last = Math.max(1, plan.route_of.length - 1);
  const shade = micro >= 0 ? Math.round((micro / last) * (colours.shades - 1)) : 0;
  return (items.kind[item] * 2 + hue) * colours.shades + shade;
}

const numbers = Int32Array.from({ length: items.count }, (_, item) => paintOf(item));

/** Red, green and blue by paint: what is too narrow for a bar is mixed from these. */
const mixes = new Float32Array(plan.kinds.length * 2 * colours.shades * 3);

function paint(number) {
  let found = paints.get(number);
  if (!found) {
    const shade = number % colours.shades, rest = Math.floor(number / colours.shades);
    found = makePaint(plan.kinds[rest >> 1], rest & 1, shade);
    paints.set(number, found);
  }
  return found;
}

function makePaint(kind, hue, shade) {
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
