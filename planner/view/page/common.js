// Data and quantities: what every page of ours reads and writes.

const element = (id) => document.getElementById(id);
const read = (id) => JSON.parse(element(id).textContent);

/** A coded column: {table, index}. */
function decode({ table, index }) {
  const out = new Float64Array(index.length);
  for (let k = 0; k < out.length; k++) out[k] = table[index[k]];
  return out;
}

/** Place of the first value of an ascending array that is more than x. */
function upperBound(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

// ------------------------------------------------------------------ quantities in words

const digits = (x, count = 4) => String(Number(x.toPrecision(count)));

function seconds(t, count = 4) {
  const size = Math.abs(t);
  if (size >= 1) return digits(t, count) + " s";
  if (size >= 1e-3) return digits(t * 1e3, count) + " ms";
  return size === 0 ? "0 s" : digits(t * 1e6, count) + " us";
}

function bytes(count) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(count) < 1024) return digits(count) + " " + unit;
    count /= 1024;
  }
  return digits(count) + " TiB";
}

/** What a device may hold; beyond what any computer has there is no limit. */
const limitText = (count) => (count < 2 ** 59 ? bytes(count) : "any size");

function percent(share) {
  const size = Math.abs(share);
  if (size < 5e-7) return "0 %";
  return (size >= 5e-4 ? (100 * share).toFixed(1) : digits(100 * share, 2)) + " %";
}

const plural = (count, word) => count + " " + word + (count === 1 ? "" : "s");
