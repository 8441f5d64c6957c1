// The same digits as the Python functions `short` and `decimal`.
const fixed = (value, digits) => {
  // Where a number is exactly in the middle, which takes a whole number of such parts, Python takes the even digit.
  const below = Math.floor(value * 10 ** digits);
  const tie = Number.isInteger(value * 2 ** (digits + 1)) && value * 10 ** digits - below === 0.5;
  return tie && below % 2 === 0 ? (below / 10 ** digits).toFixed(digits) : value.toFixed(digits);
};
const scientific = (value, digits = 1) => value.toExponential(digits).replace("e+", "e");
const unusual = (value) => (value === null ? "–" : value === Infinity ? "∞" : null);
const short = (value) => {
  if (unusual(value) !== null) return unusual(value);
  if (value > 0 && value < 5e-4) return scientific(value, 0);
  return value >= 1e4 ? scientific(value) : fixed(value, value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0);
};
const decimal = (value) => {
  if (unusual(value) !== null) return unusual(value);
  if (value === 0) return "0";
  if (value < 1e-4 || value >= 1e5) return scientific(value);
  return fixed(value, value < 1 ? 4 : value < 10 ? 3 : value < 100 ? 2 : 1);
};
const count = (value) => value.toLocaleString("en-US");
const element = (name, text, className) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};

const signed = (value) => (value === null ? "–" : `${value < 0 ? "−" : "+"}${short(Math.abs(value))}`);
// Steps of the two-sided scale: more is plain and less is hatched, so that grey tells them apart.
const steps = 8;
function change(value, most) {
  if (value === null || !(most > 0)) return value === null ? "missing" : "";
  const step = Math.min(steps, Math.ceil((steps * Math.abs(value)) / most - 1e-9));
  return step === 0 ? "" : `${value > 0 ? "more" : "less"} by${step}`;
}

