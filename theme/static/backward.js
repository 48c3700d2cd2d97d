// Figures of a backward pass, which show one step at a time. The content of each step was computed when the page was built.
"use strict";

const METHODS = ["vanilla", "ignoring"];
const PACE = 2200; // milliseconds for a step that plays
const MARGIN = 8; // pixels that stay visible around a step
const still = matchMedia("(prefers-reduced-motion: reduce)");
const KEYS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

// A button with a sign and a word. A phone shows only the sign, and a screen reader reads the word.
function button(sign, word, act) {
  const made = document.createElement("button");
  made.type = "button";
  face(made, sign, word);
  made.addEventListener("click", act);
  return made;
}

function face(button, sign, word) {
  const text = document.createElement("span");
  text.textContent = word;
  const parts = sign ? [`${sign}\uFE0E`, " ", text] : [text]; // U+FE0E: show the sign as text and not as an emoji
  button.replaceChildren(...parts);
}

// The sentence about a step of one method.
function sentence(step, number, count, method) {
  const head = document.createElement("b");
  head.textContent = `Step ${number + 1} of ${count}: ${step.dataset.title}, ${method}`;
  return [head, " ", step.dataset[method]];
}

for (const figure of document.querySelectorAll("[data-backward]")) {
  const steps = [...figure.querySelectorAll(".zn-step")];
  let at = Number(figure.dataset.backward);
  let method = METHODS[0];
  let timer = 0;
  let follows = false; // whether the page scrolls to the step, which it does only after the reader chose a step

  const controls = document.createElement("div");
  controls.className = "zn-walk";
  controls.setAttribute("role", "group");
  controls.setAttribute("aria-label", "Step through the backward pass");
  const play = button("▶", "Play", () => (timer ? stop() : start(true)));
  const previous = button("←", "Previous", () => go(-1));
  const next = button("→", "Next", () => go(1));
  for (const each of [play, previous, next]) each.className = "zn-sign";
  previous.setAttribute("aria-keyshortcuts", "ArrowLeft");
  next.setAttribute("aria-keyshortcuts", "ArrowRight");
  const methods = document.createElement("div");
  methods.setAttribute("role", "group");
  methods.setAttribute("aria-label", "Backward pass");
  methods.append(...METHODS.map((each) => button("", each, () => { stop(); method = each; show(); })));
  const said = document.createElement("p");
  said.setAttribute("role", "status");
  const told = document.createElement("div");
  told.className = "zn-told";
  told.append(said, ...spacers());
  controls.append(play, previous, next, methods, told);
  const side = document.createElement("div");
  side.className = "zn-side";
  figure.querySelector(".zn-graph").after(side);
  const stays = side.appendChild(document.createElement("div")); // in its column, which ends above the caption
  stays.append(controls, figure.querySelector(".zn-steps"));

  controls.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(KEYS[event.key]);
  });
  for (const node of figure.querySelectorAll(".zn-graph [data-step]")) {
    node.addEventListener("click", () => { at = Number(node.dataset.step); go(0); });
  }
  for (const moved of ["wheel", "touchmove"]) addEventListener(moved, () => { follows = false; }, { passive: true });
  figure.classList.add("zn-stepping");
  show();
  if ("plays" in figure.dataset && !still.matches) playOnce();

  // Play all steps once, as soon as half of the graph is visible.
  function playOnce() {
    const seen = new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting) return;
      seen.disconnect();
      start(false);
    }, { threshold: 0.5 });
    seen.observe(figure.querySelector(".zn-graph"));
  }

  function start(asked) {
    follows = asked;
    at = 0;
    show();
    face(play, "❚❚", "Pause");
    timer = setInterval(() => {
      if (at === steps.length - 1) return stop();
      at += 1;
      show();
    }, PACE);
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    face(play, "▶", "Play");
  }

  function go(by) {
    stop();
    follows = true;
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
    figure.dataset.method = method;
    for (const each of methods.children) each.setAttribute("aria-pressed", each.textContent === method);
    // aria-disabled and not disabled, because a disabled button would lose the focus while the reader uses it.
    previous.setAttribute("aria-disabled", at === 0);
    next.setAttribute("aria-disabled", at === steps.length - 1);
    said.replaceChildren(...sentence(steps[at], at, steps.length, method));
    if (follows) follow();
  }

  // Invisible copies of all sentences. The longest copy determines the height, so that nothing moves between steps.
  function spacers() {
    return METHODS.flatMap((each) => steps.map((step, number) => {
      const spacer = document.createElement("p");
      spacer.setAttribute("aria-hidden", "true");
      spacer.append(...sentence(step, number, steps.length, each));
      return spacer;
    }));
  }

  // Scroll only as far as needed to show the node and its cotangents, above the controls on a phone.
  function follow() {
    const parts = figure.querySelectorAll(".zn-node.zn-now, .zn-end.zn-now, .zn-cotangent:is(.zn-now, .zn-into)");
    const boxes = [...parts].map((part) => part.getBoundingClientRect());
    const above = Math.min(...boxes.map((box) => box.top)) - MARGIN;
    const below = Math.max(...boxes.map((box) => box.bottom)) + MARGIN;
    const bar = getComputedStyle(controls).position === "sticky" ? controls.offsetHeight : 0;
    const top = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop);
    const most = above - top;
    const by = Math.min(most, Math.max(0, below - (innerHeight - bar)));
    if (by) scrollBy({ top: by, behavior: still.matches ? "instant" : "smooth" });
  }
}
