(() => {
"use strict";
// Follows a search: its figures, its course, its best plan in a frame; ends it; asks the checker about an edit.

const token = new URLSearchParams(location.search).get("token") || "";
const element = (id) => document.getElementById(id);
const at = (path, more = "") => path + "?token=" + encodeURIComponent(token) + more;
let state = null, shown = -1, orders = [], ordersOf = -1;
const changed = new Map(); // device: text

// ------------------------------------------------------------------ words

function seconds(value) {
  const [unit, size] = value >= 1 ? ["s", 1] : value >= 1e-3 ? ["ms", 1e3] : ["us", 1e6];
  return Number((value * size).toPrecision(4)) + " " + unit;
}

const percent = (share) => (share * 100).toFixed(1) + " %";

function figures() {
  const rows = [["time", Math.round(state.seconds) + " of " + Math.round(state.time_limit) + " s"]];
  rows.push(["best plan", state.step_s === null ? "none yet" : seconds(state.step_s)]);
  if (state.bound_s !== null) rows.push(["proven bound", seconds(state.bound_s)]);
  if (state.gap !== null) rows.push(["gap", percent(state.gap)]);
  rows.push(["better plans", String(Math.max(0, state.version))]);
  element("figures").replaceChildren(...rows.map(([name, value]) => {
    const pair = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    pair.append(dt, dd);
    return pair;
  }));
}

// ------------------------------------------------------------------ the course

function drawCourse() {
  const canvas = element("course"), ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const g = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), css = (name) => style.getPropertyValue("--" + name).trim();
  g.scale(ratio, ratio);
  if (!state) return;
  const left = 70, right = 12, top = 10, base = height - 22, whole = Math.max(state.seconds, 1e-9);
  const values = state.course.flatMap(([, step, bound]) => [step, bound]).filter((value) => value !== null);
  if (!values.length) return;
  const best = Math.min(...state.course.map(([, step]) => (step === null ? Infinity : step)));
  const high = Math.min(Math.max(...values), Number.isFinite(best) ? 2 * best : Infinity), low = Math.min(...values), room = (high - low) * 0.1 || high * 0.1;
  const x = (t) => left + (t / whole) * (width - left - right);
  const y = (value) => base - ((Math.min(value, high) - low + room) / (high - low + 2 * room)) * (base - top);
  g.font = '12px system-ui, sans-serif';
  g.fillStyle = css("dim");
  g.textAlign = "right";
  for (const value of high > low ? [low, high] : [high]) g.fillText(seconds(value), left - 8, y(value) + 4);
  g.fillText(Math.round(whole) + " s", width - right, height - 6);
  g.textAlign = "left";
  g.fillText("0", left, height - 6);
  for (const [place, colour, dash] of [[1, css("step"), []], [2, css("bound"), [5, 4]]]) {
    g.beginPath();
    let before = null;
    for (const point of state.course) {
      if (point[place] === null) continue;
      if (before === null) g.moveTo(x(point[0]), y(point[place]));
      else {
        g.lineTo(x(point[0]), y(before));
        g.lineTo(x(point[0]), y(point[place]));
      }
      before = point[place];
    }
    if (before !== null) g.lineTo(x(whole), y(before));
    g.strokeStyle = colour;
    g.lineWidth = 2;
    g.setLineDash(dash);
    g.stroke();
  }
}

// ------------------------------------------------------------------ plans

function showPlan(edited) {
  const frame = element("plan");
  frame.hidden = false;
  element("none").hidden = true;
  frame.src = edited ? at("/plan.html", "&edited=" + Date.now()) : at("/plan.html", "&version=" + state.version);
  shown = edited ? -2 : state.version;
  element("newest").hidden = !edited;
}

function heard(told) {
  state = told;
  element("name").textContent = state.name;
  document.title = (state.step_s === null ? "no plan yet" : seconds(state.step_s)) + ": " + state.name;
  element("phase").textContent = state.ended ? "ended: " + state.ended : state.asked_to_end ? "asked to stop" : state.phase;
  element("end").disabled = state.asked_to_end || Boolean(state.ended);
  element("file").hidden = state.version === 0;
  figures();
  drawCourse();
  if (state.version > 0 && state.version !== shown) {
    if (element("follow").checked && shown !== -2) showPlan(false);
    else element("newest").hidden = false;
  }
  if (state.version > 0 && !changed.size && ordersOf !== state.version) fetchOrders();
}

// ------------------------------------------------------------------ edits

async function fetchOrders() {
  const answer = await fetch(at("/orders"));
  if (!answer.ok) return;
  const found = await answer.json();
  if (changed.size) return;
  orders = found.orders;
  ordersOf = found.version;
  const device = element("device"), chosen = device.value || "0";
  device.replaceChildren(...orders.map((_, number) => new Option(String(number), String(number))));
  device.value = orders[Number(chosen)] === undefined ? "0" : chosen;
  showOrder();
}

function showOrder() {
  const device = Number(element("device").value);
  element("order").value = changed.has(device) ? changed.get(device) : orders[device] || "";
}

function keepOrder() {
  const device = Number(element("device").value), text = element("order").value;
  if (text.trim() === (orders[device] || "")) changed.delete(device);
  else changed.set(device, text);
}

async function judge() {
  keepOrder();
  const answer = await fetch(at("/judge"), {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ orders: Object.fromEntries(changed) }),
  });
  const said = await answer.json(), violations = said.violations || [];
  element("verdict").textContent = said.error || (violations.length ? "it cannot be executed" + (said.text ? "; " + said.text : "") : "it fits: " + said.text);
  element("violations").replaceChildren(...violations.slice(0, 20).map((line) => {
    const item = document.createElement("li");
    item.textContent = line;
    return item;
  }));
  const made = answer.ok && said.step_s !== null;
  element("edited").hidden = !made;
  element("edited-file").hidden = !made || violations.length > 0;
}

function listen() {
  element("end").addEventListener("click", () => fetch(at("/end"), { method: "POST" }));
  element("newest").addEventListener("click", () => showPlan(false));
  element("follow").addEventListener("change", () => { if (element("follow").checked && state && state.version > 0) showPlan(false); });
  element("device").addEventListener("change", showOrder);
  element("order").addEventListener("input", keepOrder);
  element("judge").addEventListener("click", judge);
  element("again").addEventListener("click", () => { changed.clear(); fetchOrders(); });
  element("edited").addEventListener("click", () => showPlan(true));
  window.addEventListener("resize", drawCourse);
  const news = new EventSource(at("/news"));
  news.addEventListener("message", (event) => heard(JSON.parse(event.data)));
  news.addEventListener("error", () => {
    if (!(state && state.ended)) element("phase").textContent = "the search does not answer";
  });
}

listen();
})();
