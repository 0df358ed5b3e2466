// Starts the page, and draws at most once a frame.

const stale = new Set();
const SETTLED = 150; // milliseconds without change
let hurry = false, settling = 0;

function refresh(what) {
  const parts = what ? [what] : ["axis", "timeline", "marks", "memory"];
  if (!stale.size) requestAnimationFrame(draw);
  parts.forEach((part) => stale.add(part));
}

/** A refresh while the picture moves: what is out of sight is drawn once it stands still. */
function refreshFast() {
  hurry = true;
  clearTimeout(settling);
  settling = setTimeout(() => { hurry = false; refresh(); }, SETTLED);
  refresh();
}

function draw() {
  const parts = new Set(stale);
  stale.clear();
  if (parts.has("axis")) drawAxis();
  if (parts.has("timeline")) drawTimeline();
  if (parts.has("marks")) drawMarks();
  if (parts.has("memory")) drawMemory();
}

function relayout() {
  arrange(element("drawing").clientWidth);
  refresh();
}

function listenToTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)"), button = element("theme");
  const use = (name) => {
    useTheme(name);
    button.textContent = name === "dark" ? "Light" : "Dark";
    fillLegend();
    refresh();
  };
  let chosen = false;
  dark.addEventListener("change", () => { if (!chosen) use(dark.matches ? "dark" : "light"); });
  button.addEventListener("click", () => {
    chosen = true;
    use(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  });
  use(dark.matches ? "dark" : "light");
}

arrange(element("drawing").clientWidth);
lookAgain();
listenToTheme();
fillHead();
fillColourings();
fillModes();
fillTable();
fillWhy();
fillInspector();
listenToPointer();
listenToKeys();
new ResizeObserver(relayout).observe(element("drawing"));
relayout();

// For scripts and tests: where things are.
window.contraflow = Object.freeze({
  plan,
  view,
  box: (item, source = sources()[0]) => {
    const found = boxOf(item, source), rect = element("timeline").getBoundingClientRect();
    return found && { x: rect.left + found.x, y: rect.top + found.y, width: found.width, height: found.height };
  },
  strip: (device) => {
    const { y, high } = layout.memory[device], rect = element(view.beside ? "timeline" : "memory").getBoundingClientRect();
    return { x: rect.left + LEFT, y: rect.top + y, width: layout.plot, height: high };
  },
  related: (item, source = sources()[0]) => ({
    before: related(item, before, source), after: related(item, after, source),
  }),
});
