// Controls with which a reader changes the inputs of a computation. The browser computes the results with the arithmetic of the
// executed cells. Before a control is shown, the script computes the executed samples. If a result differs, the table of the
// samples stays, and no reader sees a wrong number.
"use strict";

const single = Math.fround;

/** The distance of two numbers with the same sign, counted in representable numbers of the precision. */
function ulps(a, b, precision) {
  if (precision === "float32") {
    const [i, j] = new Int32Array(new Float32Array([a, b]).buffer);
    return Math.abs(i - j);
  }
  const [i, j] = new BigInt64Array(new Float64Array([a, b]).buffer);
  return Number(i > j ? i - j : j - i);
}

const CONTROLS = {
  // float32, as PyTorch computes it: each result is rounded before the next operation.
  "where-over-exp": {
    within: 2, // ulps, because exp is not the same on every processor
    inputs: [{ name: "x", min: -10, max: 100, step: 0.5, value: 90 }],
    compute({ x }) {
      const result = single(Math.exp(single(x)));
      const picked = x < 0;
      const cotangent = picked ? 1 : 0;
      return {
        "exp(x)": result,
        y: picked ? result : 1,
        "cotangent of exp(x)": cotangent,
        "x.grad, vanilla": single(cotangent * result),
        "x.grad, ignoring": picked ? result : 0,
      };
    },
  },
  "round-off": {
    within: 0,
    inputs: [
      { name: "precision", options: ["float32", "float64"], value: "float32" },
      { name: "a", min: 0.1, max: 3, step: 0.0001, value: 1.0498 },
    ],
    compute({ precision, a }) {
      const round = precision === "float32" ? single : (number) => number;
      const value = round(a);
      const inverse = round(1 / value);
      const autograd = -round(inverse * inverse);
      const formula = round(-1 / round(value * value));
      return { autograd, "−1/a²": formula, difference: round(autograd - formula), ulps: ulps(autograd, formula, precision) };
    },
  },
};

function number(text) {
  return Number(text.replace("−", "-").replace("inf", "Infinity"));
}

/** Whether the browser computes what the executed cells gave. */
function agrees({ inputs, within, compute }, samples) {
  return samples.every((sample) => {
    const values = inputs.map(({ name, options }) => [name, options ? sample[name] : number(sample[name])]);
    const results = Object.entries(compute(Object.fromEntries(values)));
    const near = (a, b) => Number.isFinite(a) && Number.isFinite(b) && ulps(a, b, sample.precision ?? "float32") <= within;
    const equal = (a, b) => a === b || Object.is(a, b) || near(a, b);
    const given = Object.keys(sample).length === values.length + results.length;
    return given && results.every(([name, value]) => name in sample && equal(value, number(sample[name])));
  });
}

function kind(value) {
  return Number.isNaN(value) ? "nan" : Number.isFinite(value) ? (value === 0 ? "zero" : "finite") : "inf";
}

function text(value, digits) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value < 0 ? "-inf" : "inf";
  return String(Number(value.toPrecision(digits)));
}

let fields = 0;

function field(input, changed) {
  const label = document.createElement("label");
  const id = `control-${++fields}`;
  label.htmlFor = id;
  label.textContent = `${input.name} `;
  const control = document.createElement(input.options ? "select" : "input");
  control.id = id;
  control.dataset.input = input.name;
  if (input.options) for (const option of input.options) control.append(new Option(option));
  else Object.assign(control, { type: "range", min: input.min, max: input.max, step: input.step });
  control.value = input.value;
  control.addEventListener("input", changed);
  return [label, control];
}

for (const place of document.querySelectorAll("[data-control]")) {
  const made = CONTROLS[place.dataset.control];
  if (!made || !agrees(made, JSON.parse(place.dataset.samples))) {
    console.error(`the control ${place.dataset.control} does not compute what the executed cells gave`);
    continue;
  }
  const box = document.createElement("fieldset");
  box.className = "zn-try";
  const legend = document.createElement("legend");
  legend.textContent = "Try it in your browser";
  const inputs = document.createElement("div");
  const results = document.createElement("dl");
  const shown = document.createElement("output");
  for (const input of made.inputs) inputs.append(...field(input, update));
  inputs.append(shown);
  box.append(legend, inputs, results);
  place.prepend(box);

  function update() {
    const values = {};
    for (const control of inputs.querySelectorAll("[data-input]")) {
      values[control.dataset.input] = control.type === "range" ? Number(control.value) : control.value;
    }
    shown.textContent = Object.entries(values).map(([name, value]) => `${name} = ${value}`).join(", ");
    const digits = values.precision === "float64" ? 17 : 9;
    results.replaceChildren(
      ...Object.entries(made.compute(values)).map(([name, value]) => {
        const pair = document.createElement("div");
        const term = document.createElement("dt");
        const description = document.createElement("dd");
        term.textContent = name;
        const entry = document.createElement("span");
        entry.className = `zn-${kind(value)}`;
        entry.textContent = text(value, digits);
        description.append(entry);
        description.dataset.result = name;
        description.dataset.value = text(value, 17);
        pair.append(term, description);
        return pair;
      }),
    );
  }
  update();
}
