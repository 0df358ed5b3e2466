// What lies over the timeline: the critical path, what the chosen op waits for and what waits for it, the cursor.

function drawMarks() {
  const g = clean(element("marks"), layout.width, layout.height);
  g.save();
  g.beginPath();
  g.rect(LEFT, 0, layout.plot, layout.height);
  g.clip();
  if (view.chosen) drawChosen(g);
  else if (view.follow !== null) drawFollowed(g);
  else if (view.path) sources().forEach((source) => drawPath(g, source));
  if (plan.steady && plan.steady.from_s !== null && sources().includes("forecast")) drawPeriod(g);
  if (view.hover) ring(g, view.hover, css.text, 1.5);
  if (view.cursor) ring(g, view.cursor, css.accent, 2.5);
  g.restore();
}

/** Brackets the time of an update in the steady part of a plan without a flush. */
function drawPeriod(g) {
  const x0 = xOf(plan.steady.from_s), x1 = xOf(plan.steady.to_s);
  g.setLineDash([6, 3]);
  g.strokeStyle = css.accent;
  g.lineWidth = 1.5;
  g.beginPath();
  for (const x of [x0, x1]) {
    g.moveTo(x, 0);
    g.lineTo(x, layout.height);
  }
  g.moveTo(x0, 1);
  g.lineTo(x1, 1);
  g.stroke();
  g.setLineDash([]);
}

/** Everything of one micro-batch, and a veil over the rest. */
function drawFollowed(g) {
  g.fillStyle = css.veil;
  g.fillRect(LEFT, 0, layout.plot, layout.height);
  for (let item = 0; item < items.count; item++)
    if (items.micro[item] === view.follow) sources().forEach((source) => lit(g, item, source));
}

function ring(g, { item, source }, colour, width, dash = []) {
  const box = boxOf(item, source);
  if (!box) return;
  g.setLineDash(dash);
  g.strokeStyle = colour;
  g.lineWidth = width;
  g.strokeRect(box.x, box.y, Math.max(2, box.width), box.height);
  g.setLineDash([]);
}

/**
 * A line under every op of a source's critical path, from op to op; on its rows where only those are there. A message
 * that is known to be complete late is left when the next op starts.
 */
function drawPath(g, source) {
  const line = new Path2D();
  const boxes = pathOf(source).map((item) => boxOf(item, source)).filter(Boolean);
  boxes.forEach((box, place) => {
    const y = box.row.name ? box.y + box.height / 2 : box.y + box.height - 2.5, next = boxes[place + 1];
    if (place) line.lineTo(box.x, y);
    else line.moveTo(box.x, y);
    line.lineTo(Math.min(box.x + box.width, next ? Math.max(box.x, next.x) : Infinity), y);
  });
  g.lineJoin = "round";
  const wide = layout.lane > 20 ? 2.2 : 1.2;
  for (const [colour, width] of [[css.ground, 2 * wide], [css.path, wide]]) {
    g.strokeStyle = colour;
    g.lineWidth = width;
    g.stroke(line);
  }
}

/**
 * What an item waits for (table `before`) or what waits for it (`after`): drawn items, each with the first step of the
 * way and whether it decides a start in this source. Through messages, copies and what takes no time the way goes on to the next op.
 */
function related(item, table, source) {
  const found = new Map();
  const follow = (from, via, decided, depth) => {
    for (let k = table.first[from]; k < table.first[from + 1]; k++) {
      const other = table.other[k];
      const [early, late] = table === before ? [other, from] : [from, other];
      const now = decided && decides(early, late, table.lag[k], source);
      const first = via ?? other;
      if (depth > 0 && !inLine[other]) continue; // not along the queue of a link
      if (drawn(other)) {
        const old = found.get(other);
        found.set(other, { item: other, via: old ? old.via : first, decides: now || (old ? old.decides : false) });
      }
      if (depth < 2 && (!inLine[other] || !drawn(other))) follow(other, first, now, depth + 1);
    }
  };
  follow(item, null, true, 0);
  return [...found.values()].sort((a, b) => b.decides - a.decides || a.item - b.item);
}

const drawn = (item) => times.forecast.end[item] > times.forecast.start[item];

function drawChosen(g) {
  const { item, source } = view.chosen;
  g.fillStyle = css.veil;
  g.fillRect(LEFT, 0, layout.plot, layout.height);
  const groups = [[related(item, before, source), css.before, []], [related(item, after, source), css.after, [5, 3]]];
  for (const [list] of groups) for (const other of list) lit(g, other.item, source);
  lit(g, item, source);
  const here = boxOf(item, source);
  groups.forEach(([list, colour, dash], later) => {
    for (const other of list) {
      ring(g, { item: other.item, source }, colour, other.decides ? 3 : 1.5, dash);
      const box = boxOf(other.item, source);
      if (box && here) connect(g, later ? here : box, later ? box : here, colour, other.decides ? 2.5 : 1.2, dash);
    }
  });
  ring(g, view.chosen, css.text, 3);
}

function lit(g, item, source) {
  const box = boxOf(item, source);
  if (!box) return;
  const texts = new Map(), list = new Map([[numbers[item], [box.x, box.y, Math.max(1.5, box.width), box.height]]]);
  fillBars(g, list);
  if (box.row.name === "") label(item, box.x, box.x + box.width, box.row, texts, []);
  g.textAlign = "center";
  for (const [ink, [[text, x, y, size]]] of texts) {
    g.fillStyle = ink;
    g.font = size + "px " + FONT;
    g.fillText(text, x, y);
  }
}

/** From the end of one bar to the start of another. */
function connect(g, a, b, colour, width, dash) {
  if (a.number === b.number) return;
  const [x0, y0, x1, y1] = [a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2];
  const bend = Math.min(40, Math.abs(x1 - x0) / 2 + 8);
  g.setLineDash(dash);
  g.strokeStyle = colour;
  g.lineWidth = width;
  g.beginPath();
  g.moveTo(x0, y0);
  g.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
  g.stroke();
  g.setLineDash([]);
}
