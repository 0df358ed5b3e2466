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

const opened = element("opened");

/** The page of a plan, in a frame of its own: the same for all but for the plan's data; null: none. */
function openPage(data, name, scroll = true) {
  document.querySelectorAll("[aria-expanded]").forEach((other) =>
    other.setAttribute("aria-expanded", String(data !== null && other.dataset.plan === data)));
  opened.hidden = data === null;
  opened.dataset.plan = data ?? "";
  const frame = document.createElement("iframe");
  frame.title = "plan of " + name;
  frame.setAttribute("sandbox", "allow-scripts");
  if (data !== null) {
    const { page, mark } = read("frame");
    frame.srcdoc = page.replace(mark, () => element(data).textContent);
  }
  opened.querySelector("h2").textContent = name;
  opened.querySelector("iframe").replaceWith(frame);
  if (data !== null && scroll) opened.scrollIntoView({ block: "start" });
}

document.querySelectorAll("tbody button").forEach((button) => button.addEventListener("click", () => {
  const { plan } = button.dataset, closed = button.getAttribute("aria-expanded") === "false";
  openPage(closed ? plan : null, button.textContent);
  if (closed) showData(plan);
}));
document.querySelectorAll("td.picture").forEach((cell) => cell.addEventListener("click", () => {
  const button = cell.parentElement.querySelector("th button");
  if (button) showData(button.dataset.plan);
}));
