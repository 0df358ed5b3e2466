// Operations in words.

const MEANING = {
  F: "forward", B: "backward", I: "backward for inputs", W: "backward for weights", R: "recompute",
  SEND_F: "activations", SEND_B: "gradients", SEND_S: "stash", SEND_P: "parameters", REDUCE: "gradient reduction", TIE: "sum of tied gradients",
  STEP: "optimizer step", OFFLOAD: "stash to the host", FETCH: "stash from the host", FREE: "wait for free memory",
  PREDICT: "prediction of weights", GATHER: "gathering of parameters",
};

/** How much later than forecast an item began in the run, and how much longer it took. */
function lateText(item) {
  const { forecast, measured } = times, late = measured.start[item] - forecast.start[item];
  const longer = measured.end[item] - forecast.end[item] - late;
  return "began " + seconds(Math.abs(late), 3) + (late < 0 ? " earlier" : " later") + " than forecast, took " +
    seconds(Math.abs(longer), 3) + (longer < 0 ? " less" : " more");
}

/** Which weights a pass of a plan without a flush uses. */
function versionText(item) {
  const { version, ahead, update } = plan.steady, own = Math.floor(items.micro[item] / update);
  const behind = own - version[item];
  return "weights of version " + version[item] + (behind > 0 ? ", " + plural(behind, "update") + " behind its own" : "") +
    (ahead[item] > 0 ? ", predicted " + plural(ahead[item], "update") + " ahead" : "");
}

/** What an item does: "B 5, stage 3" with where it does it. */
function shortName(item) {
  const micro = items.micro[item] >= 0 ? " " + items.micro[item] : "";
  return kindOf(item) + micro + ", stage " + items.stage[item] + ", device " + whereOf(item);
}

function whereOf(item) {
  return items.device[item] + (items.target[item] >= 0 ? " to " + items.target[item] : "");
}

/** Why a device computes nothing in its k-th gap. */
function describeGap(device, k) {
  const { start, end, cause } = idle[device];
  const span = seconds(start[k], 6) + " to " + seconds(end[k], 6) + " (" + seconds(end[k] - start[k]) + ")";
  return "device " + device + " waits, " + span + "\n" + plan.why.causes[cause[k]][1];
}

/** The lines of a tooltip, and of what a screen reader says. */
function describe(item, source) {
  const names = plan.stages[items.stage[item]];
  const layers = names.length > 3 ? names[0] + " to " + names[names.length - 1] : names.join(", ");
  const what = [MEANING[kindOf(item)], "stage " + items.stage[item]];
  if (items.micro[item] >= 0) what.push("micro-batch " + items.micro[item]);
  what.push("device " + whereOf(item));
  const start = times[source].start[item], end = times[source].end[item];
  const lines = [what.join(", "), seconds(start, 6) + " to " + seconds(end, 6) + " (" + seconds(end - start) + ")"];
  if (items.bytes[item] > 0) lines.push(bytes(items.bytes[item]) + (items.latency[item] > 0
    ? ", arrives " + seconds(items.latency[item]) + " later" : ""));
  if (plan.run) lines[1] = (source === "measured" ? "measured " : "forecast ") + lines[1];
  if (plan.run && inLine[item]) lines.push(lateText(item));
  if (source === "measured" && !inLine[item]) lines.push("from its posting until it was known to be complete");
  if (plan.steady && plan.steady.version[item] >= 0) lines.push(versionText(item));
  lines.push("layers " + layers);
  if (source === "forecast") lines.push("the device holds " + bytes(heldAt(items.device[item], end)) + " at its end");
  return lines;
}
