// What posse's pages share: words, parts of the document, and calls with the token. All text of others goes
// through textContent.
"use strict";

const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 15000;
const ANSWER_MS = 20000;

const $ = id => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const clockFormat = new Intl.DateTimeFormat("en-GB", {timeStyle: "medium"});
const dayFormat = new Intl.DateTimeFormat("en-GB", {dateStyle: "medium"});

// Only in memory: another program may get this address later, and stored tokens would be its to read.
let token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) history.replaceState(null, "", location.pathname + location.search);

// The parts of the page as they were built last, so that only changes touch the document.
let built = {};

// ---- words

const words = name => name.replaceAll("_", " ");
const plural = (n, what) => `${number.format(n)} ${what}${n === 1 ? "" : "s"}`;

function clock(unixMs) {
  const at = new Date(unixMs);
  const day = at.toDateString() === new Date().toDateString() ? "" : dayFormat.format(at) + " ";
  return day + clockFormat.format(at);
}

function span(ms) {
  const s = ms / 1000;
  if (s < 10) return `${Math.max(0, s).toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const i = units.findIndex(([size]) => s >= size);
  const [[size, unit], [next, nextUnit]] = [units[i], units[i + 1]];
  return `${Math.floor(s / size)} ${unit} ${Math.floor(s % size / next)} ${nextUnit}`;
}

// ---- the document

function make(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

// Text that does something.
function action(textContent, onclick) {
  return make("button", {type: "button", className: "plain", textContent, onclick});
}

// Builds a part again if what it shows has changed.
function rebuild(node, shown, build) {
  const key = JSON.stringify(shown);
  if (built[node.id] === key) return false;
  built[node.id] = key;
  node.replaceChildren(...build());
  return true;
}

function table(titles, rows) {
  const head = titles.map(([title, name]) => make("th", {scope: "col", className: name || "", textContent: title}));
  const lines = rows.map(cells => make("tr", {}, ...cells.map((cell, i) => {
    const className = titles[i][1] || "";
    const node = make(i ? "td" : "th", {className, "data-title": titles[i][0], ...(i ? {} : {scope: "row"})});
    node.append(cell);
    return node;
  })));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines));
}

function options(select, list, value) {
  rebuild(select, list, () => list.map(([value, text]) => make("option", {value, textContent: text})));
  select.value = value;
}

let announced = 0;

// Screen readers read this out: not more often than every 5 s.
function announce(text) {
  if (!text || Date.now() - announced < 5000) return;
  announced = Date.now();
  $("announce").textContent = text;
}

// ---- the connection

const isLive = () => document.body.dataset.link === "live";

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(path, signal) {
  const headers = token ? {authorization: `Bearer ${token}`} : {};
  const answer = await fetch(path, {headers, signal, cache: "no-store", credentials: "omit"});
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, body.error || `the answer has the status ${answer.status}`);
}

function showLink(state, text) {
  document.body.dataset.link = state;
  if ($("link").textContent !== text) $("link").textContent = text;
  $("countdown").textContent = "";
  $("retry").hidden = state === "live";
}

// Waits, and says how long there has been no connection. The button ends the wait.
function pause(ms, since) {
  const until = Date.now() + ms;
  return new Promise(done => {
    const end = () => { clearInterval(timer); done(); };
    const tick = () => {
      if (Date.now() >= until) return end();
      $("countdown").textContent = `(${Math.floor((Date.now() - since) / 1000)} s; next try in ${Math.ceil((until - Date.now()) / 1000)} s)`;
    };
    const timer = setInterval(tick, 250);
    $("retry").onclick = end;
    tick();
  });
}

function login(isWrong) {
  $("content").hidden = true;
  $("login").hidden = false;
  $("refused").textContent = isWrong ? "This token is not valid." : "";
  $("link").textContent = "Not connected";
  $("token").focus();
  return new Promise(done => {
    $("login").onsubmit = event => {
      event.preventDefault();
      token = $("token").value.trim();
      $("token").value = "";
      $("login").hidden = true;
      done();
    };
  });
}
