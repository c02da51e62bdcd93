// Helpers for elements, numbers and times.
export const by = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "text", "path", "circle", "line", "polygon", "title"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function count(number) {
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)} M`;
  if (number >= 1e4) return `${(number / 1e3).toFixed(1)} k`;
  if (Number.isInteger(number) || number >= 100) return Math.round(number).toLocaleString("en");
  return number.toFixed(1);
}

export const clock = (iso) => iso.slice(11, 23);
export const micros = (iso) => Date.parse(iso.slice(0, 23) + "Z") * 1000 + Number(iso.slice(23, 26) || 0);
export const cut = (text, length) => (text.length <= length ? text : `${text.slice(0, length - 1)}…`);
export const summary = (attributes) => Object.entries(attributes).map(([name, value]) => `${name} ${value}`).join(", ");
