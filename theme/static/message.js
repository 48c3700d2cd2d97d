// Finds the lines of a pasted traceback or log that name an error, the most specific line first.
"use strict";

// From most to least specific. For the first kind, the first line counts, because later lines are its consequences. For the
// other kinds, the last line counts, because an error that is raised while another is handled comes after it.
const KINDS = [
  /\bFunction '[^']+' returned nan values\b(?: in its \d+\w* output)?/i,
  /(?<![\w.])(?:[\p{L}_]\w*\.)*[\p{L}_]\w*(?:Error|Exception)(?:\(\w+\))?: \S.*/u,
  /\bError detected in [\w:<>]*\w/,
  /\bdevice-side assert\b.*|\bAssertion\b.* failed\b/,
  /(?<![\w.])\w*Warning: \S.*/,
  /.*\bnan\b.*/i,
  /.*\S.*/,
];
// Lines of a traceback that are code, or that give the file and line of the code.
const CODE = /^(?:-*>?\s*\d+\s|>\s|File\s|raise\s|except\b|warnings\.warn|logger\.|@|#|def\s|class\s|import\s|from\s\w+\simport\b|Traceback \(most recent call last\):$)/;
const ANY = KINDS.length - 1;
const LONGEST = 300;
const SENT = 1500;

// Remove the colour codes of a terminal.
function plain(text) {
  return text.replace(/\u001b\[[\d;?]*[A-Za-z]/g, "").trim();
}

// Each different line with its kind and position. A line that a progress bar has overwritten counts too.
function lines(text) {
  const found = new Map();
  for (const [at, raw] of plain(text).split(/[\r\n]+/).entries()) {
    const line = raw.trim().replace(/^(?:\[[\w:]*rank\s?\d+\]:?|\d+:)\s*/i, "");
    if (!line || CODE.test(line)) continue;
    const kind = KINDS.findIndex((pattern) => pattern.test(line));
    const said = line.match(KINDS[kind])[0].slice(0, LONGEST);
    if (kind > 0) found.delete(said);
    if (!found.has(said)) found.set(said, { said, kind, at });
  }
  return [...found.values()];
}

/** The lines of a text that may say what went wrong, the most specific first. A single short line is returned unchanged. */
function telling(text) {
  const whole = plain(text);
  if (whole && whole.length < LONGEST && !/[\r\n]/.test(whole)) return [whole];
  const sorted = lines(text).sort((one, other) => one.kind - other.kind || (one.kind ? other.at - one.at : one.at - other.at));
  // If no line names an error, the last line is the most useful.
  const rest = sorted.findIndex(({ kind }) => kind === ANY);
  return (rest < 0 ? sorted : sorted.slice(0, rest + 1)).map(({ said }) => said);
}

/** The same lines in their original order, as many as fit into an address. */
function shortened(text) {
  let room = SENT;
  const kept = new Set(telling(text).filter((said) => (room -= said.length) >= 0));
  const whole = plain(text);
  return kept.has(whole) ? whole : lines(text).map(({ said }) => said).filter((said) => kept.has(said)).join("\n");
}

/** Whether a text is several lines of a log, none of which names an error. */
function isLog(text) {
  const all = lines(text);
  return all.length > 1 && all.every(({ kind }) => kind === ANY);
}

/** Other queries for a line: the line without the type of the error, and the first sentence of that. */
function readings(line) {
  const words = line.replace(/^[\w.]+(?:\(\w+\))?: /, "");
  return [words, words.split(/[.:;]\s| \(/)[0]].filter((reading) => reading !== line && reading.split(" ").length >= 3);
}

const pasted = document.querySelector("form.paste");
pasted?.addEventListener("formdata", ({ formData }) => {
  const text = formData.get("q");
  formData.set("q", shortened(text));
  if (isLog(text)) formData.delete("open"); // show a list of pages, and open no page directly
});
