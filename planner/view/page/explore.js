// The explorer: the slider along the frontier, the staircase, and which two plans are side by side.

const told = read("told"), colours = read("colours");
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const explorer = element("explorer"), slider = element("limit");
const now = { shown: told.shown, pinned: told.pinned };

/** Shows a plan, by its number; a point of the frontier moves the slider along. */
function showPlan(number) {
  now.shown = number;
  const stop = told.points.findIndex((point) => point.plan === number);
  if (slider && stop >= 0) slider.value = String(stop);
  refresh();
  if (!opened.hidden) reopen();
}

const showData = (data) => showPlan(told.plans.findIndex((one) => one.data === data));

let reopening = 0;
/** The page that is open follows what is shown, once the slider rests. */
function reopen() {
  clearTimeout(reopening);
  reopening = setTimeout(() => {
    const { data, name } = told.plans[now.shown];
    if (data !== null && opened.dataset.plan !== data) openPage(data, name, false);
  }, 300);
}

function refresh() {
  const [shown, pinned] = [told.plans[now.shown], told.plans[now.pinned]], [mine, other] = [layOut(now.shown), layOut(now.pinned)];
  const scale = {
    seconds: Math.max(shown.step_s, pinned.step_s, shown.bound_s, pinned.bound_s) || 1,
    bytes: Math.max(1, mine ? mine.peak : 0, other ? other.peak : 0, near(shown, mine), near(pinned, other)) * 1.08,
  };
  const part = mine && other && now.shown !== now.pinned ? parting(mine, other) : null;
  const marked = (op) => part && { t: part.t, device: part.device, op };
  drawPane(element("pinned"), other, pinned, scale, marked(part?.other), false);
  drawPane(element("shown"), mine, shown, scale, marked(part?.mine), true);
  say("pinned-said", "pinned", pinned);
  say("shown-said", "shown", shown);
  element("parting").textContent = partingText(shown, pinned, mine && other, part);
  element("because").textContent = mine ? shown.name + ": " + mine.because : "";
  const stop = told.points.find((point) => point.plan === now.shown);
  if (slider) {
    const at = stop || told.points[Number(slider.value)];
    element("limit-said").textContent = at.limit + (stop ? "" : ", another plan is shown");
    slider.setAttribute("aria-valuetext", at.limit + ": " + told.plans[at.plan].figures);
    markStairs(stop);
  }
  element("open").dataset.plan = shown.data ?? "";
  element("open").disabled = shown.data === null;
  element("open").setAttribute("aria-expanded", String(!opened.hidden && opened.dataset.plan === shown.data));
}

/** A limit that is not far beyond what is held. */
const near = ({ limit_bytes }, plan) => (plan && limit_bytes !== null && limit_bytes <= 3 * plan.peak ? limit_bytes : 0);

function say(id, what, { name, figures }) {
  const box = element(id), strong = document.createElement("b");
  strong.textContent = name;
  box.replaceChildren(strong, " " + figures + " (" + what + ")");
}

function partingText(shown, pinned, drawn, part) {
  if (now.shown === now.pinned) return "The shown plan is the pinned one: drag the limit, or choose a point, a schedule or a row.";
  const less = pinned.step_s > 0 ? 1 - shown.step_s / pinned.step_s : 0;
  const by = Math.abs(less) < 5e-7 ? "as long as" : percent(Math.abs(less)) + (less > 0 ? " less than" : " more than");
  const said = shown.name + ": " + seconds(shown.step_s) + ", " + by + " " + (shown.name === pinned.name ? "the pinned one" : pinned.name) + ". ";
  if (!drawn) return said;
  if (!part) return said + "Both do the same at the same times.";
  if (part.device < 0) return said + "They have different numbers of devices.";
  return said + "The plans part at " + seconds(part.t) + ": device " + part.device + " runs " + opName(part.mine) +
    " here, " + opName(part.other) + " in the pinned one.";
}

/** Rings what is shown and pinned in the staircase, and draws the limit there. */
function markStairs(stop) {
  const svg = explorer.querySelector(".stairs svg");
  for (const mark of svg.querySelectorAll("[data-mark]")) {
    mark.classList.toggle("is-shown", told.of_mark[mark.dataset.mark] === now.shown);
    mark.classList.toggle("is-pinned", told.of_mark[mark.dataset.mark] === now.pinned);
  }
  let line = svg.querySelector(".at-limit");
  if (!line) {
    line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    line.setAttribute("class", "at-limit");
    svg.append(line);
  }
  const { top, base } = told.frame;
  for (const [name, value] of Object.entries({ x1: stop ? stop.x : -9, x2: stop ? stop.x : -9, y1: top, y2: base })) line.setAttribute(name, value);
}

/** The staircase: a click on a point or a schedule shows it, anywhere else, and while dragging, the limit there. */
function listenToStairs() {
  const box = explorer.querySelector(".stairs");
  if (!box) return;
  const svg = box.querySelector("svg");
  const choose = (event) => {
    const rect = svg.getBoundingClientRect(), x = ((event.clientX - rect.left) / rect.width) * svg.viewBox.baseVal.width;
    const within = told.points.filter((point) => point.x <= x + 4);
    showPlan((within[within.length - 1] || told.points[0]).plan);
  };
  svg.addEventListener("pointerdown", (event) => {
    const mark = event.target.closest("[data-mark]");
    if (mark) showPlan(told.of_mark[mark.dataset.mark]);
    else choose(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => { if (event.buttons) choose(event); });
}

if (explorer) {
  if (slider) {
    slider.value = String(told.start);
    slider.addEventListener("input", () => showPlan(told.points[Number(slider.value)].plan));
  }
  element("pin").addEventListener("click", () => { now.pinned = now.shown; refresh(); });
  element("swap").addEventListener("click", () => { [now.shown, now.pinned] = [now.pinned, now.shown]; showPlan(now.shown); });
  element("open").addEventListener("click", () => {
    const { data, name } = told.plans[now.shown], closed = opened.hidden || opened.dataset.plan !== data;
    openPage(closed ? data : null, name);
    refresh();
  });
  listenToStairs();
  dark.addEventListener("change", refresh);
  new ResizeObserver(refresh).observe(explorer.querySelector(".panes"));
  refresh();
}
