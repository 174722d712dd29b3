// The page of all applications. It reads v1/apps, whose list all open pages share.
"use strict";

// Nobody reads more rows; the filter finds the others.
const ROWS_MAX = 500;

const hours = new Intl.NumberFormat("en", {minimumFractionDigits: 2, maximumFractionDigits: 2});
let answer = null;
let answeredAt = 0;
let view = {text: "", state: "", order: "name"};
// The rows by namespace and name. They stay in the document while they change, so that the keyboard keeps its place.
let rows = new Map();
let nRows = 0;

// ---- words

const nameOf = app => `${app.namespace}/${app.app}`;
// Runs on the host of posse may have a name of the cluster, too.
const keyOf = app => [nameOf(app), app.server, app.state === "Local" ? app.driver.instance : null].join("\n");
const total = (app, what) => Object.values(app.groups).reduce((n, group) => n + group[what], 0);
const sum = (list, of) => list.reduce((n, one) => n + of(one), 0);
const age = () => answer.age_ms + Date.now() - answeredAt;

// A person compares ages, and reads no seconds of them.
function roughly(seconds) {
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => seconds >= size) || [1, "s"];
  return `${number.format(Math.floor(seconds / size))} ${unit}`;
}

const COLUMNS = [
  ["Application", "", app => answer.namespace === null ? nameOf(app) : app.app],
  ["State", "", app => app.server ? `${app.state} at ${app.server}` : app.state || ""],
  ["Running", "number", app => number.format(app.executors.running)],
  ["Wanted", "number", app => app.executors.wanted === null ? "" : number.format(app.executors.wanted)],
  ["Pending", "number", app => app.executors.pending ? number.format(app.executors.pending) : ""],
  ["Waits for", "message", app => app.waiting || ""],
  ["CPU hours", "number", app => hours.format(total(app, "cpu_hours"))],
  ["GiB hours", "number", app => hours.format(total(app, "memory_gib_hours"))],
  ["Age", "number", app => app.age_seconds === null ? "" : roughly(app.age_seconds)],
];

const byName = (a, b) => keyOf(a).localeCompare(keyOf(b));
const ORDERS = {
  name: ["by name", byName],
  waiting: ["most pending first", (a, b) => b.executors.pending - a.executors.pending || byName(a, b)],
  cpu: ["most CPU hours first", (a, b) => total(b, "cpu_hours") - total(a, "cpu_hours") || byName(a, b)],
  memory: ["most GiB hours first", (a, b) => total(b, "memory_gib_hours") - total(a, "memory_gib_hours") || byName(a, b)],
  newest: ["newest first", (a, b) => (a.age_seconds ?? Infinity) - (b.age_seconds ?? Infinity) || byName(a, b)],
};

// ---- the document

function newRow(key) {
  const cells = COLUMNS.map(([title, name], i) => make(i ? "td" : "th", i ? {className: name, "data-title": title} : {scope: "row"}));
  const id = `more-${nRows++}`;
  const button = make("button", {type: "button", className: "plain", "aria-expanded": "false"});
  cells[0].append(button);
  const more = make("td", {id, colSpan: COLUMNS.length});
  const row = {cells, button, more, app: null, line: make("tr", {}, ...cells), below: make("tr", {hidden: true}, more)};
  button.onclick = () => {
    row.below.hidden = !row.below.hidden;
    button.setAttribute("aria-expanded", String(!row.below.hidden));
    fill(row);
  };
  rows.set(key, row);
  return row;
}

function fill(row) {
  COLUMNS.forEach(([, , text], i) => {
    const [place, shown] = [i ? row.cells[i] : row.button, text(row.app)];
    if (place.textContent !== shown) place.textContent = shown;
  });
  if (row.below.hidden) return;
  const {app, driver, groups, namespace} = row.app;
  const facts = [["Namespace", namespace], ["Driver", driver.pod], ["Node", driver.node], ["Stands by", (driver.standby || []).join(", ") || null], ["Took over", driver.takeover ? `from ${driver.takeover.from}, ${driver.takeover.cause}, after ${driver.takeover.seconds} s` : null], ["Instance", driver.instance],
    ["Failed drivers", driver.failed || null], ["Exit code", driver.exit_code]].filter(([, value]) => value !== null);
  const list = Object.entries(groups).map(([name, one]) => [name || "(no group)", number.format(one.running), number.format(one.pending),
    hours.format(one.cpu_hours), hours.format(one.memory_gib_hours)]);
  rebuild(row.more, [facts, list], () => [
    make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {textContent: name}), make("dd", {textContent: value})])),
    list.length ? table([["group"], ...["running", "pending", "CPU hours", "GiB hours"].map(name => [name, "number"])], list)
      : make("p", {textContent: "The server has no executor of it."}),
    make("p", {}, "In a terminal: ", make("code", {textContent: `posse explain --app ${app} -n ${namespace}`}))]);
}

function choose() {
  const text = view.text.trim().toLowerCase();
  const fits = app => (!view.state || (app.state || "") === view.state || (view.state === "waits" && app.executors.pending > 0)) &&
    (!text || [nameOf(app), app.state, app.waiting, app.driver.pod, app.driver.node, ...Object.keys(app.groups)]
      .join("\n").toLowerCase().includes(text));
  return answer.apps.filter(fits).sort(ORDERS[view.order][1]);
}

function showList() {
  const list = choose();
  const shown = list.slice(0, ROWS_MAX);
  for (const key of [...rows.keys()].filter(key => !answer.apps.some(app => keyOf(app) === key))) {
    delete built[rows.get(key).more.id];
    rows.delete(key);
  }
  const lines = shown.flatMap(app => {
    const row = rows.get(keyOf(app)) || newRow(keyOf(app));
    row.app = app;
    fill(row);
    return [row.line, row.below];
  });
  // What is in its place is not touched, so that the focus stays.
  const body = $("list");
  for (const line of [...body.children].filter(line => !lines.includes(line))) line.remove();
  lines.forEach((line, i) => body.children[i] === line || body.insertBefore(line, body.children[i] || null));
  const found = list.length > shown.length ? `The first ${number.format(shown.length)} of ${plural(list.length, "application")}.`
    : `${number.format(list.length)} of ${plural(answer.apps.length, "application")}.`;
  if ($("found").textContent !== found) $("found").textContent = found;
}

function showHead() {
  const {apps, namespace, server, left_out: leftOut} = answer;
  $("names").textContent = `${namespace === null ? "all namespaces" : `namespace ${namespace}`} of ${server}`;
  const running = sum(apps, app => app.executors.running);
  document.title = `${number.format(running)} executors of ${number.format(apps.length)} applications - posse`;
  const pending = sum(apps, app => app.executors.pending);
  $("summary").textContent = `${plural(apps.length, "application")}, ${plural(running, "running executor")}, ${number.format(pending)} pending; ` +
    `${hours.format(sum(apps, app => total(app, "cpu_hours")))} CPU hours, ` +
    `${hours.format(sum(apps, app => total(app, "memory_gib_hours")))} GiB hours, at ${clock(Date.now() - age())}.` +
    (leftOut ? ` ${plural(leftOut, "more application")} are not in the list: name those that you want.` : "");
  const states = [...new Set(apps.map(app => app.state).filter(state => state))].sort();
  options($("state"), [["", "all"], ["waits", "with pending executors"], ...states.map(state => [state, state])], view.state);
}

function showAway() {
  const {error, age_ms: ageMs} = answer;
  const old = ageMs === null ? "There is no earlier state."
    : `This is its state of ${clock(Date.now() - age())}, ${span(age())} ago.`;
  rebuild($("away"), [error, error && old], () => !error ? [] : [make("div", {className: "wait out"},
    make("strong", {textContent: "The API server does not give the list."}), ` ${old}`, make("blockquote", {textContent: error}))]);
}

function draw() {
  if (!answer) return;
  $("content").hidden = false;
  for (const show of [showHead, showAway, showList]) show();
}

// ---- the connection

async function connect() {
  let [delay, since] = [RETRY_MIN_MS, null];
  for (;;) {
    try {
      const wasAway = answer?.error;
      answer = await (await call("v1/apps", AbortSignal.timeout(ANSWER_MS))).json();
      answeredAt = Date.now();
      [delay, since] = [RETRY_MIN_MS, null];
      showLink("live", "Live");
      if (Boolean(wasAway) !== Boolean(answer.error)) announce(answer.error ? "The API server does not give the list." : "The list is new again.");
      draw();
      await nextRead(answer.pace_ms);
      continue;
    } catch (error) {
      if (error.status === 401) {
        await login(Boolean(token));
        continue;
      }
      since ??= Date.now();
      showLink("cut", `Not connected since ${clock(since)}${error instanceof Refused ? `: ${error.message}` : ""}`);
    }
    await pause(delay * (0.75 + Math.random() / 2), since);
    delay = Math.min(RETRY_MAX_MS, delay * 2);
  }
}

// A page that nobody sees reads nothing.
function nextRead(ms) {
  return new Promise(done => {
    const ready = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", ready);
      done();
    };
    setTimeout(() => {
      document.addEventListener("visibilitychange", ready);
      ready();
    }, ms);
  });
}

// ---- the start

function begin() {
  document.body.dataset.link = "wait";
  $("heads").append(...COLUMNS.map(([title, name]) => make("th", {scope: "col", className: name, textContent: title})));
  options($("order"), Object.entries(ORDERS).map(([name, [text]]) => [name, text]), view.order);
  for (const id of ["state", "order"]) $(id).onchange = () => { view[id] = $(id).value; draw(); };
  $("find").oninput = () => { view.text = $("find").value; draw(); };
  $("filter").onsubmit = event => event.preventDefault();
  // The age of an old state grows.
  setInterval(() => answer?.error && isLive() && showAway(), 1000);
  connect();
}

begin();
