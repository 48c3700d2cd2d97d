// Figures of a backward pass: one step at a time. What each step shows was computed when the page was made.
"use strict";

const WAYS = ["vanilla", "ignoring"];
const PACE = 2200; // milliseconds for a step that plays
const still = matchMedia("(prefers-reduced-motion: reduce)");
const KEYS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

function button(text, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}

for (const figure of document.querySelectorAll("[data-backward]")) {
  const steps = [...figure.querySelectorAll(".zn-step")];
  let at = Number(figure.dataset.backward);
  let way = WAYS[0];
  let timer = 0;

  const controls = document.createElement("div");
  controls.className = "zn-walk";
  controls.setAttribute("role", "group");
  controls.setAttribute("aria-label", "Step through the backward pass");
  const play = button("▶ Play", () => (timer ? stop() : start()));
  const previous = button("← Previous", () => go(-1));
  const next = button("Next →", () => go(1));
  previous.setAttribute("aria-keyshortcuts", "ArrowLeft");
  next.setAttribute("aria-keyshortcuts", "ArrowRight");
  const ways = document.createElement("div");
  ways.setAttribute("role", "group");
  ways.setAttribute("aria-label", "Backward pass");
  ways.append(...WAYS.map((each) => button(each, () => { stop(); way = each; show(); })));
  const said = document.createElement("p");
  said.setAttribute("role", "status");
  controls.append(play, previous, next, ways, said);
  const side = document.createElement("div");
  side.className = "zn-side";
  figure.querySelector(".zn-graph").after(side);
  side.append(controls, figure.querySelector(".zn-steps"));

  controls.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(KEYS[event.key]);
  });
  for (const node of figure.querySelectorAll(".zn-graph [data-step]")) {
    node.addEventListener("click", () => { stop(); at = Number(node.dataset.step); show(); });
  }
  figure.classList.add("zn-stepping");
  show();
  if ("plays" in figure.dataset && !still.matches) playOnce();

  // Once, from the start, as soon as half of the figure is in sight.
  function playOnce() {
    const seen = new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting) return;
      seen.disconnect();
      start();
    }, { threshold: 0.5 });
    seen.observe(figure);
  }

  function start() {
    at = 0;
    show();
    play.textContent = "❚❚ Pause";
    timer = setInterval(() => {
      if (at === steps.length - 1) return stop();
      at += 1;
      show();
    }, PACE);
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "▶ Play";
  }

  function go(by) {
    stop();
    at = Math.min(Math.max(at + by, 0), steps.length - 1);
    show();
  }

  function show() {
    for (const step of steps) step.classList.toggle("zn-off", Number(step.dataset.step) !== at);
    for (const part of figure.querySelectorAll(".zn-graph [data-from]")) {
      part.classList.toggle("zn-ahead", Number(part.dataset.from) > at);
      part.classList.toggle("zn-now", Number(part.dataset.from) === at);
      part.classList.toggle("zn-into", Number(part.dataset.to) === at);
    }
    for (const node of figure.querySelectorAll(".zn-graph [data-step]")) {
      node.classList.toggle("zn-ahead", Number(node.dataset.step) > at);
      node.classList.toggle("zn-now", Number(node.dataset.step) === at);
    }
    figure.dataset.way = way;
    for (const each of ways.children) each.setAttribute("aria-pressed", each.textContent === way);
    // Not disabled: a button that loses the focus under the finger is no help.
    previous.setAttribute("aria-disabled", at === 0);
    next.setAttribute("aria-disabled", at === steps.length - 1);
    const step = steps[at];
    const head = document.createElement("b");
    head.textContent = `Step ${at + 1} of ${steps.length}: ${step.dataset.title}, ${way}`;
    said.replaceChildren(head, " ", step.dataset[way]);
  }
}
