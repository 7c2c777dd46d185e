"use strict";
const root = document.documentElement;
addEventListener("error", e => { root.dataset.errors = (root.dataset.errors || "") + e.message + "\n"; });
addEventListener("securitypolicyviolation", e => { root.dataset.errors = (root.dataset.errors || "") + e.blockedURI + "\n"; });

// Light and dark: the system's choice until the button is pressed.
const theme = document.getElementById("theme");
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const store = f => { try { return f(localStorage); } catch { return null; } };
const named = () => { theme.textContent = dark() ? "Light" : "Dark"; theme.ariaLabel = theme.textContent + " theme"; };
const asked = new URLSearchParams(location.search).get("theme") || store(s => s.getItem("commonground-theme"));
if (asked === "dark" || asked === "light") root.dataset.theme = asked;
named();
theme.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark"; named(); store(s => s.setItem("commonground-theme", root.dataset.theme));
});

// Tables: a click on a heading sorts, another one turns the order round; empty cells stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("thead button").forEach((button, column) => button.addEventListener("click", () => {
    const head = button.parentElement, was = head.getAttribute("aria-sort");
    const up = was ? was === "descending" : !head.classList.contains("n");
    for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = row => {
      const cell = row.cells[column];
      return "value" in cell.dataset ? Number(cell.dataset.value) : cell.classList.contains("n") ? NaN : cell.textContent;
    };
    const order = (a, b) => typeof a === "string" ? a.localeCompare(b, undefined, {numeric: true}) : a - b;
    const body = table.tBodies[0];
    body.append(...[...body.rows].map(row => [value(row), row]).sort(([a], [b]) =>
      Number.isNaN(a) || Number.isNaN(b) ? Number.isNaN(a) - Number.isNaN(b) : up ? order(a, b) : order(b, a)
    ).map(([, row]) => row));
  }));
}

// Texts to take away: the button copies what stands under it, or at least selects it.
for (const part of document.querySelectorAll(".copy")) {
  const text = part.querySelector("pre"), said = part.querySelector("[role=status]");
  part.querySelector("button").addEventListener("click", async () => {
    const range = document.createRange();
    range.selectNodeContents(text);
    getSelection().removeAllRanges(); getSelection().addRange(range);
    const copied = await (navigator.clipboard?.writeText(text.textContent) ?? Promise.reject()).then(() => true, () => document.execCommand("copy"));
    said.textContent = copied ? "Copied" : "Selected: press Ctrl-C";
  });
}

// Figures: the values nearest to the pointer, or to the arrow keys.
const scaled = v => { for (const u of ["B", "kB", "MB", "GB"]) { if (Math.abs(v) < 1000) return +v.toFixed(2) + " " + u; v /= 1000; } return +v.toFixed(2) + " TB"; };
const sign = text => text.replace("-", "−");
const figures = (v, n) => v.toLocaleString("en", {maximumSignificantDigits: n});
const write = {
  percent: v => (100 * v).toFixed(2) + " %", points: v => sign((v > 0 ? "+" : "") + (100 * v).toFixed(2)), bytes: scaled,
  value: v => sign(figures(v, 5)), change: v => sign((v > 0 ? "+" : "") + figures(v, 4)),
  integer: v => v.toLocaleString("en"), seconds: v => v.toFixed(2) + " s",
  number: v => sign(String(+v.toPrecision(5))), p: v => v.toPrecision(3),
};
const nearest = (list, distance) => list.reduce((best, v, i) => distance(v, i) < distance(list[best], best) ? i : best, 0);
const valued = (s, i, d) => {
  const y = s.y[i], lo = s.lo?.[i], hi = s.hi?.[i], text = write[d.yu](y);
  if (lo === undefined) return text;
  const even = Math.abs(hi + lo - 2 * y) < 1e-5 * Math.max(Math.abs(y), hi - lo);  // a standard deviation around a mean
  return even ? `${text} ± ${write[d.yu](hi - y).replace(/^\+/, "")}` : `${text} (${write[d.yu](lo)} to ${write[d.yu](hi)})`;
};
const find = {  // each answers [x, y, heading, [[colour, text], …]] in the drawing's coordinates
  x(d, x) {
    const all = d.s.filter(s => s.px.length), at = s => nearest(s.px, p => Math.abs(p - x));
    const lead = all[nearest(all.map(s => Math.abs(s.px[at(s)] - x)), v => v)], i = at(lead);
    const same = all.filter(s => Math.abs(s.px[at(s)] - lead.px[i]) < .6);
    return [lead.px[i], null, `${d.xn} ${write[d.xu](lead.x[i])}`, same.map(s => [s.c, `${s.n}  ${valued(s, at(s), d)}`])];
  },
  near(d, x, y) {
    const far = (s, i) => Math.hypot(s.px[i] - x, s.py[i] - y), at = s => nearest(s.px, (_, i) => far(s, i));
    const all = d.s.filter(s => s.px.length), s = all[nearest(all, v => far(v, at(v)))], i = at(s);
    const rest = s.t ? "" : `, ${write[d.xu](s.x[i])}`;
    return [s.px[i], s.py[i], s.t ? s.t[i] : s.n, [[s.c, valued(s, i, d) + rest]]];
  },
  row(d, x, y) {
    const s = d.s[nearest(d.s, v => Math.abs(v.py[0] - y))];
    return [s.px[0], s.py[0], s.n, [[s.c, valued(s, 0, d)]].concat(s.t[0] ? [[null, s.t[0]]] : [])];
  },
  cells(d, x, y) {
    const [x0, y0, x1, y1] = d.box, clip = (v, n) => Math.min(Math.max(Math.floor(v * n), 0), n - 1);
    const c = clip((x - x0) / (x1 - x0), d.cols.length), r = clip((y - y0) / (y1 - y0), d.rows.length);
    return [x0 + (c + .5) * (x1 - x0) / d.cols.length, y0 + (r + .5) * (y1 - y0) / d.rows.length,
      `${d.xn} ${d.cols[c]}, ${d.yn} ${d.rows[r]}`, [[0, d.v[r][c].toLocaleString("en") + " samples"]]];
  },
};
for (const plot of document.querySelectorAll(".plot")) {
  const svg = plot.querySelector("svg"), tip = plot.querySelector(".tip"), box = svg.viewBox.baseVal;
  const data = JSON.parse(plot.querySelector("script").textContent), [x0, y0, x1, y1] = data.plot;
  const mark = document.createElementNS("http://www.w3.org/2000/svg", "path");
  mark.setAttribute("style", "fill: none; stroke: var(--soft); stroke-width: 1; pointer-events: none");
  let spot = [x0, y0];
  const show = (x, y) => {
    const [mx, my, heading, lines] = find[data.k](data, x, y);
    spot = [mx, my ?? y];
    mark.setAttribute("d", my === null ? `M${mx} ${y0}V${y1}` : `M${mx - 5} ${my}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0`);
    svg.append(mark);
    tip.replaceChildren(Object.assign(document.createElement("b"), {textContent: heading}), ...lines.map(([color, text]) => {
      const line = document.createElement("div"), dot = document.createElement("i");
      if (color !== null) { dot.style.background = `var(--s${color})`; line.append(dot); }
      line.append(text);
      return line;
    }));
    tip.hidden = false;
    const scale = svg.clientWidth / box.width, wide = svg.clientWidth;
    const left = mx * scale + 14 + tip.offsetWidth < wide ? mx * scale + 14 : mx * scale - 14 - tip.offsetWidth;
    tip.style.left = Math.max(0, Math.min(left, wide - tip.offsetWidth)) + "px";
    tip.style.top = Math.max(0, (my === null ? y0 : my - 30) * scale) + "px";
    if (my === null && wide < 480) tip.style.top = svg.clientHeight + "px";  // on a phone it would hide the curves
  };
  const hide = () => { tip.hidden = true; mark.remove(); };
  const moved = e => {
    const frame = svg.getBoundingClientRect();
    show((e.clientX - frame.left) * box.width / frame.width, (e.clientY - frame.top) * box.height / frame.height);
  };
  svg.addEventListener("pointermove", moved);
  svg.addEventListener("pointerdown", moved);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", e => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[e.key];
    if (e.key === "Escape") hide();
    if (!step) return;
    e.preventDefault();
    const before = tip.hidden ? "" : tip.textContent;
    let [x, y] = spot;
    do { x += step[0] * 2; y += step[1] * 2; show(x, y); }  // on until another value is nearest
    while (tip.textContent === before && x > x0 && x < x1 && y > y0 && y < y1);
  });
}
