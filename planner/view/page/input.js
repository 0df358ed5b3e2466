// Pointer, wheel, keys and buttons.

function useMode(mode) {
  view.mode = mode;
  for (const name of ["forecast", "measured", "both"])
    element("mode-" + name).setAttribute("aria-pressed", String(name === mode));
  const follow = (at) => at && (sources().includes(at.source) ? at : { item: at.item, source: sources()[0] });
  view.cursor = follow(view.cursor);
  view.chosen = follow(view.chosen);
  view.hover = null;
  show(0, extent());
  relayout();
  fillInspector();
}

function toggle(key) {
  view[key] = !view[key];
  element(key).setAttribute("aria-pressed", String(view[key]));
  relayout();
}

function choose(at) {
  view.chosen = at;
  if (at) view.cursor = at;
  fillInspector();
  refresh("marks");
}

function moveTo(at) {
  if (!at) return; // nothing is drawn
  view.cursor = at;
  view.chosen = null;
  reveal(at.item, at.source);
  fillInspector();
  refresh("marks");
}

/** Pans, and scrolls the page, until the item is in sight. */
function reveal(item, source) {
  const { start, end } = times[source], span = view.to - view.from;
  if (start[item] < view.from || end[item] > view.to) {
    const middle = (start[item] + end[item]) / 2, wide = Math.max(span, (end[item] - start[item]) * 1.5);
    show(middle - wide / 2, middle + wide / 2);
    refresh();
  }
  const box = boxOf(item, source);
  if (!box) return;
  const top = element("timeline").getBoundingClientRect().top + box.y;
  if (top < 40) window.scrollBy(0, top - 60);
  else if (top + box.height > window.innerHeight - 10) window.scrollBy(0, top + box.height - window.innerHeight + 30);
}

/** Follows a micro-batch, null: none. */
function follow(micro) {
  view.follow = micro;
  element("follow").setAttribute("aria-pressed", String(micro !== null));
  element("follow").textContent = micro === null ? "Follow micro-batch" : "Following micro-batch " + micro;
  refresh("marks");
}

function toggleFollow() {
  const at = view.chosen || view.cursor, micro = at ? items.micro[at.item] : -1;
  if (view.follow !== null || micro < 0) follow(null);
  else {
    view.chosen = null;
    fillInspector();
    follow(micro);
  }
}

// ------------------------------------------------------------------ search

const QUERY = /^\s*(\d+)?\s*([a-z]+(?:_[a-z])?)?\s*(\d+)?\s*$/i;

/** The items that a text like 2F3, F3, 2F or 3 (a micro-batch) means, in order of time. */
function found(text) {
  const match = QUERY.exec(text);
  if (!match || !text.trim()) return [];
  const kind = match[2] ? match[2].toUpperCase() : null, number = (digits) => (digits === undefined ? null : Number(digits));
  const [stage, micro] = kind ? [number(match[1]), number(match[3])] : [null, number(match[1])];
  const source = sources()[0], list = [];
  for (let item = 0; item < items.count; item++)
    if ((!kind || kindOf(item) === kind) && (stage === null || items.stage[item] === stage) &&
      (micro === null || items.micro[item] === micro) && boxOf(item, source)) list.push(item);
  return list.sort((a, b) => times[source].start[a] - times[source].start[b] || a - b);
}

/** Chooses what is meant; asked again, the next one. */
function search() {
  const list = found(element("find").value), source = sources()[0];
  if (!list.length) {
    choose(null);
    element("said").textContent = "nothing is called " + element("find").value;
    return;
  }
  const item = list[(list.indexOf(view.chosen ? view.chosen.item : -1) + 1) % list.length];
  choose({ item, source });
  reveal(item, source);
}

// ------------------------------------------------------------------ pointer

function under(event) {
  const rect = element("timeline").getBoundingClientRect();
  const x = event.clientX - rect.left, number = rowAt(event.clientY - rect.top);
  if (number < 0 || x < LEFT || x > LEFT + layout.plot) return null;
  const row = layout.rows[number], item = itemAt(row, tOf(x), 2 / scale());
  return item < 0 ? null : { item, source: row.source };
}

/** Why the device under the pointer computes nothing there; "" where it does, or where it is not known. */
function waitUnder(event) {
  const rect = element("timeline").getBoundingClientRect();
  const x = event.clientX - rect.left, row = layout.rows[rowAt(event.clientY - rect.top)];
  if (!row || x < LEFT || x > LEFT + layout.plot) return "";
  const k = gapAt(row, tOf(x));
  return k < 0 ? "" : describeGap(row.device, k);
}

function tip(at, event) {
  const waits = at || !event ? "" : waitUnder(event) || (view.beside ? heldUnder(event) : "");
  tipText(at ? shortName(at.item) + "\n" + describe(at.item, at.source).slice(1).join("\n") : waits, event);
}

/** Shows a text beside the pointer; none where it is empty. */
function tipText(text, event) {
  const box = element("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const rect = element("drawing").getBoundingClientRect();
  const x = event.clientX - rect.left, y = event.clientY - rect.top;
  box.style.left = Math.max(0, Math.min(x + 14, rect.width - box.offsetWidth - 4)) + "px";
  box.style.top = y + 18 + "px";
}

function listenToPointer() {
  const canvas = element("timeline");
  let drag = null;
  const fingers = new Map(); // two of them zoom
  const between = () => {
    const [a, b] = [...fingers.values()];
    return { wide: Math.max(20, Math.abs(a - b)), middle: (a + b) / 2 - canvas.getBoundingClientRect().left };
  };
  canvas.addEventListener("dblclick", (event) => {
    const at = under(event);
    const { start, end } = times[at ? at.source : sources()[0]];
    if (at) show(start[at.item] * 1.5 - end[at.item] * 0.5, end[at.item] * 1.5 - start[at.item] * 0.5);
    else show(0, extent());
    refresh();
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    fingers.set(event.pointerId, event.clientX);
    if (fingers.size === 2) {
      drag = { ...between(), from: view.from, to: view.to, moved: true, pinch: true };
      return;
    }
    drag = { x: event.clientX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event.clientX);
    if (drag && drag.pinch) {
      if (fingers.size === 2) pinch(drag, between());
      return;
    }
    if (drag && (drag.moved || Math.abs(event.clientX - drag.x) > 3)) {
      drag.moved = true;
      canvas.classList.add("dragged");
      tip(null);
      const shift = (drag.x - event.clientX) * ((drag.to - drag.from) / layout.plot);
      show(drag.from + shift, drag.to + shift);
      refreshFast();
      return;
    }
    view.hover = under(event);
    tip(view.hover, event);
    refresh("marks");
  });
  canvas.addEventListener("pointerup", (event) => {
    fingers.delete(event.pointerId);
    if (drag && !drag.moved) choose(under(event));
    drag = null;
    canvas.classList.remove("dragged");
  });
  canvas.addEventListener("pointercancel", () => { fingers.clear(); drag = null; canvas.classList.remove("dragged"); });
  canvas.addEventListener("pointerleave", () => { view.hover = null; tip(null); refresh("marks"); });
  element("stack").addEventListener("wheel", turn, { passive: false });
  element("memory").addEventListener("wheel", turn, { passive: false });
  element("memory").addEventListener("pointermove", (event) => tipText(heldUnder(event), event));
  element("memory").addEventListener("pointerleave", () => tip(null));
}

/** Two fingers: what was under each of them stays there. */
function pinch({ from, to, wide, middle }, now) {
  const span = ((to - from) * wide) / now.wide, t = from + ((middle - LEFT) / layout.plot) * (to - from);
  const begin = t - ((now.middle - LEFT) / layout.plot) * span;
  show(begin, begin + span);
  refreshFast();
}

function turn(event) {
  const across = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.ctrlKey || event.metaKey || event.altKey) {
    const x = event.clientX - element("timeline").getBoundingClientRect().left;
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), tOf(Math.max(LEFT, x)));
  } else if (Math.abs(across) > (event.shiftKey ? 0 : Math.abs(event.deltaY))) {
    show(view.from + across / scale(), view.to + across / scale());
  } else return; // the page scrolls
  event.preventDefault();
  refreshFast();
}

// ------------------------------------------------------------------ keys

/** The op beside the cursor: along its row, or on the next row at the same time. */
function beside(along, across) {
  const at = view.cursor;
  if (!at || !boxOf(at.item, at.source)) {
    const row = layout.rows.find((r) => r.items.length);
    const place = row && Math.min(row.items.length - 1, upperBound(row.reach, view.from));
    return row && { item: row.items[place], source: row.source };
  }
  const { row, number } = boxOf(at.item, at.source);
  if (along) {
    const place = row.items.indexOf(at.item) + along;
    const last = row.items.length - 1;
    return { item: row.items[Math.max(0, Math.min(last, place))], source: row.source };
  }
  let next = number + across;
  while (layout.rows[next] && !layout.rows[next].items.length) next += across;
  if (!layout.rows[next]) return at;
  const middle = (times[at.source].start[at.item] + times[at.source].end[at.item]) / 2;
  return { item: itemAt(layout.rows[next], middle, Infinity), source: layout.rows[next].source };
}

function decider(at) {
  const found = at && related(at.item, before, at.source).find((other) => other.decides && boxOf(other.item, at.source));
  return found ? { item: found.item, source: at.source } : at;
}

const KEYS = {
  ArrowLeft: () => moveTo(beside(-1, 0)),
  ArrowRight: () => moveTo(beside(1, 0)),
  ArrowUp: () => moveTo(beside(0, -1)),
  ArrowDown: () => moveTo(beside(0, 1)),
  Home: () => moveTo(beside(-Infinity, 0)),
  End: () => moveTo(beside(Infinity, 0)),
  b: () => view.cursor && moveTo(decider(view.cursor)),
  w: () => zoomAtCursor(1.5),
  s: () => zoomAtCursor(1 / 1.5),
  a: () => pan(-PAN),
  d: () => pan(PAN),
  m: () => toggleFollow(),
  Enter: () => view.cursor && choose(view.cursor),
  " ": () => view.cursor && choose(view.cursor),
  "+": () => zoomAtCursor(1.5),
  "=": () => zoomAtCursor(1.5),
  "-": () => zoomAtCursor(1 / 1.5),
  0: () => { show(0, extent()); refresh(); },
  c: () => toggle("path"),
  i: () => { toggle("idle"); fillLegend(); },
  Escape: () => { if (view.chosen) choose(null); else if (view.follow !== null) follow(null); else { view.cursor = null; fillInspector(); refresh("marks"); } },
};

const PAN = 0.2; // of what is visible

function pan(share) {
  const shift = share * (view.to - view.from);
  show(view.from + shift, view.to + shift);
  refresh();
}

function zoomAtCursor(factor) {
  const at = view.cursor, t = at && times[at.source].start[at.item];
  zoom(factor, at && t >= view.from && t <= view.to ? t : undefined);
  refresh();
}

function listenToKeys() {
  element("timeline").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = KEYS[event.key] || KEYS[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  });
  element("in").addEventListener("click", () => zoomAtCursor(1.5));
  element("out").addEventListener("click", () => zoomAtCursor(1 / 1.5));
  element("fit").addEventListener("click", KEYS[0]);
  element("find").addEventListener("keydown", (event) => { if (event.key === "Enter") search(); });
  element("follow").addEventListener("click", toggleFollow);
  element("path").addEventListener("click", () => toggle("path"));
  element("idle").addEventListener("click", () => { toggle("idle"); fillLegend(); });
  element("thin").addEventListener("click", () => toggle("thin"));
  element("beside").addEventListener("click", () => { toggle("beside"); placeMemory(); });
}
