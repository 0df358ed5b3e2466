// The table of compare: sorting by a column, and opening the plan of a row below the table.

document.querySelectorAll('thead button').forEach((button, column) => button.addEventListener('click', () => {
  const head = button.parentElement, body = document.querySelector('tbody');
  const up = head.getAttribute('aria-sort') !== 'ascending';
  document.querySelectorAll('thead th[aria-sort]').forEach(other => other.setAttribute('aria-sort', 'none'));
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const value = row => row.children[column].dataset.value;
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === '' || y === '') return (x === '') - (y === '');
    const by = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return up ? by : -by;
  };
  [...body.rows].sort(order).forEach(row => body.append(row));
}));

// ------------------------------------------------------------------ plans

const textOf = (id) => document.getElementById(id).textContent;
const opened = document.getElementById("opened");

/** The page of a plan, in a frame of its own: the same for all but for the plan's data. */
function openPlan(button) {
  const { plan } = button.dataset, closed = button.getAttribute("aria-expanded") === "false";
  document.querySelectorAll("tbody button").forEach((other) => other.setAttribute("aria-expanded", "false"));
  button.setAttribute("aria-expanded", String(closed));
  opened.hidden = !closed;
  const frame = document.createElement("iframe"), { page, mark } = JSON.parse(textOf("frame"));
  frame.title = "plan of " + button.textContent;
  frame.setAttribute("sandbox", "allow-scripts");
  frame.srcdoc = closed ? page.replace(mark, () => textOf(plan)) : "";
  opened.querySelector("h2").textContent = button.textContent;
  opened.querySelector("iframe").replaceWith(frame);
  if (closed) opened.scrollIntoView({ block: "start" });
}

document.querySelectorAll("tbody button").forEach((button) => button.addEventListener("click", () => openPlan(button)));
