// Everything beside the canvases: figures, legend, the chosen op, the table. Texts are written as text, never as markup.

function make(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function fillHead() {
  const { forecast } = plan;
  element("title").textContent = plan.model + ": " + plan.source;
  element("shape").textContent = [plural(plan.stages.length, "stage"), plural(plan.devices.length, "device"),
    plan.pipelines, plural(plan.micro_batches, "micro-batch").replace("batchs", "batches")].join(", ") + plan.updating;
  const fullest = plan.devices.map((d, k) => [d.peak_bytes / Math.max(1, d.limit_bytes), k]).sort((a, b) => b[0] - a[0])[0][1];
  const { peak_bytes, limit_bytes } = plan.devices[fullest];
  const figures = forecast.period_s === null ? [["step", seconds(forecast.step_s)]]
    : [["period a micro-batch", seconds(forecast.period_s)], ["run", seconds(forecast.step_s)]];
  if (plan.run) {
    const more = forecast.step_s > 0 ? plan.run.step_s / forecast.step_s - 1 : 0;
    figures.push(["measured", seconds(plan.run.step_s) + " (" + (more > 0 ? "+" : "") + percent(more) + ")"]);
  }
  if (forecast.bound_s) figures.push(["proven bound", seconds(forecast.bound_s)]);
  if (forecast.gap !== null) figures.push(["gap", percent(forecast.gap)]);
  if (forecast.among) figures.push(["of a part", forecast.among]);
  figures.push(["bubble", percent(forecast.bubble)]);
  if (plan.steady) {
    figures.push(["bubble of the period", percent(plan.steady.bubble)]);
    figures.push(["staleness by stage", plan.steady.stale.join(", ")]);
  }
  figures.push(["peak, device " + fullest, bytes(peak_bytes) + " of " + limitText(limit_bytes), peak_bytes > limit_bytes]);
  figures.push(["what binds", plan.why.binding]);
  if (plan.run) {
    const { binding, simulated_s, remark } = plan.run;
    const basis = "simulated with the times of its ops, " + seconds(simulated_s) + " of " + seconds(plan.run.step_s);
    figures.push(["what binds the run", binding + " (" + basis + ")"], ["run against forecast", remark]);
  }
  for (const [name, value, over] of figures) {
    const pair = make("div");
    pair.append(make("dt", name), make("dd", value, over ? { class: "over" } : {}));
    element("figures").append(pair);
  }
  element("help").textContent = "Drag pans, Ctrl or Alt and the wheel zoom, a click shows what an op waits for, a double click shows it large. " +
    "Keys on the timeline: arrows walk, Enter chooses, B what decided its start, W S or + - zoom, A D pan, 0 whole step, C critical path, I idle by cause, M follows the micro-batch, Esc lets go.";
}

function fillColourings() {
  element("thin").setAttribute("aria-pressed", String(view.thin));
  element("beside").setAttribute("aria-pressed", String(view.beside));
  placeMemory();
  const select = element("colour");
  for (const name of COLOURINGS) select.append(make("option", name, { value: name }));
  select.value = view.colour;
  select.addEventListener("change", () => {
    view.colour = select.value;
    lookAgain();
    repaint();
    fillLegend();
    refresh();
  });
}

function fillModes() {
  if (!plan.run) return;
  for (const mode of ["forecast", "measured", "both"]) {
    const button = make("button", mode, { type: "button", id: "mode-" + mode, "aria-pressed": String(mode === view.mode) });
    button.addEventListener("click", () => useMode(mode));
    element("modes").append(button);
  }
}

/** Memory has a picture of its own, or stands under the rows of its device. */
function placeMemory() {
  element("memory").hidden = view.beside;
  element("what").textContent = (view.beside ? "under the rows of every device" : "of every device over the same time") +
    ", one scale for all; at the right what made the peak" +
    (plan.run ? "; the curve is the forecast's, the dotted lines are measured" : "");
}

const SWATCHES = 4; // of a kind, where a stage or a micro-batch has a hue
const QUIET = new Set(["unused", "filling", "draining"]); // coloured like idle time

/** One swatch for every kind and direction that is drawn. */
function fillLegend() {
  const list = element("legend");
  list.replaceChildren();
  const seen = new Map();
  for (let item = 0; item < items.count; item++) {
    const kind = kindOf(item), number = numbers[item];
    if (!drawn(item) && !(plan.run && times.measured.end[item] > times.measured.start[item])) continue;
    const hue = looks[number].slot;
    const name = kind.startsWith("SEND") ? "message" : MEANING[kind];
    if (!seen.has(name)) seen.set(name, { kind: items.kind[item], hues: new Map() });
    if (seen.get(name).hues.size < SWATCHES && !seen.get(name).hues.has(hue)) seen.get(name).hues.set(hue, number);
  }
  for (const [name, { hues }] of [...seen].sort(([, a], [, b]) => a.kind - b.kind))
    list.append(entry(name, [...hues].sort(([a], [b]) => a - b).map(([, number]) => paint(number))));
  const waits = new Set(view.idle && sources().includes("forecast") ? plan.why.spans.cause : []);
  plan.why.causes.forEach(([name], cause) => {
    if (waits.has(cause) && !QUIET.has(name)) list.append(entry("waits: " + name, [{ fill: theme.idle[cause] }]));
  });
  list.append(entry("idle", [{ fill: css.idle }]));
  const parts = new Set(plan.devices.flatMap((device) => device.peak_parts.map(([name]) => name)));
  element("parts").replaceChildren(...[...parts].map((name) => entry(name, [{ fill: theme.parts[name] || css.axis }])));
  const notes = [];
  if (view.colour === "stage" || view.colour === "micro-batch") notes.push("a hue for each " + view.colour);
  if (view.colour === "direction" && new Set(plan.routes.map((route) => route.hue)).size > 1) notes.push("blue runs down the devices, orange up");
  if (plan.steady && plan.steady.from_s !== null)
    notes.push("dashed: " + (plan.steady.update > 1 ? "an update of " + plan.steady.update + " micro-batches" : "an update") + " in steady state");
  if (plan.routes.some((route) => route.again.some(Boolean))) notes.push("underlined: a later stage of the same device");
  for (const note of notes) list.append(make("li", note));
}

function entry(name, styles) {
  const node = make("li");
  for (const style of styles) {
    const swatch = make("canvas", null, { "aria-hidden": "true" });
    swatch.width = swatch.height = 26;
    const g = swatch.getContext("2d");
    g.scale(2, 2);
    g.fillStyle = styleOf(g, style);
    g.fillRect(0, 0, 13, 13);
    node.append(swatch);
  }
  node.append(make("span", name));
  return node;
}

const AT_MOST = 6; // buttons in a group

/** Says what is under the cursor, and lists what the chosen op waits for and what waits for it. */
function fillInspector() {
  const at = view.chosen || view.cursor;
  element("said").textContent = at ? describe(at.item, at.source).join("; ")
    : "";
  element("help").classList.toggle("away", Boolean(at));
  const box = element("related");
  box.replaceChildren();
  if (!view.chosen) return;
  const { item, source } = view.chosen;
  const [waited, follow] = [related(item, before, source), related(item, after, source)];
  fillGroup(box, "start decided by", waited.filter((other) => other.decides), "before");
  fillGroup(box, "also waited for", waited.filter((other) => !other.decides), "before");
  fillGroup(box, "then start", follow.filter((other) => other.decides), "after");
  fillGroup(box, "later start", follow.filter((other) => !other.decides), "after");
  if (!box.children.length) box.append(make("span", "it waits for nothing, and nothing waits for it", { class: "dim" }));
}

function fillGroup(box, title, list, name) {
  const onTheWay = new Set(list.filter(({ item, via }) => via !== item).map(({ via }) => via));
  const shown = list.filter(({ item }) => !onTheWay.has(item));
  if (!shown.length) return;
  box.append(make("span", title, { class: "dim" }));
  for (const other of shown.slice(0, AT_MOST)) box.append(jump(other, name));
  if (shown.length > AT_MOST) box.append(make("span", "and " + (shown.length - AT_MOST) + " more", { class: "dim" }));
}

const WAYS = { OFFLOAD: " (by the host)", FETCH: " (by the host)", REDUCE: " (by reduction)", TIE: " (by reduction)", GATHER: " (by gathering)", FREE: " (for its memory)" };

function jump({ item, via }, name) {
  const apart = items.device[item] !== items.device[view.chosen.item]; // then it goes without saying
  const way = via === item || apart ? "" : WAYS[kindOf(via)] || " (by message)";
  const button = make("button", shortName(item) + way, { type: "button", class: name });
  button.addEventListener("click", () => {
    const source = view.chosen.source;
    choose({ item, source });
    reveal(item, source);
    element("timeline").focus({ preventScroll: true });
  });
  return button;
}

/** What devices wait for, what the step would be, and what a run lost: the terminal's tables and sentences. */
function fillWhy() {
  const { table, meanings, gap, what_if, same } = plan.why, box = element("why");
  const say = (text) => { if (text) box.append(make("p", text)); };
  grid(box, "What devices wait for, in shares of the step", table);
  say(meanings.map(([name, full]) => name + ": " + full).join("; "));
  say(gap);
  grid(box, "What the step would be", what_if.length ? [["step", "change", "with"], ...what_if] : [], "words");
  say(same);
  if (!plan.run) return;
  const { causes, remark, late, late_table } = plan.run;
  grid(box, "The run against its forecast", [["seconds", "explained by"], ...causes], "words");
  say(remark);
  grid(box, "Where the run became late", late_table);
  say(late);
}

/** A table of rows of text, the first the headings; nothing where there is none. */
function grid(box, caption, [headings, ...rows], words = "") {
  if (!headings) return;
  const table = make("table", null, { class: words }), head = make("tr"), top = make("thead"), body = make("tbody");
  for (const name of headings) head.append(make("th", name, { scope: "col" }));
  top.append(head);
  for (const cells of rows) {
    const row = make("tr");
    cells.forEach((text, k) => row.append(k ? make("td", text) : make("th", text, { scope: "row" })));
    body.append(row);
  }
  table.append(make("caption", caption), top, body);
  const scroller = make("div", null, { class: "scroller", tabindex: "0", role: "group", "aria-label": caption });
  scroller.append(table);
  box.append(scroller);
}

function fillTable() {
  const table = element("table"), head = make("tr"), body = make("tbody");
  const columns = ["device", "busy", "idle", "peak", "limit"];
  if (plan.run) columns.push("measured busy", "measured peak");
  for (const name of [...columns, "what made the peak"]) head.append(make("th", name, { scope: "col" }));
  plan.devices.forEach((device, number) => {
    const row = make("tr");
    const cells = [device.kind ? number + " (" + device.kind + ")" : number, seconds(device.busy_s), percent(device.bubble),
      bytes(device.peak_bytes), limitText(device.limit_bytes)];
    if (plan.run) cells.push(seconds(plan.run.devices[number].busy_s), bytes(plan.run.devices[number].peak_bytes));
    const made = [...device.peak_parts].sort((a, b) => b[1] - a[1]).map(([name, size]) => name + " " + bytes(size));
    [...cells, made.join(", ")].forEach((text, k) => row.append(k ? make("td", text) : make("th", text, { scope: "row" })));
    if (device.peak_bytes > device.limit_bytes) row.children[3].className = "over";
    body.append(row);
  });
  const top = make("thead");
  top.append(head);
  table.replaceChildren(make("caption", "Devices"), top, body);
}
